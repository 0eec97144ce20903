"""Golden vectors: launches of the simulator's tests, with what a GPU made of the same bytes.

A file ``golden.jsonl`` of ``evidence/<gpu>`` has one JSON object a line: first a header (which GPU, which driver, who
assembled the PTX), then a record for each launch. A record holds the whole launch and its outputs where they are small,
and their digests in any case. ``equal`` says whether the simulator agreed bit for bit; where it did not, ``worst_ulp``
says by how much, if the PTX's stores are of one float type. ``error`` is why there is no result from the GPU.

A GPU may give other bits than the simulator only where an instruction is not exact: the approximations, of which the
PTX manual states a greatest error, and products on tensor cores, whose sums it leaves to the hardware. All other
launches agree bit for bit (:func:`allowed`).
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
"""Bytes of a record's PTX, inputs and outputs together, compressed; larger ones are kept as digests only."""

_FLOATS = {name: TYPES[name] for name in ("f16", "bf16", "f32", "f64")}


_APPROXIMATE = re.compile(r"(ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.approx|div\.(approx|full)")
_TENSOR = re.compile(r"(wgmma\.mma_async|wmma\.mma|mma)\.")
_MOST_ULP = {"f32": 64, "f16": 2, "bf16": 2}
"""Of a result behind approximations: they err by 1 or 2 ulp of f32 each (PTX ISA, "Floating Point Instructions")."""


@dataclass(frozen=True)
class Job:
    """One launch as data.

    Attributes
    ----------
    ptx, entry : str
    grid, block, cluster : (int, int, int)
    dynamic_smem : int
    arrays : tuple of ndarray
        The buffers before the launch, each once.
    args : tuple of dict
        One for each parameter: ``{"value": 3}``, ``{"bytes": hex}``, ``{"array": index}``, or a tensor map's keyword
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
        """Sha256 of all that the launch depends on."""
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
        """Fresh arguments for ``warpsan.launch``, and the arrays among them."""
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
    """The float type of all stores to global memory, by their suffix or their register; None if there is not one."""
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
    """Whether two results agree bit for bit; if not, in how many bytes they differ, and by how many ULPs at most.

    ``worst_ulp`` is None where ``kind`` is None, or a NaN stands against a number.
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
    """The greatest distance between two arrays' elements, counted in numbers of the type; two NaNs are at none."""
    if kind is None or one.size % kind.bytes:
        return None
    floats = [raw.view(kind.dtype) for raw in (one, other)]
    nans = [np.isnan(values.astype(np.float64)) for values in floats]
    if (nans[0] != nans[1]).any():
        return None
    places = [_place(values.view(f"i{kind.bytes}")) for values in floats]
    return max((abs(a - b) for a, b in zip(*(place[~nans[0]].tolist() for place in places), strict=True)), default=0)


def _place(bits: np.ndarray) -> np.ndarray:
    """The number of a float among all of its type, in order; both zeros are number 0."""
    lowest = np.iinfo(bits.dtype).min
    return np.where(bits < 0, lowest - bits, bits)


def allowed(record: dict[str, Any]) -> bool:
    """Whether a record is of a launch that ran, and gave bits that its instructions may give."""
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
    """The record of a launch that was repeated on a GPU: ``golden`` is what that made of the arrays, or None."""
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
    """All lines of a file, the header first. A last line that a crash has cut off is left out."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def read_golden(path: Path) -> Iterator[tuple[dict[str, Any], Job, list[np.ndarray]]]:
    """Each record of the file that holds its whole launch, the launch, and the arrays after it on the GPU.

    Raises
    ------
    ValueError
        If what a record holds is not what its digests say.
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
