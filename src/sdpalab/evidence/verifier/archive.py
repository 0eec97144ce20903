"""A bundle as files: packed in one canonical form, unpacked and held against its manifest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import struct
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = [
    "FORMAT",
    "Members",
    "NotABundleError",
    "canonical",
    "check_manifest",
    "manifest_digest",
    "pack",
    "parse",
    "read",
    "read_directory",
    "unpack",
]

FORMAT = 7
"""2: the limit on the rows' root mean square, exact elements, ignored rows, the original contract. 3: a log-sum-exp.
4: the sources of a user's kernel, and cases that were left unjudged. 5: problems in exact arithmetic. 6: what a
verdict covers. 7: how many terms a float16 accumulator adds before it is rounded."""
READS = (2, 3, 4, 5, 6, FORMAT)
"""Format 2 is 3 without a log-sum-exp, 3 is 4 without sources and unjudged cases, 4 is 5 without problems in exact
arithmetic, 5 is 6 without what a verdict covers, and in 6 those terms are always 8. Bundles of another format are
verified by the verify.py that lies in them."""
MAX_BYTES = 2 << 30
"""More than this, packed or unpacked, is refused rather than read."""
Members = dict[str, bytes]
MAGIC = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + struct.pack("<H", 52) + b"SL" + struct.pack("<H", 48) + b"sdpalab bundle 1"


class NotABundleError(ValueError):
    """The input is not a bundle; the message is one sentence."""


def canonical(value: Any) -> bytes:
    """The one JSON form that manifest and records have."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def parse(members: Members, name: str, findings: list[str]) -> dict[str, Any]:
    """A JSON member in canonical form; anything else is a finding and gives {}."""
    try:
        value = json.loads(members[name].decode("ascii"))
        if isinstance(value, dict) and canonical(value) == members[name]:
            return value
    except (KeyError, ValueError, RecursionError):
        pass
    findings.append(f"{name}: missing, or not JSON in canonical form")
    return {}


def pack(top: str, members: Mapping[str, bytes]) -> bytes:
    """The canonical ``.tar.gz`` of ``members`` under the directory ``top``.

    The tar has its members sorted, no times, no owners. A gzip stream may be changed in ways that its checksum does not
    see, so the header's extra field holds the sha256 of all that follows it; other tools ignore that field.
    """
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    tar = _tar(top, members)
    body = packer.compress(tar) + packer.flush() + struct.pack("<II", zlib.crc32(tar), len(tar) & 0xFFFFFFFF)
    return MAGIC + hashlib.sha256(body).digest() + body


def _tar(top: str, members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(members):
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size, info.mode = len(members[name]), 0o644
            archive.addfile(info, io.BytesIO(members[name]))
    return buffer.getvalue()


def unpack(blob: bytes) -> tuple[str, Members, list[str]]:
    """Top directory, members and findings of a ``.tar.gz`` made by :func:`pack`.

    Raises
    ------
    NotABundleError
        If the bytes do not even resemble one.
    """
    head = blob[: len(MAGIC)]
    if head != MAGIC:
        if sum(a == b for a, b in zip(head, MAGIC, strict=False)) < len(MAGIC) // 2:
            raise NotABundleError("it is not a bundle: it does not begin as the archives that sdpalab writes")
        return "", {}, ["archive: its header has been changed"]
    body = blob[len(MAGIC) + 32 :]
    if hashlib.sha256(body).digest() != blob[len(MAGIC) : len(MAGIC) + 32]:
        return "", {}, ["archive: its bytes do not have the digest in its header"]
    try:
        unpacker = zlib.decompressobj(-15)
        tar = unpacker.decompress(body, MAX_BYTES)
        if unpacker.unused_data != struct.pack("<II", zlib.crc32(tar), len(tar) & 0xFFFFFFFF):
            return "", {}, ["archive: it does not end as a gzip file does, or is too large"]
        return _untar(tar)
    except (zlib.error, tarfile.TarError, UnicodeError) as error:
        return "", {}, [f"archive: {error}"]


def _untar(tar: bytes) -> tuple[str, Members, list[str]]:
    members: Members = {}
    top = ""
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        for info in archive:
            top, _, name = info.name.partition("/")
            if not info.isreg():
                return top, {}, [f"archive: {info.name} is not a plain file"]
            if not _plain(info.name) or not name:
                return top, {}, [f"archive: the path {info.name} leaves the bundle"]
            content = archive.extractfile(info)
            members[name] = content.read() if content else b""
    if _tar(top, members) != tar:
        return top, members, ["archive: it is not in the canonical form, and has hidden content"]
    return top, members, []


def _plain(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and "\\" not in name


def read_directory(root: Path) -> tuple[Members, list[str]]:
    """Files of an unpacked bundle, and findings about what is not a plain file.

    Raises
    ------
    NotABundleError
        If there is no ``manifest.yaml`` in it.
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
    """Members of a bundle, packed or unpacked, and what was wrong with the container.

    Raises
    ------
    NotABundleError
        If there is no such file, it cannot be read, or it is no bundle.
    """
    if path.is_dir():
        return read_directory(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise NotABundleError("it is not a bundle: it is larger than 2 GiB")
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
    """Digest over all: of the manifest without this very entry, and so of every file's digest."""
    return hashlib.sha256(canonical({k: v for k, v in manifest.items() if k != "digest"})).hexdigest()


def check_manifest(members: Members) -> list[str]:
    """Findings about missing, extra and changed files, and about the manifest's own form."""
    findings: list[str] = []
    manifest = parse(members, "manifest.yaml", findings)
    if findings:
        return findings
    if manifest.get("format") not in READS:
        known = " and ".join((", ".join(map(str, READS[:-1])), str(READS[-1])))
        problem = f"manifest.yaml: format {manifest.get('format')!r}, and this verifier reads {known}"
        return [f"{problem}; the verify.py in the bundle, or of the commit in its name, is for it"]
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
