"""A kernel around a few instructions: inputs, results, one thread per value.

(d,) = run("add.u32 %d, %a, %b;", {"d": "u32"}, a=("u32", values), b=("u32", values))
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from warpsan import Report, launch
from warpsan.ptx.types import TYPES, PtxType

BLOCK = 64
SENTINEL = 0xA5
"""Initial byte of result registers, which threads that skip the snippet keep."""


def run(
    body: str, results: dict[str, str], *, registers: str = "", target: str = "sm_90", **inputs: tuple[str, Any]
) -> tuple[np.ndarray, ...]:
    """Run instructions over all values, twice: the second time some threads of each warp branch around them.

    Parameters
    ----------
    body : str
        Instructions. They read ``%name`` for each input and write ``%name`` for each result.
    results : dict
        Type of each result by name; ``pred`` results are Booleans, packed types have shape (n, 2).
    registers : str
        Declarations of further registers.
    inputs : (type, values)
        Equal numbers of values; integers are taken modulo the type's width, arrays of another type bit for bit.

    Returns
    -------
    tuple of arrays
        Results in the order of ``results``. The function also checks that the second run agrees for threads that run
        the body, and leaves all other threads' registers unchanged.
    """
    arrays = {name: _encoded(TYPES[type_name], values) for name, (type_name, values) in inputs.items()}
    count = len(next(iter(arrays.values())))
    assert all(len(array) == count for array in arrays.values())
    together = _launch(body, results, registers, target, inputs, arrays, count, diverge=False)
    apart = _launch(body, results, registers, target, inputs, arrays, count, diverge=True)
    ran = np.arange(count) % 4 != 1
    for name, whole, part in zip(results, together, apart, strict=True):
        np.testing.assert_array_equal(whole[ran], part[ran], err_msg=f"%{name} differs when threads diverge: {body}")
        assert (part[~ran].view(np.uint8) == SENTINEL).all(), f"%{name} was written in threads that did not run {body}"
    return tuple(_decoded(TYPES[type_name], array) for type_name, array in zip(results.values(), together, strict=True))


def kernel(
    body: str, results: dict[str, str], inputs: dict[str, str], *, registers: str = "", target: str = "sm_90"
) -> str:
    """PTX of an entry ``snippet(count, diverge, inputs..., results...)`` around a body.

    Threads beyond ``count`` exit first; with ``diverge`` 3 instead of 0, every fourth thread branches around the body.
    """
    names = [*inputs, *results]
    loads, stores, declarations = [], [], []
    for name, type_name in inputs.items():
        type_ = TYPES[type_name]
        declarations.append(f".reg .{_register(type_)} %{name};")
        loads += _address(name, type_)
        if type_.kind == "pred":
            loads += ["ld.global.u8 %t, [%addr];", f"setp.ne.u32 %{name}, %t, 0;"]
        else:
            loads.append(f"ld.global.b{type_.bits} %{name}, [%addr];")
    for name, type_name in results.items():
        type_ = TYPES[type_name]
        declarations.append(f".reg .{_register(type_)} %{name};")
        stores += _address(name, type_)
        if type_.kind == "pred":
            stores += [f"selp.u32 %t, 1, 0, %{name};", "@!%skip st.global.u8 [%addr], %t;"]
        else:
            # A thread that skips the body stores its register, unless another thread wrote to it.
            loads += [*_address(name, type_), f"ld.global.b{type_.bits} %{name}, [%addr];"]
            stores.append(f"st.global.b{type_.bits} [%addr], %{name};")
    parameters = ",\n".join([".param .u32 count", ".param .u32 diverge", *(f".param .u64 p_{name}" for name in names)])
    lines = [
        *(".reg .b64 %addr, %wide;", ".reg .b32 %i, %t, %n;", ".reg .pred %out, %skip;"),
        *declarations,
        registers,
        *("mov.u32 %i, %ctaid.x;", f"mad.lo.u32 %i, %i, {BLOCK}, 0;", "mov.u32 %t, %tid.x;", "add.u32 %i, %i, %t;"),
        *("ld.param.u32 %n, [count];", "setp.ge.u32 %out, %i, %n;", "@%out ret;"),
        *loads,
        *("ld.param.u32 %n, [diverge];", "and.b32 %t, %i, %n;", "setp.eq.u32 %skip, %t, 1;", "@%skip bra AROUND;"),
        body,
        "AROUND:",
        *stores,
        "ret;",
    ]
    text = "\n".join(lines)
    return f".version 8.7\n.target {target}\n.address_size 64\n.visible .entry snippet({parameters})\n{{\n{text}\n}}\n"


def corners(bits: int) -> list[int]:
    """Corner cases of integer instructions, and some irregular bit patterns."""
    top = 1 << bits - 1
    draw = random.Random(bits)
    patterns = [
        0,
        1,
        2,
        3,
        5,
        31,
        32,
        33,
        top - 1,
        top,
        top + 1,
        2 * top - 2,
        2 * top - 1,
        0x5555555555555555 % (2 * top),
    ]
    return [*patterns, *(draw.getrandbits(bits) for _ in range(6))]


def pairs(bits: int, other: int = 0) -> tuple[list[int], list[int]]:
    """All pairs of corners, as two lists."""
    first, second = zip(*itertools.product(corners(bits), corners(other or bits)), strict=True)
    return list(first), list(second)


def triples(bits: int, count: int = 400) -> tuple[list[int], list[int], list[int]]:
    """A fixed sample of triples of corners and random patterns, as three lists."""
    draw = random.Random(3 * bits)
    pool = corners(bits) + [draw.getrandbits(bits) for _ in range(40)]
    first, second, third = zip(*(draw.choices(pool, k=3) for _ in range(count)), strict=True)
    return list(first), list(second), list(third)


def signed(value: int, bits: int) -> int:
    """The two's complement reading of a bit pattern."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def _launch(
    body: str,
    results: dict[str, str],
    registers: str,
    target: str,
    inputs: dict[str, tuple[str, Any]],
    arrays: dict[str, np.ndarray],
    count: int,
    *,
    diverge: bool,
) -> list[np.ndarray]:
    ptx = kernel(body, results, {name: item[0] for name, item in inputs.items()}, registers=registers, target=target)
    buffers = [np.full(count * TYPES[name].bytes, SENTINEL, np.uint8) for name in results.values()]
    arguments = [count, 3 if diverge else 0, *(array.copy() for array in arrays.values()), *buffers]
    report: Report = launch(ptx, "snippet", -(-count // BLOCK), BLOCK, arguments)
    assert report.hazards == []
    return [buffer.view(f"u{TYPES[name].bytes}") for buffer, name in zip(buffers, results.values(), strict=True)]


def _register(type_: PtxType) -> str:
    if type_.kind == "pred":
        return "pred"
    return f"f{type_.bits}" if type_.is_float and type_.bits >= 32 and type_.lanes == 1 else f"b{type_.bits}"


def _address(name: str, type_: PtxType) -> Sequence[str]:
    return f"ld.param.u64 %addr, [p_{name}];", f"mul.wide.u32 %wide, %i, {type_.bytes};", "add.u64 %addr, %addr, %wide;"


def _encoded(type_: PtxType, values: Any) -> np.ndarray:
    raw = f"u{type_.bytes}"
    if isinstance(values, np.ndarray):
        return np.ascontiguousarray(values).reshape(-1).view(raw)
    if type_.is_float and type_.lanes == 1 and not all(isinstance(value, int) for value in values):
        return np.array(values, dtype=type_.dtype).view(raw)
    return np.array([int(value) & (1 << type_.bits) - 1 for value in values], dtype=raw)


def _decoded(type_: PtxType, array: np.ndarray) -> np.ndarray:
    values = array.view(type_.dtype)
    return values.reshape(-1, 2) if type_.lanes == 2 else values
