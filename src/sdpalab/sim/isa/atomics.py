"""Atomic read-modify-writes: atom and red (PTX ISA, "Parallel Synchronization and Communication Instructions").

Lanes that name one address are served in the order of the lanes, each seeing what the one before it left. Memory orders
and scopes change nothing where every instruction is complete before the next begins; with stale reads they do
(:mod:`sdpalab.sim.weak`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.forms import UPDATE_TYPES, WITHOUT_RESULT
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.access import Accessor
from sdpalab.sim.isa.memory_mods import take_cache_hint
from sdpalab.sim.isa.rounding import canonical_nans, flush
from sdpalab.sim.modifiers import Mods, require, take_space
from sdpalab.sim.selection import Array, Selection, in_turns
from sdpalab.sim.types import PtxType, unsigned

__all__ = ["UPDATES"]

Update = Callable[..., Array]
"""New values from the old ones and the operands."""

_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("cta", "cluster", "gpu", "sys")


def _increment(old: Array, bound: Array) -> Array:
    up: Array = old + np.uint32(1)
    return np.where(old >= bound, np.uint32(0), up)


def _decrement(old: Array, bound: Array) -> Array:
    return np.where((old == 0) | (old > bound), bound, old - np.uint32(1))


def _compare_and_swap(old: Array, expected: Array, new: Array) -> Array:
    return np.where(old == expected, new, old)


def _add(old: Array, value: Array) -> Array:
    total: Array = old + value
    return total if total.dtype.kind in "iu" else canonical_nans(total)


UPDATES: dict[str, Update] = {
    "add": _add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": _increment,
    "dec": _decrement,
    "exch": lambda old, new: new,
    "cas": _compare_and_swap,
}
"""New values by operation."""


@opcode("atom", "red")
def _atomic(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    returns = instruction.opcode == "atom"
    mods.choice(_ORDERS, default="relaxed")
    mods.choice(_SCOPES, default="gpu")
    space = take_space(mods)
    if space not in ("global", "shared", "shared::cluster", "generic"):
        raise mods.unsupported(f"no atomics on .{space}")
    operation = mods.choice(UPDATES if returns else WITHOUT_RESULT)
    type_ = mods.type()
    update = UPDATES[operation]
    require(mods, type_, UPDATE_TYPES[operation])
    half = type_.is_float and type_.dtype.itemsize == 2
    if half and not mods.flag("noftz"):
        raise mods.unsupported("16-bit floating point needs .noftz")
    operands = list(instruction.operands)
    take_cache_hint(decoder, mods, operands)
    mods.done()
    d = decoder.dst(instruction, operands.pop(0), type_) if returns else None
    access = Accessor(decoder, instruction, operands.pop(0), space, type_.bytes)
    sources = [decoder.src(instruction, operand, type_) for operand in operands]
    if len(sources) != (2 if operation == "cas" else 1):
        raise mods.unsupported("wrong number of operands")

    weak = decoder.machine.weak

    def step(sel: Selection) -> None:
        for part in access.updates(sel):
            memory, chosen, index = part.space, part.sel, part.index
            # Global memory adds float32 without subnormals, shared memory with them.
            function = _flushing_add if type_.name == "f32" and memory.name == "global" else update
            values = [source[chosen] for source in sources]
            old = np.empty(len(index), unsigned(type_.bits))
            for turn in in_turns(index):
                updated = partial(_updated, type_, function, [value[turn] for value in values])
                if weak is None:
                    old[turn] = words = memory.load(index[turn], type_.bytes)
                    memory.store(index[turn], type_.bytes, updated(words))
                else:
                    old[turn] = weak.update(part.at(turn), updated)
            if d is not None:
                d[chosen] = _unpacked(old, type_)

    return step


def _updated(type_: PtxType, function: Update, values: Sequence[Array], words: Array) -> Array:
    """What an update leaves where ``words`` were."""
    return _packed(function(_unpacked(words, type_), *values), type_)


def _unpacked(words: Array, type_: PtxType) -> Array:
    values = words.view(type_.dtype)
    return values if type_.lanes == 1 else values.reshape(-1, type_.lanes)


def _packed(values: Array, type_: PtxType) -> Array:
    return np.ascontiguousarray(values).reshape(-1).view(unsigned(type_.bits))


def _flushing_add(old: Array, value: Array) -> Array:
    """float32 addition with subnormal inputs and results taken as zeros of the same sign."""
    return canonical_nans(flush(flush(old) + flush(value)))
