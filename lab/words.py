"""Published results of real tensor cores against the simulator's, bit for bit.

The words are those of MATLAB-tensor-core (Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv
2512.07004; BSD-2-Clause): the folder ``model_validation`` has for each GPU and format factors, C and the GPU's result,
of sums of 4 to 32 products. Each set runs as PTX in hardware numerics, eight sums to an instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.errors import UserError
from warpsan import launch
from warpsan.numerics import rule_of

__all__ = ["PACKAGES", "WordSet", "computed", "instructions_of", "run", "word_sets"]

PACKAGES = ("numpy", "ml_dtypes", "llvmlite")
Words = NDArray[np.uint32]

TARGETS = {
    "V100": "sm_70",
    "A100": "sm_80",
    "A2": "sm_86",
    "Ada": "sm_89",
    "L40S": "sm_89",
    "H100": "sm_90a",
    "H200": "sm_90a",
    "B200": "sm_100a",
}
"""Compilation target by GPU; the names are those of the folders."""
_KINDS = {"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "E4M3": "e4m3", "E5M2": "e5m2"}
_DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
_SIDE = 8
"""Sums of one instruction: those on the diagonal of its first eight rows and columns."""


@dataclass(frozen=True)
class WordSet:
    """Sums that a GPU computed.

    Attributes
    ----------
    gpu, kind, result : str
        Such as H100, e4m3 and f32.
    a, b : ndarray [sums, K]
        Factors, in their type.
    c, d : ndarray of float32 [sums]
        C and the GPU's result; f16 results are numbers of that type.
    """

    gpu: str
    kind: str
    result: str
    a: NDArray[np.generic]
    b: NDArray[np.generic]
    c: NDArray[np.float32]
    d: NDArray[np.float32]


def word_sets(checkout: Path) -> Iterator[WordSet]:
    """The sets of a checkout of MATLAB-tensor-core.

    Raises
    ------
    UserError
        If it has none.
    """
    root = checkout / "model_validation"
    if not root.is_dir():
        raise UserError(f"{checkout} has no folder model_validation: it must be a checkout of MATLAB-tensor-core")
    for gpu in TARGETS:
        for label, kind in _KINDS.items():
            folder = root / gpu / label
            if not folder.is_dir():
                continue
            c = _floats(folder / f"c_{gpu}_fp32.txt", 2)
            factors = [_floats(folder / f"{name}_{gpu}_{label}.txt", 16) for name in "ab"]
            a, b = (values.reshape(len(c), -1).astype(_DTYPES[kind]) for values in factors)
            for result in ("f32", "f16"):
                path = folder / f"d_{gpu}_fp{result[1:]}.txt"
                if path.exists():
                    yield WordSet(gpu, kind, result, a, b, c, _floats(path, 2))


def _floats(path: Path, base: int) -> NDArray[np.float32]:
    """The float32 numbers of a file of bit patterns in hexadecimal or binary."""
    try:
        return np.array([int(word, base) for word in path.read_text().split()], np.uint32).view(np.float32)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as words: {error}") from None


def instructions_of(words: WordSet) -> tuple[str, ...]:
    """The units whose words a set has.

    The authors' programs use wmma for 16-bit factors and tf32, which is the same machine code as mma.sync, and mma.sync
    for 8-bit ones; but on sm_90 the f32 results of these are of wgmma, whose C is zero.
    """
    if words.kind in ("e4m3", "e5m2"):
        return ("wgmma",) if words.gpu in ("H100", "H200") and words.result == "f32" else ("mma",)
    if words.gpu == "V100":
        return ("wmma",)
    return ("mma",) if words.kind == "tf32" else ("wmma", "mma")


def computed(words: WordSet, unit: str) -> NDArray[np.float32]:
    """The simulator's results for a set, by an instruction of a unit."""
    depth = {4: 8, 2: 16, 1: 32}[words.a.dtype.itemsize]
    many, size = len(words.c), words.a.dtype.itemsize
    tiles = -(-many // _SIDE)
    packed = []
    for factors in (words.a, words.b):  # [tiles, 8, words along K]
        padded = np.zeros((tiles * _SIDE, depth), factors.dtype)
        padded[:many, : factors.shape[1]] = factors
        packed.append(padded.view(np.uint32).reshape(tiles, _SIDE, depth * size // 4))
    c = np.zeros((tiles, _SIDE), np.float32)
    c.reshape(-1)[:many] = 0 if unit == "wgmma" else words.c
    outcome = _launched(words, unit, depth, packed[0], packed[1], _spread(c, words.result))
    values = _diagonal(outcome, words.result)
    return values.reshape(-1)[:many]


def _spread(c: NDArray[np.float32], result: str) -> Words:
    """The registers of an accumulator [tiles, 32, 4 or 2] with ``c`` [tiles, 8] on the diagonal."""
    tile = np.zeros((len(c), _SIDE, _SIDE), np.float32 if result == "f32" else np.float16)
    tile[:, range(_SIDE), range(_SIDE)] = c
    registers = np.zeros((len(c), 32, 4 if result == "f32" else 2), np.uint32)
    by_lane = tile.view(np.uint32).reshape(len(c), 32, -1)  # lane g, t has columns 2t and 2t + 1 of row g
    registers[:, :, : by_lane.shape[2]] = by_lane
    return registers


def _diagonal(registers: Words, result: str) -> NDArray[np.float32]:
    """The inverse of :func:`_spread`."""
    used = np.ascontiguousarray(registers[:, :, : 2 if result == "f32" else 1])
    tile = used.view(np.float32 if result == "f32" else np.float16).reshape(-1, _SIDE, _SIDE)
    diagonal: NDArray[np.float32] = np.diagonal(tile, axis1=1, axis2=2).astype(np.float32)
    return diagonal


def _launched(words: WordSet, unit: str, depth: int, a: Words, b: Words, c: Words) -> Words:
    """Run a block for each tile; the registers of D [tiles, 32, 4 or 2] of the first warp."""
    tiles, _, across = a.shape
    per_side = across // 4
    # A: register i has row g (+ 8 for odd i), and of that row the word t + 4 (i // 2); rows from 8 on are zero.
    of_a = np.zeros((tiles, 32, 2 * per_side), np.uint32)
    of_b = np.zeros((tiles, 32, per_side), np.uint32)
    for i in range(per_side):
        of_a[:, :, 2 * i] = a[:, :, 4 * i : 4 * i + 4].reshape(tiles, 32)
        of_b[:, :, i] = b[:, :, 4 * i : 4 * i + 4].reshape(tiles, 32)
    given = np.ascontiguousarray(np.concatenate([of_a, of_b, c], axis=2))
    out = np.zeros((tiles, 32, c.shape[2]), np.uint32)
    body = (_wgmma if unit == "wgmma" else _wmma if unit == "wmma" else _mma)(words, depth, per_side)
    warps = 4 if unit == "wgmma" else 1
    text = _entry(TARGETS[words.gpu], body, given.shape[2], c.shape[2])
    report = launch(text, "words", tiles, 32 * warps, [given, out], numerics="hardware")
    assert not report.hazards, report.hazards[0].message
    return out


def _registers(name: str, first: int, many: int) -> str:
    return "{" + ", ".join(f"%{name}{first + k}" for k in range(many)) + "}"


def _mma(words: WordSet, depth: int, per_side: int) -> str:
    held = 4 if words.result == "f32" else 2
    places = (0, 2 * per_side), (2 * per_side, per_side), (3 * per_side, held)
    operands = [_registers("d", 0, held), *(_registers("r", *place) for place in places)]
    types = f"{words.result}.{words.kind}.{words.kind}.{words.result}"
    return f"mma.sync.aligned.m16n8k{depth}.row.col.{types} {', '.join(operands)};"


def _wmma(words: WordSet, depth: int, per_side: int) -> str:
    """A product with 16 columns: the second half is as the first, with the same C."""
    held = 4 if words.result == "f32" else 2
    twice = ["{" + ", ".join(names) + "}" for names in _halves(per_side, held, words.kind)]
    types = words.result + (f".{words.kind}.{words.kind}" if words.kind == "bf16" else "")
    spare = ", ".join(f"%e{k}" for k in range(held))
    target = "{" + ", ".join(f"%d{k}" for k in range(held)) + f", {spare}" + "}"
    return f"wmma.mma.sync.aligned.row.col.m16n16k16.{types}.{words.result} {target}, {', '.join(twice)};"


def _halves(per_side: int, held: int, kind: str) -> Iterator[list[str]]:
    """The registers of A, B and C of a wmma, whose 16-bit fragments of f16 have each register twice."""
    a = [f"%r{k}" for k in range(2 * per_side)]
    b = [f"%r{2 * per_side + k}" for k in range(per_side)]
    c = [f"%r{3 * per_side + k}" for k in range(held)]
    repeats = 2 if kind == "f16" else 1
    yield a * repeats
    yield b * 2 * repeats
    yield c * 2


def _wgmma(words: WordSet, depth: int, per_side: int) -> str:
    """A from registers, the same in each warp; B as two matrices of 8 lines of 16 bytes in shared memory."""
    operands = f"{_registers('d', 0, 4)}, {_registers('r', 0, 2 * per_side)}, %desc, %p, 1, 1"
    return f"""
    mov.u32 %s, buffer; shl.b32 %u, %lane, 2; add.u32 %s, %s, %u;
    st.shared.b32 [%s], %r{2 * per_side}; st.shared.b32 [%s+128], %r{2 * per_side + 1};
    fence.proxy.async; bar.sync 0;
    mov.u32 %s, buffer; shr.u32 %s, %s, 4; cvt.u64.u32 %desc, %s; or.b64 %desc, %desc, {8 << 16 | 16 << 32};
    setp.ne.u32 %p, %s, %s;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k{depth}.{words.result}.{words.kind}.{words.kind} {operands};
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"""


def _entry(target: str, body: str, given: int, held: int) -> str:
    """A kernel around an instruction: registers %r from memory, %d to memory by the first warp of the block."""
    loads = "".join(f"ld.global.b32 %r{k}, [%in+{4 * k}];\n" for k in range(given))
    stores = "".join(f"@%first st.global.b32 [%out+{4 * k}], %d{k};\n" for k in range(held))
    return f""".version 8.7
.target {target}
.address_size 64
.visible .entry words(.param .u64 given, .param .u64 results)
{{
    .reg .b32 %t, %c, %lane, %s, %u, %r<{given}>, %d<8>, %e<8>;
    .reg .b64 %in, %out, %w, %desc;
    .reg .pred %p, %first;
    .shared .align 128 .b8 buffer[256];
    mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; and.b32 %lane, %t, 31; setp.lt.u32 %first, %t, 32;
    mad.lo.u32 %c, %c, 32, %lane;
    ld.param.u64 %in, [given]; mul.wide.u32 %w, %c, {4 * given}; add.u64 %in, %in, %w;
    ld.param.u64 %out, [results]; mul.wide.u32 %w, %c, {4 * held}; add.u64 %out, %out, %w;
    {loads}{body}
    {stores}ret;
}}
"""


def run(checkout: Path, say: Say) -> CampaignResult:
    """Compare all sets of a checkout; good if all words agree whose rule counts as exact on words."""
    rows, total = [], 0
    for words in word_sets(checkout):
        total += len(words.d)
        for unit in instructions_of(words):
            depth = {4: 8, 2: 16, 1: 32}[words.a.dtype.itemsize]
            rule = rule_of(TARGETS[words.gpu], unit, words.kind, depth, words.result)
            got = computed(words, unit)
            agree = int(np.count_nonzero(got.view(np.uint32) == words.d.view(np.uint32)))
            rows.append(
                {
                    "gpu": words.gpu,
                    "target": TARGETS[words.gpu],
                    "instruction": unit,
                    "factors": words.kind,
                    "result": words.result,
                    "products": words.a.shape[1],
                    "words": len(words.d),
                    "agree": agree,
                    "evidence": rule.evidence,
                }
            )
            say(f"{words.gpu:5} {unit:5} {words.kind:4} to {words.result}: {agree:,} of {len(words.d):,} words agree")
    known = [row for row in rows if row["evidence"] == "words"]
    good = bool(known) and all(row["agree"] == row["words"] for row in known)
    wrong = [row for row in rows if row["agree"] != row["words"]]
    gpus = {row["gpu"] for row in rows}
    content = {"source": "MATLAB-tensor-core", "words": total, "sets": rows}
    outcome = f"{len(wrong)} of {len(rows)} comparisons fail" if wrong else f"all agree in {len(rows)} comparisons"
    return CampaignResult(content, good, f"{total:,} words of {len(gpus)} GPUs: {outcome}")
