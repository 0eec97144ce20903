"""Golden vectors: launches of the simulator's tests, with a GPU's results for the same bytes.

A file ``golden.jsonl`` of ``evidence/<gpu>`` has one JSON object per line: a header (GPU, driver, assembler of the
PTX), then a record per launch. A record holds the whole launch and its outputs if they are small, and always their
digests. ``equal`` is whether the simulator agrees bit for bit; otherwise ``worst_ulp`` is the maximum distance, if the
PTX stores only one float type. ``error`` is the reason for a missing result of the GPU.

A GPU may return other bits than the simulator only for inexact instructions: approximations, with a maximum error in
the PTX manual, and products on tensor cores, whose sums depend on the hardware. All other launches agree bit for bit
(:func:`allowed`).
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from warpsan import Pointer, TensorMap
from warpsan.ptx.ir import Register
from warpsan.ptx.parser import parse
from warpsan.ptx.types import TYPES, PtxType

__all__ = ["SMALL", "Job", "allowed", "compare", "make_record", "read_golden", "read_records", "stored_float"]

SMALL = 3072
"""Maximum bytes of a record's PTX, inputs and outputs, compressed; larger ones are kept as digests only."""

_FLOATS = {name: TYPES[name] for name in ("f16", "bf16", "f32", "f64")}


_APPROXIMATE = re.compile(r"(ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.approx|div\.(approx|full)")
_TENSOR = re.compile(r"(wgmma\.mma_async|wmma\.mma|mma)\.")
_MOST_ULP = {"f32": 64, "f16": 2, "bf16": 2}
"""Maximum ULP error of a result after approximations, which err by 1 or 2 ulp of f32 each (PTX ISA, "Floating Point
Instructions").
"""


@dataclass(frozen=True)
class Job:
    """One launch as data.

    Attributes
    ----------
    ptx, entry : str
    grid, block, cluster : (int, int, int)
    dynamic_smem : int
    arrays : tuple of ndarray
        Distinct buffers before the launch.
    args : tuple of dict
        One per parameter: ``{"value": 3}``, ``{"bytes": hex}``, ``{"array": index}``, or a tensor map's keyword
        arguments beside its ``array``.
    """

    ptx: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem: int
    arrays: tuple[np.ndarray, ...]
    args: tuple[dict[str, Any], ...]

    @property
    def digest(self) -> str:
        """Sha256 of all inputs of the launch."""
        parts = [self.ptx, json.dumps(self.geometry), json.dumps(self.args), json.dumps(_kinds(self.arrays))]
        sha = sha256()
        for part in [*(text.encode() for text in parts), *(array.tobytes() for array in self.arrays)]:
            sha.update(b"%d:" % len(part) + part)
        return sha.hexdigest()

    @property
    def geometry(self) -> dict[str, Any]:
        """Entry, grid, block, cluster and shared memory."""
        names = ("entry", "grid", "block", "cluster", "dynamic_smem")
        return {name: getattr(self, name) for name in names}

    def arguments(self) -> tuple[list[Any], list[np.ndarray]]:
        """New arguments for ``warpsan.launch``, and the arrays among them."""
        arrays = [array.copy() for array in self.arrays]
        return [_argument(described, arrays) for described in self.args], arrays


def _argument(described: dict[str, Any], arrays: Sequence[np.ndarray]) -> Any:
    if "value" in described:
        return described["value"]
    if "bytes" in described:
        return bytes.fromhex(described["bytes"])
    options = {name: value for name, value in described.items() if name != "array"}
    array = arrays[described["array"]]
    if "pointer" in options:
        return Pointer(array, options["pointer"])
    return TensorMap(array, **options) if options else array


def stored_float(ptx: str, entry: str) -> PtxType | None:
    """Float type of all stores to global memory, by suffix or register; None if it is not unique."""
    code = parse(ptx).entries[entry]
    types: set[PtxType | None] = set()
    for instruction in code.instructions:
        if instruction.opcode != "st" or "global" not in instruction.mods:
            continue
        source = instruction.operands[1]
        named = source.items[0] if hasattr(source, "items") else source
        declared = code.registers.get(named.name) if isinstance(named, Register) else None
        types.add(_FLOATS.get(instruction.mods[-1]) or (declared and _FLOATS.get(declared.name)))
    return types.pop() if len(types) == 1 else None


def compare(golden: Sequence[np.ndarray], simulated: Sequence[np.ndarray], kind: PtxType | None) -> dict[str, Any]:
    """Whether two results agree bit for bit; otherwise the number of differing bytes, and the maximum ULP distance.

    ``worst_ulp`` is None if ``kind`` is None, or for a NaN against a number.
    """
    raws = [[array.reshape(-1).view(np.uint8) for array in arrays] for arrays in (golden, simulated)]
    different = sum(int((one != other).sum()) for one, other in zip(*raws, strict=True))
    worst: int | None = 0
    if different:
        pairs = [pair for pair in zip(*raws, strict=True) if (pair[0] != pair[1]).any()]
        distances = [_ulps(*pair, kind) for pair in pairs]
        worst = None if None in distances else max(distances)
    return {"equal": not different, "different_bytes": different, "worst_ulp": worst}


def _ulps(one: np.ndarray, other: np.ndarray, kind: PtxType | None) -> int | None:
    """Maximum distance of two arrays' elements, in numbers of the type; two NaNs have distance 0."""
    if kind is None or one.size % kind.bytes:
        return None
    floats = [raw.view(kind.dtype) for raw in (one, other)]
    nans = [np.isnan(values.astype(np.float64)) for values in floats]
    if (nans[0] != nans[1]).any():
        return None
    places = [_place(values.view(f"i{kind.bytes}")) for values in floats]
    return max((abs(a - b) for a, b in zip(*(place[~nans[0]].tolist() for place in places), strict=True)), default=0)


def _place(bits: np.ndarray) -> np.ndarray:
    """Position of a float among all numbers of its type, in order; both zeros are number 0."""
    lowest = np.iinfo(bits.dtype).min
    return np.where(bits < 0, lowest - bits, bits)


def allowed(record: dict[str, Any]) -> bool:
    """Whether a record has a completed launch with bits that its instructions allow."""
    if record["error"]:
        return False
    if record["equal"]:
        return True
    kind = record["float_type"]
    if any(_TENSOR.match(opcode) for opcode in record["opcodes"]):
        return kind is None or record["worst_ulp"] is not None  # a NaN against a number is never rounding
    if any(_APPROXIMATE.match(opcode) for opcode in record["opcodes"]):
        return kind is None or (record["worst_ulp"] is not None and record["worst_ulp"] <= _MOST_ULP.get(kind, 0))
    return False


def make_record(
    test: str, job: Job, simulated: Sequence[np.ndarray], golden: Sequence[np.ndarray] | None, error: str | None
) -> dict[str, Any]:
    """Record of a launch repeated on a GPU: ``golden`` has the GPU's final arrays, or None."""
    entry = parse(job.ptx).entries[job.entry]
    kind = stored_float(job.ptx, job.entry)
    record: dict[str, Any] = {
        "test": test,
        "digest": job.digest,
        "ptx_sha256": sha256(job.ptx.encode()).hexdigest(),
        "opcodes": sorted({instruction.text for instruction in entry.instructions}),
        **job.geometry,
        "args": list(job.args),
        "arrays": _kinds(job.arrays),
        "inputs_sha256": [sha256(array.tobytes()).hexdigest() for array in job.arrays],
        "error": error,
    }
    if golden is None:
        return record
    changed = [index for index, array in enumerate(golden) if array.tobytes() != job.arrays[index].tobytes()]
    record |= compare(golden, simulated, kind)
    record["float_type"] = kind.name if kind else None
    record["outputs_sha256"] = {str(index): sha256(golden[index].tobytes()).hexdigest() for index in changed}
    data = {
        "ptx": _packed(job.ptx.encode()),
        "inputs": [_packed(array.tobytes()) for array in job.arrays],
        "outputs": {str(index): _packed(golden[index].tobytes()) for index in changed},
    }
    if len(json.dumps(data)) * 3 // 4 <= SMALL:
        record["data"] = data
    return record


def read_records(path: Path) -> list[dict[str, Any]]:
    """All lines of a file, the header first, without an incomplete last line after a crash."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def read_golden(path: Path) -> Iterator[tuple[dict[str, Any], Job, list[np.ndarray]]]:
    """Each record with a whole launch, the launch, and the final arrays on the GPU.

    Raises
    ------
    ValueError
        If a record's content does not match its digests.
    """
    for record in read_records(path)[1:]:
        if "data" not in record:
            continue
        data = record["data"]
        arrays = tuple(
            np.frombuffer(_unpacked(text), np.dtype(getattr(ml_dtypes, kind["dtype"], kind["dtype"]))).reshape(
                kind["shape"]
            )
            for text, kind in zip(data["inputs"], record["arrays"], strict=True)
        )
        grid, block, cluster = (tuple(record[name]) for name in ("grid", "block", "cluster"))
        ptx = _unpacked(data["ptx"]).decode()
        job = Job(ptx, record["entry"], grid, block, cluster, record["dynamic_smem"], arrays, tuple(record["args"]))
        if job.digest != record["digest"]:
            raise ValueError(f"{path.name}: the launch of {record['test']} is not the one of its digest")
        golden = [array.copy() for array in arrays]
        for index, text in data["outputs"].items():
            raw = _unpacked(text)
            if sha256(raw).hexdigest() != record["outputs_sha256"][index]:
                raise ValueError(f"{path.name}: output {index} of {record['test']} is not the one of its digest")
            golden[int(index)].reshape(-1).view(np.uint8)[:] = np.frombuffer(raw, np.uint8)
        yield record, job, golden


def _kinds(arrays: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    return [{"dtype": array.dtype.name, "shape": list(array.shape)} for array in arrays]


def _packed(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))
