"""A bundle as files: a reproducible ``.tar.gz``, and a manifest with the digest of each member."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = [
    "FORMAT",
    "HEADER",
    "MAX_BYTES",
    "Members",
    "NotABundleError",
    "canonical",
    "check_manifest",
    "manifest_digest",
    "pack",
    "parse",
    "read",
    "read_directory",
    "tarred",
    "unpack",
]

FORMAT = 8
"""Format of the records and of the archive; bundles of any other format are rejected."""
MAX_BYTES = 2 << 30
"""Largest size of a bundle, packed or unpacked."""
LEVEL = 1
"""Compression level of gzip; higher levels do not shrink raw float16 arrays further."""
HEADER = b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"
"""Header that gzip writes at this level, without a name and a time."""
Members = dict[str, bytes]


class NotABundleError(ValueError):
    """The input is not a bundle; the message is one sentence."""


def canonical(value: Any) -> bytes:
    """The canonical JSON form of the manifest and the records."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def parse(members: Members, name: str, findings: list[str]) -> dict[str, Any]:
    """Parse a JSON member in canonical form; any other form is a finding and gives {}."""
    value = _canonical_value(members.get(name, b""))
    if value is None:
        findings.append(f"{name}: missing, or not JSON in canonical form")
    return value or {}


@lru_cache(maxsize=1)
def _canonical_value(text: bytes) -> dict[str, Any] | None:
    """The object whose canonical form is ``text``; cached, because the manifest is read several times in a row."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text.decode("ascii"))
        if isinstance(value, dict) and canonical(value) == text:
            return value
    return None


def tarred(top: str, members: Mapping[str, bytes]) -> bytes:
    """The tar of ``members`` under the directory ``top``: sorted by name, without times and owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(members):
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(members[name])
            archive.addfile(info, io.BytesIO(members[name]))
    return buffer.getvalue()


def pack(top: str, members: Mapping[str, bytes]) -> bytes:
    """The ``.tar.gz`` of ``members``: the same bytes for the same members."""
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", LEVEL, buffer, mtime=0) as packed:
        packed.write(tarred(top, members))
    return buffer.getvalue()


def unpack(blob: bytes) -> tuple[str, Members, list[str]]:
    """Top directory, members and findings of a ``.tar.gz`` made by :func:`pack`.

    Raises
    ------
    NotABundleError
        If the bytes are not such an archive, or it has no ``manifest.yaml``.
    """
    changed = blob[: len(HEADER)] != HEADER
    if changed and sum(a == b for a, b in zip(blob, HEADER, strict=False)) == len(HEADER) - 1:
        return "", {}, ["archive: its header has been changed"]
    try:
        unpacker = zlib.decompressobj(31)
        tar = unpacker.decompress(blob, MAX_BYTES)
        if unpacker.unconsumed_tail:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes when it is unpacked")
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("it does not end where its gzip stream ends")
        top, members, findings = _untarred(tar)
        own_form = not changed and (bool(findings) or tar == tarred(top, members))
    except (zlib.error, tarfile.TarError, ValueError) as error:
        top, members, findings, own_form = "", {}, [f"archive: {error}"], not changed
    if changed and findings:
        raise NotABundleError("it is not a bundle: it is no archive that sdpalab writes")
    if not findings and "manifest.yaml" not in members:
        raise NotABundleError("it is not a bundle: the archive has no manifest.yaml")
    if problem := format_problem(members):
        findings = [problem]
    elif not own_form:
        findings = ["archive: it is not in the canonical form, and may have hidden content"]
    return top, members, findings


def _untarred(tar: bytes) -> tuple[str, Members, list[str]]:
    """Top directory and members of a tar, and its first entry that a bundle must not have."""
    members: Members = {}
    top = ""
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        for info in archive:
            top, _, name = info.name.partition("/")
            if not info.isreg() or info.issparse():
                return top, {}, [f"archive: {info.name} is not a plain file"]
            if not _plain(info.name) or not name:
                return top, {}, [f"archive: the path {info.name} leaves the bundle"]
            file = archive.extractfile(info)
            members[name] = file.read() if file else b""
    return top, members, []


def _plain(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and "\\" not in name


def read_directory(root: Path) -> tuple[Members, list[str]]:
    """Files of an unpacked bundle, and findings about entries that are not plain files.

    Raises
    ------
    NotABundleError
        If it has no ``manifest.yaml``.
    """
    if not (root / "manifest.yaml").is_file():
        raise NotABundleError("it is not a bundle: the directory has no manifest.yaml")
    members: Members = {}
    findings: list[str] = []
    total = 0
    for base, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(base) / name
            shown = path.relative_to(root).as_posix()
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                if not any(path.iterdir()):
                    findings.append(f"{shown}: an empty directory that is not in the manifest")
                continue
            total += path.lstat().st_size
            if not stat.S_ISREG(mode) or total > MAX_BYTES:
                findings.append(f"{shown}: not a plain file, or too large")
                continue
            members[shown] = path.read_bytes()
    return members, findings


def read(path: Path) -> tuple[Members, list[str]]:
    """Members of a bundle, packed or unpacked, and findings about the container.

    Raises
    ------
    NotABundleError
        If the file does not exist, cannot be read, or is not a bundle.
    """
    if path.is_dir():
        return read_directory(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise NotABundleError(f"it is not a bundle: it is larger than {MAX_BYTES} bytes")
        blob = path.read_bytes()
    except OSError as error:
        raise NotABundleError(f"it cannot be read: {error.strerror}") from None
    top, members, findings = unpack(blob)
    side_car = path.with_name(path.name + ".sha256")
    if side_car.is_file():
        words = side_car.read_text(errors="replace").split()
        if words != [hashlib.sha256(blob).hexdigest(), path.name]:
            findings.append(f"{side_car.name}: it does not hold the digest of {path.name}")
    if not findings and parse(members, "manifest.yaml", findings).get("name") != top:
        findings.append("manifest.yaml: the bundle's name is not that of the archive's directory")
    return members, findings


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Digest of the whole bundle: of the manifest without this entry, and so of every file's digest."""
    return hashlib.sha256(canonical({k: v for k, v in manifest.items() if k != "digest"})).hexdigest()


def format_problem(members: Members) -> str:
    """The finding about a bundle of another format; empty if the format matches, or the manifest is unreadable."""
    manifest = parse(members, "manifest.yaml", [])
    number = manifest.get("format")
    if not manifest or (number == FORMAT and type(number) is int):
        return ""
    if type(number) is not int:
        return "manifest.yaml: its format is not a number"
    which = "a newer" if number > FORMAT else "an older"
    return f"manifest.yaml: the bundle is of format {number}, and this sdpalab reads {FORMAT}: install {which} sdpalab"


def check_manifest(members: Members) -> list[str]:
    """Findings about missing, extra and changed files, and about the manifest's own form."""
    findings: list[str] = []
    manifest = parse(members, "manifest.yaml", findings)
    if findings:
        return findings
    if problem := format_problem(members):
        return [problem]
    if manifest.get("digest") != manifest_digest(manifest):
        findings.append("manifest.yaml: its digest over all does not match its content")
    files: Mapping[str, Any] = manifest.get("files") or {}
    findings += [f"{name}: in the manifest, and missing" for name in sorted(set(files) - set(members))]
    findings += [
        f"{name}: not in the manifest" for name in sorted(set(members) - set(files)) if name != "manifest.yaml"
    ]
    for name in sorted(set(files) & set(members)):
        actual = {"sha256": hashlib.sha256(members[name]).hexdigest(), "size": len(members[name])}
        if files[name] != actual:
            findings.append(f"{name}: its bytes are not those of the manifest")
        if name.startswith("arrays/") and name != f"arrays/{actual['sha256']}.raw":
            findings.append(f"{name}: an array's name is the digest of its bytes, and this one is not")
    needed = {"report.html", "environment.json", "floors.json", "verify.py"} - set(files)
    findings += [f"{name}: every bundle has one, and this one has not" for name in sorted(needed)]
    return findings
