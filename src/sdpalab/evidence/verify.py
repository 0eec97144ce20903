#!/usr/bin/env python3
"""Stand-alone verifier of an SDPA Lab bundle: ``python verify.py BUNDLE.tar.gz`` (or an unpacked directory).

It imports nothing of the lab, only NumPy and the standard library, and takes no word of the records for what it can
work out itself:

- every byte of the archive and of every file is covered by a digest, and the archive has the one canonical form;
- for every case, from the raw arrays: which rows are judged, the float64 reference, the intended numerics, the elements
  that are fixed bit for bit, the limits, the errors, those of a log-sum-exp if there is one, the status; normal inputs
  are made again from their seed;
- the verdict from its cases, the gate from the resources, the resources (registers, stack, static shared memory) from
  the cubin, and that what ran is the PTX in the bundle.

Exit 0: accepted. 1: rejected, one line a finding. 2: this is not a bundle.

Layout of arrays: ``arrays/<sha256>.raw`` holds little-endian elements in C order; shape and dtype are those of the
case's problem: q, o and yardstick (torch's own output) [B, H, Sq, D], k and v [B, Hkv, Skv, D]; lse is float32
[B, H, Sq].
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import stat
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

FORMAT = 3
"""2: the limit on the rows' root mean square, exact elements, ignored rows, the original contract. 3: a log-sum-exp."""
READS = (2, FORMAT)
"""Format 2 is 3 without a log-sum-exp. Bundles of another format are verified by the verify.py that lies in them."""
MAX_BYTES = 2 << 30
"""More than this, packed or unpacked, is refused rather than read."""
TOLERANCE = 1e-6
"""Relative difference of figures re-derived on another machine: the order of float64 sums, nothing else."""
NOISE = 1e-12
"""What those sums may differ by beside the largest element, where the figure itself is next to nothing."""

Members = dict[str, bytes]
_MAGIC = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + struct.pack("<H", 52) + b"SL" + struct.pack("<H", 48) + b"sdpalab bundle 1"


class NotABundleError(ValueError):
    """What was given is no bundle at all; the message is one sentence."""


@dataclass
class Outcome:
    """What was found: ``findings`` are reasons to reject, ``summary`` says what was re-derived."""

    findings: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """True if nothing was found."""
        return not self.findings


def canonical(value: Any) -> bytes:
    """The one JSON form that manifest and records have."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


# --- the archive ------------------------------------------------------------------------------------------------------


def pack(top: str, members: Mapping[str, bytes]) -> bytes:
    """The canonical ``.tar.gz`` of ``members`` under the directory ``top``.

    The tar has its members sorted, no times, no owners. A gzip stream may be changed in ways that its checksum does not
    see, so the header's extra field holds the sha256 of all that follows it; other tools ignore that field.
    """
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    tar = _tar(top, members)
    body = packer.compress(tar) + packer.flush() + struct.pack("<II", zlib.crc32(tar), len(tar) & 0xFFFFFFFF)
    return _MAGIC + hashlib.sha256(body).digest() + body


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
    head = blob[: len(_MAGIC)]
    if head != _MAGIC:
        if sum(a == b for a, b in zip(head, _MAGIC, strict=False)) < len(_MAGIC) // 2:
            raise NotABundleError("it is not a bundle: it does not begin as the archives that sdpalab writes")
        return "", {}, ["archive: its header has been changed"]
    body = blob[len(_MAGIC) + 32 :]
    if hashlib.sha256(body).digest() != blob[len(_MAGIC) : len(_MAGIC) + 32]:
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
        return top, members, ["archive: it is not in the canonical form, something is hidden in it"]
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
                    findings.append(f"{shown}: an empty directory that the manifest does not know")
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
    if not findings and _parse(members, "manifest.yaml", findings).get("name") != top:
        findings.append("manifest.yaml: the bundle's name is not that of the archive's directory")
    return members, findings


# --- manifest ---------------------------------------------------------------------------------------------------------


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Digest over all: of the manifest without this very entry, and so of every file's digest."""
    return hashlib.sha256(canonical({k: v for k, v in manifest.items() if k != "digest"})).hexdigest()


def check_manifest(members: Members) -> list[str]:
    """Findings about missing, extra and changed files, and about the manifest's own form."""
    findings: list[str] = []
    manifest = _parse(members, "manifest.yaml", findings)
    if findings:
        return findings
    if manifest.get("format") not in READS:
        known = " and ".join(map(str, READS))
        found = f"manifest.yaml: format {manifest.get('format')!r}, and this verifier knows {known}"
        return [f"{found}; the verify.py in the bundle, or of the commit in its name, is for it"]
    if manifest.get("digest") != manifest_digest(manifest):
        findings.append("manifest.yaml: its digest over all is not that of what it says")
    files: Mapping[str, Any] = manifest.get("files") or {}
    findings += [f"{name}: in the manifest, and missing" for name in sorted(set(files) - set(members))]
    findings += [
        f"{name}: not in the manifest" for name in sorted(set(members) - set(files)) if name != "manifest.yaml"
    ]
    for name in sorted(set(files) & set(members)):
        said = {"sha256": hashlib.sha256(members[name]).hexdigest(), "size": len(members[name])}
        if files[name] != said:
            findings.append(f"{name}: its bytes are not those of the manifest")
        if name.startswith("arrays/") and name != f"arrays/{said['sha256']}.raw":
            findings.append(f"{name}: an array's name is the digest of its bytes, and this one's is not")
    needed = {"report.html", "environment.json", "floors.json", "verify.py"} - set(files)
    findings += [f"{name}: every bundle has one, and this one has not" for name in sorted(needed)]
    return findings


def _parse(members: Members, name: str, findings: list[str]) -> dict[str, Any]:
    """A JSON member in canonical form; anything else is a finding and gives {}."""
    try:
        value = json.loads(members[name].decode("ascii"))
        if isinstance(value, dict) and canonical(value) == members[name]:
            return value
    except (KeyError, ValueError, RecursionError):
        pass
    findings.append(f"{name}: missing, or not JSON in canonical form")
    return {}


# --- the rule: arrays to errors, limits and status --------------------------------------------------------------------

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
LEAST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}
LEAST_SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-133}
FLOAT8, FLOAT8_MAX = "float8_e4m3fn", 448.0
FACTORS = {"rel_l2": 1.5, "rms_row_rel_l2": 1.5, "worst_row_rel_l2": 2.0}
"""A limit is this times the error of the intended numerics."""
LIMITED = ("max_abs", *FACTORS)
ORIGINAL_CONTRACT = {"max_abs": 0.06, "rel_l2": 1e-3}
UNDECLARED = {
    "accumulate": "float32",
    "probabilities": "problem",
    "probability_scale": 1.0,
    "quantised": None,
    "normalise": "either",
}
"""What a candidate that declares no numerics is held to."""
Problem = Mapping[str, Any]


def decode(raw: bytes, shape: tuple[int, ...], dtype: str) -> Any:
    """float32 array of ``shape`` from little-endian bytes of float32, float16 or bfloat16.

    Raises
    ------
    ValueError
        If their number is wrong.
    """
    size = (4 if dtype == "float32" else 2) * math.prod(shape)
    if len(raw) != size:
        raise ValueError(f"{len(raw)} bytes, and {'x'.join(map(str, shape))} {dtype} has {size}")
    if dtype == "float32":
        return np.frombuffer(raw, "<f4").reshape(shape)
    if dtype == "float16":
        return np.frombuffer(raw, "<f2").astype(np.float32).reshape(shape)
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)


def rounded(values: Any, dtype: str) -> Any:
    """float32 ``values`` rounded to nearest even in ``dtype``, and back as float32; float8 has no more than 448."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.asarray(values, np.float32)
        if dtype == "float32":
            return single
        if dtype == "float16":
            return single.astype(np.float16).astype(np.float32)
    if dtype == FLOAT8:
        # Four significant bits down to 2**-6, and below it multiples of 2**-9.
        quantum = np.exp2(np.maximum(np.frexp(single)[1] - 1, -6) - 3).astype(np.float32)
        return np.clip(np.rint(single / quantum) * quantum, -FLOAT8_MAX, FLOAT8_MAX)
    bits = single.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(single), nearest.view(np.float32), single)


def judged_rows(q: Any, k: Any, v: Any) -> Any:
    """Rows [B, H, Sq] that are judged: Q of the row, and all of K and V of its head, are finite."""
    heads = np.isfinite(k).all(axis=(2, 3)) & np.isfinite(v).all(axis=(2, 3))
    return np.isfinite(q).all(axis=3) & np.repeat(heads, q.shape[1] // k.shape[1], axis=1)[:, :, None]


def scores_of(q: Any, k: Any, problem: Problem, product: Callable[[Any, Any], Any] = np.matmul) -> Iterator[Any]:
    """(b, h, rows), K/V head, and scores [rows, Skv] in float64, -inf if hidden; what is not finite counts as 0."""
    for b, h, start in np.ndindex(problem["batch"], problem["heads"], -(-problem["seq_q"] // 1024)):
        rows = slice(start * 1024, min((start + 1) * 1024, problem["seq_q"]))
        head = h // (problem["heads"] // problem["kv_heads"])
        left, right = (np.nan_to_num(x.astype(np.float64), posinf=0, neginf=0) for x in (q[b, h, rows], k[b, head]))
        scores = product(left, right.T) * problem["scale"]
        if problem["causal"]:
            seen = np.arange(problem["seq_kv"]) <= np.arange(rows.start, rows.stop)[:, None]
            scores = np.where(seen, scores, -np.inf)
        yield (b, h, rows), (b, head), scores


def weights_of(q: Any, k: Any, problem: Problem, product: Callable[[Any, Any], Any] = np.matmul) -> Iterator[Any]:
    """(b, h, rows), K/V head, and exp(score - largest score) [rows, Skv]."""
    for place, head, scores in scores_of(q, k, problem, product):
        yield place, head, np.exp(scores - scores.max(axis=1, keepdims=True))


def reference_of(q: Any, k: Any, v: Any, problem: Problem) -> Any:
    """Attention in float64, [B, H, Sq, D]; NaN in rows that are not judged."""
    exact, values = np.empty(q.shape, np.float64), np.nan_to_num(v.astype(np.float64), posinf=0, neginf=0)
    for place, head, weights in weights_of(q, k, problem):
        exact[place] = weights @ values[head] / weights.sum(axis=1, keepdims=True)
    if not np.isfinite(exact).all():
        raise ValueError("the scores are too large for float64")
    return np.where(judged_rows(q, k, v)[..., None], exact, np.nan)


def dequantised(x: Any, rows: int) -> Any:
    """What float8 makes of ``x`` [B, H, S, D] with a scale of max|x| / 448 for each ``rows`` rows (0: for a head)."""
    out = np.empty(x.shape, np.float64)
    for start in range(0, x.shape[2], rows or x.shape[2]):
        part = slice(start, start + (rows or x.shape[2]))
        scale = np.abs(x[:, :, part]).max(axis=(2, 3), keepdims=True) / np.float32(FLOAT8_MAX)
        scale = np.where(scale > 0, scale, np.float32(1))
        out[:, :, part] = rounded(x[:, :, part] / scale, FLOAT8).astype(np.float64) * scale
    return out


def half_product(left: Any, right: Any) -> Any:
    """left @ right, the sum rounded to float16 after every 16 terms."""
    total = np.zeros((left.shape[0], right.shape[1]), np.float16)
    for start in range(0, left.shape[1], 16):
        total = (total + left[:, start : start + 16] @ right[start : start + 16]).astype(np.float16)
    return total.astype(np.float64)


def intended_of(q: Any, k: Any, v: Any, problem: Problem, numerics: Mapping[str, Any]) -> Any:
    """Attention as ``numerics`` declares it: weights rounded to the type of P, sums to float32, the result to 16 bits.

    ``normalise`` is ``before`` (the weights are divided by their sum before they are rounded) or ``after``.
    """
    q, k, v = (np.where(np.isfinite(x), x, np.float32(0)) for x in (q, k, v))
    if numerics["quantised"] is not None:
        q, k, v = (dequantised(x, numerics["quantised"]["rows"]) for x in (q, k, v))
    p_type = problem["dtype"] if numerics["probabilities"] == "problem" else numerics["probabilities"]
    factor = np.float32(numerics["probability_scale"])
    product = half_product if numerics["accumulate"] == "float16" else np.matmul
    out = np.empty(q.shape, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for place, head, weights in weights_of(q, k, problem, product):
            p = weights.astype(np.float32)
            total = p.astype(np.float64).sum(axis=1, keepdims=True).astype(np.float32)
            if numerics["normalise"] == "before":
                p, total = p / total, np.ones_like(total)
            summed = product(rounded(p * factor, p_type).astype(np.float64), v[head].astype(np.float64))
            out[place] = rounded(summed.astype(np.float32) / (total * factor), problem["dtype"])
    return out


def fixed_elements(q: Any, k: Any, v: Any, problem: Problem, any_count: bool) -> tuple[Any, Any]:
    """The elements of the output that the inputs fix bit for bit: their values and where they are, [B, H, Sq, D].

    Two kinds of rows have them. Where one key outweighs all others together, the row of O is that row of V; where all
    scores are 0 and V are integers, it is their exact mean (of a power of two of keys, unless ``any_count``). Of
    either, an element is fixed if all that float32 arithmetic may make of it rounds to one number.
    """
    expected, mask = np.zeros(q.shape, np.float32), np.zeros(q.shape, bool)
    judged = judged_rows(q, k, v)
    q, k, v = (np.where(np.isfinite(x), x, np.float32(0)).astype(np.float64) for x in (q, k, v))
    last = np.full(problem["seq_q"], problem["seq_kv"] - 1)
    if problem["causal"]:
        last = np.minimum(np.arange(problem["seq_q"]), last)
    countable = np.array([any_count or not n & (n - 1) for n in (last + 1).tolist()])
    for (b, h, rows), head, weights in weights_of(q, k, problem):
        values, keys, end = v[head], k[head], last[rows]
        # level rows
        level = (q[b, h, rows] == 0).all(axis=1) | np.logical_and.accumulate((keys == 0).all(axis=1))[end]
        level = (level | (problem["scale"] == 0)) & countable[rows]
        whole = np.logical_and.accumulate(values == np.rint(values), axis=0)[end]
        whole &= np.cumsum(np.abs(values), axis=0)[end] <= 2.0**24
        mean = np.cumsum(values, axis=0)[end] / (end + 1)[:, None]
        largest = np.maximum.accumulate(np.abs(values), axis=0)[end]
        reach = 2.0**-14 * np.abs(mean) + 2.0**-18 * largest + 2.0**-126
        # dominated rows
        rest, chosen = weights.sum(axis=1) - 1, values[weights.argmax(axis=1)]
        score = abs(problem["scale"]) * np.sqrt(np.sum(q[b, h, rows] ** 2, axis=1) * np.sum(keys**2, axis=1).max())
        rest = rest * 2 * np.exp(np.minimum(2.0**-21 * problem["head_dim"] * score, 100))
        near = rest[:, None] * (np.abs(values).max(axis=0) + np.abs(chosen)) + 2.0**-126 * (chosen != 0)
        near = near + np.abs(chosen) * (2.0**-14 + 2.0**-23 * score)[:, None]
        for value, radius, holds in (
            (mean, reach, whole & level[:, None]),
            (chosen, near, np.broadcast_to((rest < 2.0**-14)[:, None], chosen.shape)),
        ):
            low, high = (rounded(value + side * radius, problem["dtype"]) for side in (-1, 1))
            fixed = holds & (low == high) & judged[b, h, rows][:, None]
            expected[b, h, rows] = np.where(fixed, low, expected[b, h, rows])
            mask[b, h, rows] |= fixed
    return expected, mask


def row_errors(out: Any, exact: Any, dtype: str) -> Any:
    """Relative L2 error of each row [B, H, Sq], NaN where it is not judged.

    No row counts as smaller than 1/256 of its head's typical row.
    """
    norms = np.sqrt(np.sum(exact**2, axis=-1))
    count = np.count_nonzero(~np.isnan(norms), axis=-1, keepdims=True)
    typical = np.sqrt(np.nansum(norms**2, axis=-1, keepdims=True) / np.maximum(count, 1))
    least = math.sqrt(exact.shape[-1]) * LEAST_SUBNORMAL[dtype]
    return np.sqrt(np.sum((out - exact) ** 2, axis=-1)) / np.maximum(np.maximum(norms, typical / 256), least)


def errors_of(out: Any, exact: Any, dtype: str, fixed: tuple[Any, Any] | None = None) -> dict[str, Any]:
    """The figures of an errors record: distance of ``out`` from ``exact``, elements that are not finite left out.

    ``fixed``: what :func:`fixed_elements` gives, or None if nothing has to be exact.
    """
    judged = ~np.isnan(exact)
    clean = np.where(np.isfinite(out), out, exact)
    difference, rows = np.nan_to_num(np.abs(clean - exact)), row_errors(clean, exact, dtype)
    norm = float(np.sqrt(np.nansum(exact**2)))
    whole = max(norm, math.sqrt(exact.size) * LEAST_SUBNORMAL[dtype])
    return {
        "max_abs": float(difference.max()),
        "max_abs_index": [int(n) for n in np.unravel_index(int(difference.argmax()), difference.shape)],
        "rel_l2": float(np.sqrt(np.sum(difference**2))) / whole,
        "rms_row_rel_l2": float(np.sqrt(np.nanmean(rows**2))),
        "worst_row_rel_l2": float(np.nanmax(rows)),
        "worst_row": [int(n) for n in np.unravel_index(int(np.nanargmax(rows)), rows.shape)],
        "not_finite": int(np.count_nonzero(judged & ~np.isfinite(out))),
        "exact": int(np.count_nonzero(fixed[1])) if fixed else 0,
        "exact_wrong": int(np.count_nonzero(fixed[1] & (out != fixed[0]))) if fixed else 0,
        "ignored_rows": int(np.count_nonzero(np.isnan(rows))),
    }


def limits_of(exact: Any, yardstick: Mapping[str, Any], intended: Mapping[str, Any], dtype: str) -> dict[str, float]:
    """The figures of a limits record, from the errors of torch's output and of the intended numerics."""
    floor = UNIT_ROUNDOFF[dtype] / 2
    exponent = math.frexp(max(float(np.nanmax(np.abs(exact))), LEAST_NORMAL[dtype]))[1]
    largest = max(yardstick["max_abs"], intended["max_abs"])
    return {
        "max_abs": 2 * largest + UNIT_ROUNDOFF[dtype] * 2.0 ** (exponent - 1),
        **{name: factor * max(intended[name], floor) for name, factor in FACTORS.items()},
        "yardstick_max_abs": yardstick["max_abs"],
        **{f"intended_{name}": intended[name] for name in LIMITED},
    }


def lse_of(q: Any, k: Any, v: Any, problem: Problem, numerics: Mapping[str, Any]) -> tuple[Any, Any]:
    """The log-sum-exp of each row [B, H, Sq] in float64, and how far float32 arithmetic may be from it.

    The latter is the sum of what each step may be off by. ``size`` is the largest |scale| sum |q k| over the ``seen``
    keys: D truncated additions of a dot product and 16 roundings of it; two approximate exponentials; an addition and a
    share of a rescale for each key; an approximate logarithm of up to 256 weights a key; four roundings of the result.
    """
    judged = judged_rows(q, k, v)
    q, k = (np.where(np.isfinite(x), x, np.float32(0)) for x in (q, k))
    if numerics["quantised"] is not None:
        q, k = (dequantised(x, numerics["quantised"]["rows"]) for x in (q, k))
    terms = problem["head_dim"]
    dot = terms * (2.0**-23 if numerics["quantised"] is None else 2.0**-13)
    dot += -(-terms // 16) * 2.0**-11 if numerics["accumulate"] == "float16" else 0.0
    reference, size = np.empty(judged.shape), np.empty(judged.shape)
    for place, _, scores in scores_of(q, k, problem):
        most = scores.max(axis=1)
        reference[place] = most + np.log(np.exp(scores - most[:, None]).sum(axis=1))
    for place, _, sizes in scores_of(np.abs(q), np.abs(k), {**problem, "scale": abs(problem["scale"])}):
        size[place] = sizes.max(axis=1)
    seen = np.full(problem["seq_q"], problem["seq_kv"])
    if problem["causal"]:
        seen = np.minimum(np.arange(1, problem["seq_q"] + 1), seen)
    limit = (dot + 2.0**-20) * size + 2.0**-21 + 2.0**-23 * seen
    limit = limit + 2.0**-22 * (8 + np.log2(seen) + np.abs(reference))
    return np.where(judged, reference, np.nan), np.where(judged, limit, np.nan)


def lse_errors_of(lse: Any, reference: Any, limit: Any, row: list[int] | None = None) -> dict[str, Any]:
    """The figures of a record of the log-sum-exp, at the row that uses most of its limit.

    ``row``: one that is said to be it; it is, if none uses more than that.
    """
    judged, finite = ~np.isnan(reference), np.isfinite(lse)
    error = np.where(judged & finite, np.abs(lse.astype(np.float64) - reference), 0.0)
    share = np.where(judged, error / limit, -1.0)
    worst = [int(n) for n in np.unravel_index(int(share.argmax()), share.shape)]
    if row is not None and _is_at(share, row, float(share.max()), 2.0**23):
        worst = row
    at = tuple(worst)
    not_finite = int(np.count_nonzero(judged & ~finite))
    return {"error": float(error[at]), "limit": float(limit[at]), "row": worst, "not_finite": not_finite}


def status_of(errors: Mapping[str, Any], limits: Mapping[str, float], lse: Mapping[str, Any] | None = None) -> str:
    """NOT_FINITE, INCORRECT or PASSED: what the numbers alone say; ``lse``: those of the log-sum-exp."""
    if errors["not_finite"]:
        return "NOT_FINITE"
    if errors["exact_wrong"] or not all(errors[name] <= limits[name] for name in LIMITED):
        return "INCORRECT"
    if lse is not None and lse["not_finite"]:
        return "NOT_FINITE"
    return "PASSED" if lse is None or lse["error"] <= lse["limit"] else "INCORRECT"


def keeps_original_contract(errors: Mapping[str, Any]) -> bool:
    """What the contract of 0.06 and 1e-3 says; it decides nothing."""
    return not errors["not_finite"] and all(errors[name] <= most for name, most in ORIGINAL_CONTRACT.items())


def knows_numerics(numerics: Mapping[str, Any]) -> bool:
    """Whether there is a rule for these numerics, as a kernel may declare them."""
    p_type, factor, quantised = (numerics[name] for name in ("probabilities", "probability_scale", "quantised"))
    scaled = 0 < factor <= FLOAT8_MAX and float(rounded(factor, FLOAT8)) == factor
    return (
        set(numerics) == set(UNDECLARED)
        and numerics["accumulate"] in ("float32", "float16")
        and p_type in ("problem", "float32", "float16", "bfloat16", FLOAT8)
        and (scaled if p_type == FLOAT8 else factor == 1)
        and (quantised is None or (set(quantised) == {"dtype", "rows"} and quantised["dtype"] == FLOAT8))
        and (quantised is None or (type(quantised["rows"]) is int and quantised["rows"] >= 0))
        and numerics["normalise"] in ("after", "before")
    )


def normal_inputs(problem: Mapping[str, Any], seed: int) -> Iterator[tuple[str, Any]]:
    """The lab's ``normal`` inputs: Philox bits keyed by a digest of what is asked for, then Box-Muller in float64."""
    label = json.dumps(["normal", problem, seed], sort_keys=True)
    for name in "qkv":
        shape = array_shape(name, problem)
        half = (math.prod(shape) + 1) // 2
        key = hashlib.sha256(f"{name}:{label}".encode()).digest()[:16]
        raw = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(2 * half)
        first, second = (((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53).reshape(2, half)
        radius, angle = np.sqrt(-2 * np.log(first)), 2 * math.pi * second
        flat = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[: math.prod(shape)]
        if problem["dtype"] == "float16":
            yield name, flat.astype(np.float16).astype(np.float32).reshape(shape)
        else:
            yield name, rounded(flat, "bfloat16").reshape(shape)


def array_shape(name: str, problem: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of the array ``name`` of a case: k and v have the keys' shape, lse one number a row, all others q's."""
    heads, seq = ("kv_heads", "seq_kv") if name in ("k", "v") else ("heads", "seq_q")
    shape = (problem["batch"], problem[heads], problem[seq], problem["head_dim"])
    return shape[:3] if name == "lse" else shape


# --- records ----------------------------------------------------------------------------------------------------------

KEYS = {
    "attempt": "kernel config idea builds verdict failure figures",
    "verdict": "kernel config device level seed status passed reason original_contract cases",
    "case": "name problem inputs seed status reason errors limits digests run original_contract",
    "problem": "batch heads seq_q head_dim kv_heads seq_kv dtype causal scale",
    "build": "directory name module key entry arch compiler command compile_seconds cache_hit sources files "
    "resources gate",
    "resources": "arch registers stack_bytes spill_bytes reported_spill_bytes static_shared_bytes "
    "dynamic_shared_bytes constant_bytes threads_per_block blocks_per_sm warps_per_sm limiter sass main_loop "
    "tensor_share",
    "gate": "rules reason ok",
    "rule": "name value limit kind ok",
    "figure": "name value unit kind gpu source",
}
"""Every field of every record: no more, no less."""
STATUSES = (
    *(
        "PASSED",
        "INCORRECT",
        "NOT_FINITE",
        "NONDETERMINISTIC",
        "STALE",
        "INCONSISTENT",
        "INPUT_CHANGED",
        "BAD_OUTPUT",
        "HAZARD",
    ),
    *("UNSUPPORTED", "BUILD_FAILED", "CRASHED", "TIMED_OUT", "INFRA_ERROR"),
)
SPEED_UNITS = ("s", "ms", "us", "ns", "TFLOPS", "GFLOPS", "GB/s", "TB/s", "x")
TWELVE = [
    (shape, seed) for shape in ((1, 2, 64, 64), (1, 4, 128, 64), (1, 8, 512, 64), (2, 2, 64, 64)) for seed in (0, 1, 2)
]
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, struct.error)
"""What comes up where a record is not as it should be."""
_FIXED = {"manifest.yaml", "report.html", "environment.json", "floors.json", "verify.py", "harness.diff"}


class _Checker:
    """Goes through the records of one bundle, collecting findings and which files they account for."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.outcome = Outcome()
        self.used = set(_FIXED)
        self.oracles: dict[str, tuple[Any, Any, dict[str, float]]] = {}
        self.lse_oracles: dict[str, tuple[Any, Any]] = {}

    def find(self, where: str, what: str) -> None:
        self.outcome.findings.append(f"{where}: {what}")

    def same_keys(self, where: str, kind: str, record: Mapping[str, Any]) -> None:
        if set(record) != set(KEYS[kind].split()):
            self.find(where, f"the fields of its {kind} are not those of the format")

    def run(self) -> Outcome:
        names = sorted(name for name in self.members if name.startswith("records/"))
        if not names:
            self.find("records", "there is none")
        for name in ("environment.json", *names):
            self.used.add(name)
            record = _parse(self.members, name, self.outcome.findings)
            check = self.check_attempt if name in names else self.check_environment
            try:
                check(name, record)
            except MALFORMED as error:
                self.find(name, f"malformed ({type(error).__name__}: {error})")
        for name in sorted(set(self.members) - self.used):
            self.find(name, "no record accounts for it")
        return self.outcome

    def check_environment(self, where: str, record: Mapping[str, Any]) -> None:
        findings, harness = self.outcome.findings, record["harness"]
        manifest = _parse(self.members, "manifest.yaml", findings)
        floors = _parse(self.members, "floors.json", findings)["gpus"]
        commit, dirty = harness["commit"], harness["dirty"]
        start = f"sdpalab-{(commit or 'nogit')[:12]}{'-dirty' if dirty else ''}-"
        if not str(manifest.get("name")).startswith(start):
            self.find(where, f"the bundle's name does not begin with {start}")
        if dirty != ("harness.diff" in self.members):
            self.find("harness.diff", "must be there if, and only if, the harness was dirty")
        for floor in floors:
            self.check_figures("floors.json", [*floor["floors"], *floor["peers"]], passed=True)

    def check_attempt(self, where: str, record: Mapping[str, Any]) -> None:
        self.same_keys(where, "attempt", record)
        gates = [self.check_build(f"{where} build {build['name']}", build) for build in record["builds"]]
        built = {build["files"]["kernel.ptx"] for build in record["builds"]}
        verdict = record["verdict"]
        passed = verdict is not None and verdict["status"] == "PASSED"
        self.check_figures(where, record["figures"], passed)
        gate = {True: "kept", False: "BROKEN"}[all(gates)] if gates else "none"
        label = " ".join(filter(None, (record["kernel"], record["config"])))
        if verdict is None:
            if not record["failure"]:
                self.find(where, "neither a verdict nor a failure that says why")
            self.outcome.summary.append(f"{label}: not judged ({record['failure']}); gate {gate}")
            return
        self.same_keys(where, "verdict", verdict)
        derived = sum(self.check_case(f"{where} case {case['name']}", case, built) for case in verdict["cases"])
        declared = {canonical(case["run"]["numerics"]) for case in verdict["cases"] if "numerics" in case["run"]}
        if len(declared) > 1:
            self.find(where, "its cases declare different numerics")
        if len({"lse" in case["digests"] for case in verdict["cases"] if case["errors"]}) > 1:
            self.find(where, "some of its cases have a log-sum-exp, and others have none")
        bad = [case["status"] for case in verdict["cases"] if case["status"] != "PASSED"]
        status = next((s for s in bad if s != "INFRA_ERROR"), "INFRA_ERROR")
        status = status if bad or not verdict["cases"] else "PASSED"
        if verdict["status"] != status or verdict["passed"] is not (status == "PASSED"):
            self.find(where, f"the verdict says {verdict['status']}, and its cases say {status}")
        contract = sum(case["original_contract"] is True for case in verdict["cases"])
        if verdict["original_contract"] != contract:
            self.find(where, f"{contract} of its cases keep the original contract, not {verdict['original_contract']}")
        judged = [
            (tuple(case["problem"][size] for size in ("batch", "heads", "seq_q", "head_dim")), case["seed"])
            for case in verdict["cases"]
            if case["inputs"] == "normal" and _is_plain(case["problem"]) and case["status"] == "PASSED"
        ]
        twelve = sum(pair in judged for pair in TWELVE)
        self.outcome.summary.append(
            f"{label}: {verdict['status']} on {verdict['device']}; {derived} of {len(verdict['cases'])} cases "
            f"re-derived from raw arrays; {twelve} of the 12 contract cases passed, {contract} of all cases keep the "
            f"original contract; gate {gate}; declared numerics "
            + ", ".join(f"{k} {v}" for text in declared for k, v in json.loads(text).items())
        )

    def check_figures(self, where: str, figures: list[Mapping[str, Any]], passed: bool) -> None:
        for figure in figures:
            self.same_keys(where, "figure", figure)
            speed, kind, name = figure["unit"] in SPEED_UNITS, figure["kind"], figure["name"]
            if kind not in ("measured", "simulated", "modelled", "published"):
                self.find(where, f"figure {name}: {kind} is no kind of figure")
            if kind == "simulated" and speed:
                self.find(where, f"figure {name}: what is simulated has no time and no speed")
            if speed and not passed:
                self.find(where, f"figure {name}: a speed without PASSED")
            if not (figure["gpu"] if kind == "measured" else kind == "simulated" or figure["source"]):
                self.find(where, f"figure {name}: it does not say where it was measured, or where it comes from")

    def check_build(self, where: str, build: Mapping[str, Any]) -> bool:
        """Checks one build; True if its gate is kept, or it has none."""
        self.same_keys(where, "build", build)
        for name, digest in build["files"].items():
            path = f"{build['directory']}/{name}"
            self.used.add(path)
            if hashlib.sha256(self.members.get(path, b"")).hexdigest() != digest:
                self.find(where, f"{path} is missing or is not the file that was built")
        kept = {name.removeprefix("include/"): digest for name, digest in build["files"].items()}
        for name, digest in build["sources"].items():
            if kept.get(name, digest) != digest or (name == build["module"] and name not in kept):
                self.find(where, f"{name} is not the source that was compiled")
        resources, gate = build["resources"], build["gate"]
        if resources is not None:
            self.same_keys(where, "resources", resources)
            read_off = cubin_resources(self.members.get(f"{build['directory']}/kernel.cubin", b""), build["entry"])
            for name, value in read_off.items():
                if resources[name] != value:
                    self.find(where, f"{name} is {resources[name]} in the record and {value} in the cubin")
        if gate is None:
            return True
        if resources is None:
            self.find(where, "a gate without resources")
            return False
        self.same_keys(where, "gate", gate)
        values = dict(resources, shared_bytes=resources["static_shared_bytes"] + resources["dynamic_shared_bytes"])
        for name in {"registers", "shared_bytes", "spill_bytes", "stack_bytes", "blocks_per_sm"} - {
            rule["name"] for rule in gate["rules"]
        }:
            self.find(where, f"the gate has no rule for {name}")
        for rule in gate["rules"]:
            self.same_keys(where, "rule", rule)
            value, limit, least = values[rule["name"]], rule["limit"], rule["kind"] == "at least"
            if least is not (rule["name"] == "blocks_per_sm"):
                self.find(where, f"gate rule {rule['name']} is on the wrong side of its limit")
            if rule["value"] != value or rule["ok"] is not (value >= limit if least else value <= limit):
                self.find(where, f"gate rule {rule['name']}: {value} against {limit} is not what the record says")
        ok = all(rule["ok"] for rule in gate["rules"])
        if gate["ok"] is not ok:
            self.find(where, "the gate's outcome is not that of its rules")
        return ok

    def check_case(self, where: str, case: Mapping[str, Any], built: set[str]) -> bool:
        """Checks one case; True if it was re-derived from raw arrays."""
        self.same_keys(where, "case", case)
        self.same_keys(where, "problem", case["problem"])
        if case["status"] not in STATUSES:
            self.find(where, f"{case['status']!r} is no status")
        if case["status"] != "PASSED" and not case["reason"]:
            self.find(where, f"{case['status']} without a reason")
        kept = keeps_original_contract(case["errors"]) if case["errors"] else None
        if case["original_contract"] is not kept:
            self.find(where, f"by its errors the original contract is {kept}, not {case['original_contract']}")
        ran = case["run"].get("ptx_sha256", [])
        simulated = built or str(case["run"].get("device", "")).startswith("simulator")
        if set(ran) - built or (case["status"] == "PASSED" and simulated and not ran):
            self.find(where, "it does not say that it ran the PTX in this bundle")
        paths = {name: f"arrays/{digest}.raw" for name, digest in case["digests"].items()}
        self.used.update(paths.values())
        missing = [name for name in ("q", "k", "v", "o", "yardstick") if paths.get(name, "") not in self.members]
        if "o_second" in case["digests"] and case["status"] == "PASSED":
            self.find(where, "PASSED, and its two runs gave different outputs")
        if case["status"] not in ("PASSED", "INCORRECT", "NOT_FINITE"):
            return False
        if missing:
            self.find(where, f"{case['status']} without the array {missing[0]} that shows it")
            return False
        problem = case["problem"]
        arrays = {
            name: decode(
                self.members[path], array_shape(name, problem), "float32" if name == "lse" else problem["dtype"]
            )
            for name, path in paths.items()
        }
        exact, fixed, limits = self.oracle_of(where, case, arrays)
        errors = errors_of(arrays["o"], exact, problem["dtype"], fixed)
        scale = float(np.nanmax(np.abs(exact)))
        difference = np.abs(arrays["o"] - exact)
        rows = row_errors(arrays["o"], exact, problem["dtype"])
        for name, place, values in (("max_abs", "max_abs_index", difference), ("worst_row_rel_l2", "worst_row", rows)):
            if _is_at(values, case["errors"][place], errors[name], scale):
                errors[place] = case["errors"][place]
        said = dict(case["errors"])
        lse = self.check_lse(where, case, arrays, said.pop("lse", None))
        self.compare(where, "errors", said, errors, scale)
        self.compare(where, "limits", case["limits"], limits, scale)
        status = status_of(errors, limits, lse)
        if case["status"] != status:
            self.find(where, f"the record says {case['status']}, and its arrays say {status}")
        return True

    def check_lse(
        self, where: str, case: Mapping[str, Any], arrays: Mapping[str, Any], said: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """Compares what a case says of its log-sum-exp with the array; what that gives, or None without one."""
        if (said is None) is not ("lse" not in arrays):
            self.find(where, "a log-sum-exp without figures, or figures without one")
        if said is None or "lse" not in arrays:
            return None
        numerics, problem = case["run"]["numerics"], case["problem"]
        key = json.dumps([[case["digests"][name] for name in "qkv"], problem, numerics], sort_keys=True)
        if key not in self.lse_oracles:
            self.lse_oracles[key] = lse_of(arrays["q"], arrays["k"], arrays["v"], problem, numerics)
        reference, limit = self.lse_oracles[key]
        found = lse_errors_of(arrays["lse"], reference, limit, list(said["row"]))
        # The sums behind the reference are larger than the limit by as much as float32 is coarse.
        self.compare(where, "errors lse", said, found, 2.0**23 * float(np.nanmax(limit)))
        return found

    def oracle_of(
        self, where: str, case: Mapping[str, Any], arrays: Mapping[str, Any]
    ) -> tuple[Any, Any, dict[str, float]]:
        """Float64 reference of a case, the elements that are fixed, and the limits; kept for reuse."""
        problem, numerics = case["problem"], case["run"]["numerics"]
        inputs = [case["digests"][name] for name in ("q", "k", "v", "yardstick")]
        key = json.dumps([inputs, problem, numerics, case["inputs"], case["seed"]], sort_keys=True)
        if key in self.oracles:
            return self.oracles[key]
        q, k, v = (arrays[name] for name in "qkv")
        if case["inputs"] == "normal":
            for name, made in normal_inputs(problem, case["seed"]):
                # another math library may round one element in 10**12 the other way
                if np.count_nonzero(arrays[name] != made) > 1 + made.size // 10**6:
                    self.find(where, f"{name} is not what normal inputs of seed {case['seed']} are")
        declares = case["run"].get("ptx_sha256")
        if not (knows_numerics(numerics) if declares else numerics == UNDECLARED):
            self.find(where, f"there is no rule for the numerics that it declares, {numerics}")
        dtype, order = problem["dtype"], numerics["normalise"]
        exact = reference_of(q, k, v, problem)
        open_orders = ("after", "before") if order == "either" else (order,)
        declared = [{**numerics, "normalise": each} for each in open_orders]
        own = [errors_of(intended_of(q, k, v, problem, each), exact, dtype) for each in declared]
        worst = {name: max(errors[name] for errors in own) for name in LIMITED}
        limits = limits_of(exact, errors_of(arrays["yardstick"], exact, dtype), worst, dtype)
        asked = numerics["accumulate"] == "float32" and numerics["quantised"] is None
        fixed = fixed_elements(q, k, v, problem, any_count=order == "after") if asked else None
        self.oracles[key] = exact, fixed, limits
        return self.oracles[key]

    def compare(self, where: str, what: str, said: Mapping[str, Any], found: Mapping[str, Any], scale: float) -> None:
        """Compares the figures of a record with those re-derived; ``scale`` is the largest element of the reference."""
        if set(said) != set(found):
            self.find(where, f"the fields of its {what} are not those of the format")
            return
        for name, value in found.items():
            unit = scale if name.endswith("max_abs") or name == "error" else 1.0
            if said[name] != value and not (isinstance(value, float) and _near(said[name], value, unit)):
                self.find(where, f"{what} {name} is {said[name]} in the record and {value} from the arrays")


def _near(said: float, found: float, scale: float) -> bool:
    return math.isclose(said, found, rel_tol=TOLERANCE, abs_tol=NOISE * scale)


def _is_at(values: Any, place: list[int], largest: float, scale: float) -> bool:
    """True if ``place`` is one where the largest value is: of several alike, another machine may name another."""
    inside = len(place) == values.ndim and all(0 <= i < n for i, n in zip(place, values.shape, strict=True))
    return inside and _near(float(values[tuple(place)]), largest, scale)


def _is_plain(problem: Mapping[str, Any]) -> bool:
    """True if nothing of the problem departs from the contract's cases but its four sizes."""
    same = problem["kv_heads"] == problem["heads"] and problem["seq_kv"] == problem["seq_q"]
    scale = math.isclose(problem["scale"], 1 / math.sqrt(problem["head_dim"]), rel_tol=1e-12)
    return same and scale and problem["dtype"] == "float16" and problem["causal"] is False


def cubin_resources(cubin: bytes, entry: str) -> dict[str, int]:
    """Registers, stack and static shared memory of ``entry``, read from the ELF file that the compiler wrote.

    Registers and frame are the attributes 0x2f (REGCOUNT) and 0x11 (FRAME_SIZE) of section ``.nv.info``; static shared
    memory is the size of ``.nv.shared.<entry>``, less the system's 1 KiB from sm_90 on.

    Raises
    ------
    ValueError
        If it is no such file, or has no such entry.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("the cubin is no 64-bit ELF file")
    offset, size, count, strings = (*struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<HHH", cubin, 58))
    sections = [struct.unpack_from("<IIQQQQII", cubin, offset + i * size) for i in range(count)]

    def text(table: int, at: int) -> str:
        begin = sections[table][4] + at
        return cubin[begin : cubin.index(b"\0", begin)].decode()

    def body(section: tuple[int, ...]) -> bytes:
        return cubin[section[4] : section[4] + section[5]]

    named = {text(strings, section[0]): section for section in sections}
    symbols = named[".symtab"]
    names = [text(symbols[6], name) for (name,) in struct.iter_unpack("<I20x", body(symbols))]
    shared = named[f".nv.shared.{entry}"][5] if f".nv.shared.{entry}" in named else 0
    found = {"static_shared_bytes": shared - (1024 if shared and ".nv.shared.reserved.0" in named else 0)}
    info, at = body(named[".nv.info"]), 0
    while at < len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        if form == 4 and attribute in (0x2F, 0x11):
            symbol, value = struct.unpack_from("<II", info, at + 4)
            if names[symbol] == entry:
                found["registers" if attribute == 0x2F else "stack_bytes"] = value
        at += 4 + (length if form == 4 else 0)
    if set(found) != {"static_shared_bytes", "registers", "stack_bytes"}:
        raise ValueError(f"the cubin has no entry {entry}")
    return found


# --- all of it --------------------------------------------------------------------------------------------------------


def verify(path: str | os.PathLike[str]) -> Outcome:
    """Everything that is wrong with a bundle, and what was re-derived.

    Raises
    ------
    NotABundleError
        If there is no such file or directory, or it is no bundle.
    """
    members, findings = read(Path(path))
    try:
        findings = findings or check_manifest(members)
    except MALFORMED as error:
        findings = [f"manifest.yaml: malformed ({type(error).__name__}: {error})"]
    # Re-deriving from files that are not the bundle's own would only add noise.
    return Outcome(findings) if findings else _Checker(members).run()


def main(arguments: list[str]) -> int:
    """The command line: one argument, one line for each finding; returns the exit status."""
    if len(arguments) != 1:
        print("usage: python verify.py BUNDLE.tar.gz", file=sys.stderr)
        return 2
    try:
        outcome = verify(arguments[0])
    except NotABundleError as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 2
    for line in outcome.findings:
        print(f"REJECTED {line}")
    for line in outcome.summary if outcome.accepted else []:
        print(line)
    print("accepted" if outcome.accepted else f"rejected: {len(outcome.findings)} findings")
    return 0 if outcome.accepted else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
