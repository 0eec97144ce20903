"""A bundle as files: unpacked from its one canonical form, and held against its manifest."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import tarfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = [
    "FORMAT",
    "MAGIC",
    "Members",
    "NotABundleError",
    "canonical",
    "check_manifest",
    "manifest_digest",
    "parse",
    "read",
    "read_directory",
    "tar_end",
    "tar_member",
    "unpack",
]

FORMAT = 8
"""2: the limit on the rows' root mean square, exact elements, ignored rows, the original contract. 3: a log-sum-exp.
4: the sources of a user's kernel, and cases that were left unjudged. 5: problems in exact arithmetic. 6: what a
verdict covers. 7: how many terms a float16 accumulator adds before it is rounded. 8: keys behind a length are NaN."""
READS = (2, 3, 4, 5, 6, 7, FORMAT)
"""Format 2 is 3 without a log-sum-exp, 3 is 4 without sources and unjudged cases, 4 is 5 without problems in exact
arithmetic, 5 is 6 without what a verdict covers, in 6 those terms are always 8, and in 7 such keys are as others.
Bundles of another format are verified by the verify.py that lies in them."""
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
    value = _canonical_value(members.get(name, b""))
    if value is None:
        findings.append(f"{name}: missing, or not JSON in canonical form")
    return value or {}


@lru_cache(maxsize=1)
def _canonical_value(text: bytes) -> dict[str, Any] | None:
    """The object that ``text`` is the canonical form of; the manifest is read several times in a row."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text.decode("ascii"))
        if isinstance(value, dict) and canonical(value) == text:
            return value
    return None


def tar_member(top: str, name: str, content: bytes) -> tuple[bytes, bytes, bytes]:
    """What the canonical tar has of a file: header, content, padding."""
    info = tarfile.TarInfo(f"{top}/{name}")
    info.size, info.mode = len(content), 0o644
    return (
        info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape"),
        content,
        bytes(-len(content) % tarfile.BLOCKSIZE),
    )


def tar_end(size: int) -> bytes:
    """What ends a tar of so many bytes: two blocks of zeros, and the rest of the record."""
    blocks = 2 * tarfile.BLOCKSIZE
    return bytes(blocks + -(size + blocks) % tarfile.RECORDSIZE)


def unpack(blob: bytes) -> tuple[str, Members, list[str]]:
    """Top directory, members and findings of a ``.tar.gz`` made by :mod:`sdpalab.evidence.packing`.

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
    top, at = "", 0
    while at < len(tar) and any(header := tar[at : at + tarfile.BLOCKSIZE]):
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        top, _, name = info.name.partition("/")
        if not info.isreg():
            return top, {}, [f"archive: {info.name} is not a plain file"]
        if not _plain(info.name) or not name:
            return top, {}, [f"archive: the path {info.name} leaves the bundle"]
        at += tarfile.BLOCKSIZE
        members[name] = tar[at : at + max(info.size, 0)]
        at += len(members[name]) + -len(members[name]) % tarfile.BLOCKSIZE
    if not _is_canonical(tar, top, members):
        return top, members, ["archive: it is not in the canonical form, and has hidden content"]
    return top, members, []


def _is_canonical(tar: bytes, top: str, members: Members) -> bool:
    """True if a tar is, byte for byte, the one that its members make."""
    at = 0
    for name in sorted(members):
        with suppress(ValueError):  # no such header can be made
            for piece in tar_member(top, name, members[name]):
                if not tar.startswith(piece, at):
                    return False
                at += len(piece)
    return tar[at:] == tar_end(at)


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
