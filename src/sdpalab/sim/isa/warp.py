"""Exchange between the lanes of a warp (PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "activemask",
"elect.sync", "bar.warp.sync"), and the instructions that only order or delay: nothing to do in a sequential simulation.

Whole warps with a full member mask take a fast path. Otherwise the members are looked at lane by lane: a lane that the
mask names and that has neither exited nor come along is reported, and where a result depends on it, it is poison.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sdpalab.sim.collectives import LEAVES_OUT, MEMBER_MASK, NAMES_ABSENT, pack_warps, warp_words
from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.ir import Immediate, Instruction, Operand
from sdpalab.sim.modifiers import Mods, require
from sdpalab.sim.selection import WARP, Array, Indices, Mask, Selection, indices, subset
from sdpalab.sim.types import TYPES

__all__: list[str] = []

_FULL = np.uint32(0xFFFFFFFF)
_POISON = np.uint32(0xFFFFFFFF)


class _Members:
    """The member mask of one instruction, and which of its lanes are present."""

    def __init__(self, decoder: Decoder, instruction: Instruction, operand: Operand) -> None:
        self.machine, self.instruction = decoder.machine, instruction
        self.mask = decoder.src(instruction, operand, TYPES["u32"])

    def whole(self, sel: Selection) -> bool:
        """True if these are whole warps, contiguous, and every thread is a member."""
        if not isinstance(sel, slice) or sel.start % WARP or sel.stop % WARP:
            return False
        mask = self.mask[sel]
        return bool(mask[0] == _FULL and (not mask.strides[0] or (mask == _FULL).all()))

    def present(self, sel: Selection) -> tuple[Indices, Indices, Array]:
        """The selected lanes, their warps, and for each lane the members of its group that take part, as bits."""
        lanes = indices(sel)
        warp = lanes // WARP
        there = warp_words(lanes, self.machine.lanes)[warp]
        alive = warp_words(np.flatnonzero(self.machine.live), self.machine.lanes)[warp]
        mask = self.mask[sel]
        self._check(sel, mask, there, alive, np.uint32(1) << (lanes % WARP).astype(np.uint32))
        return lanes, warp, mask & there

    def _check(self, sel: Selection, mask: Array, there: Array, alive: Array, own: Array) -> None:
        absent = mask & alive & ~there
        outside = mask & own == 0
        for bad, why in (
            (absent != 0, NAMES_ABSENT),
            (outside, LEAVES_OUT),
        ):
            if bad.any():
                first = int(np.flatnonzero(bad)[0])
                need = f"{MEMBER_MASK} {why}".format(self.instruction.opcode, int(mask[first]), int(absent[first]))
                for observer in self.machine.observers:
                    observer.divergent(subset(sel, bad), self.instruction, need)


def _by_warp(row: Array, sel: slice) -> Array:
    """A slice of whole warps as a view, [warps, 32]."""
    view: Array = row[sel].reshape(-1, WARP)
    return view


# ---- shfl ------------------------------------------------------------------------------------------------------------


def _source_lane(mode: str, lane: Array, b: Array, c: Array) -> tuple[Array, Mask]:
    """Which lane of the warp each lane reads, and whether that is within its segment (else it reads itself)."""
    bound, clamp = b & 31, c & 31
    segment = c >> 8 & 31
    first = lane & segment
    last = first | clamp & ~segment
    if mode == "up":
        source = lane - bound
        valid: Mask = source >= last
    else:
        source = lane + bound if mode == "down" else lane ^ bound if mode == "bfly" else first | bound & ~segment
        valid = source <= last
    return np.where(valid, source, lane), valid


@opcode("shfl")
def _shfl(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    if not mods.flag("sync"):
        raise mods.unsupported("without .sync it is gone since sm_70")
    mode = mods.choice(("idx", "up", "down", "bfly"))
    type_ = mods.type()
    require(mods, type_, ("b32",))
    mods.done()
    target, value, *rest = instruction.operands
    first, second = decoder.pair(target)
    d = decoder.dst(instruction, first, type_)
    p = None if second is None else decoder.dst(instruction, second, TYPES["pred"])
    a = decoder.src(instruction, value, type_)
    b, c = (decoder.src(instruction, operand, TYPES["s32"]) for operand in rest[:2])
    members = _Members(decoder, instruction, rest[2])
    source_of = _sources(mode, decoder.machine.laneid, b, c)

    def step(sel: Selection) -> None:
        source, valid = source_of(sel)
        if members.whole(sel):
            d[sel] = a.take(source)
        else:
            lanes, _, group = members.present(sel)
            readable = group >> (source - lanes // WARP * WARP).astype(np.uint32) & np.uint32(1)
            d[sel] = np.where(readable, a[source], _POISON)
        if p is not None:
            p[sel] = valid

    return step


def _sources(mode: str, laneid: Indices, b: Array, c: Array) -> Callable[[Selection], tuple[Indices, Mask]]:
    """A function from a selection to the machine's lane that each lane reads, and whether it is in the segment.

    Offset and clamp are nearly always the same in all lanes, though compilers pass even constants in registers; what
    follows from such a pair is computed once.
    """
    start = np.arange(len(laneid)) - laneid
    tables: dict[tuple[int, int], tuple[Indices, Mask]] = {}

    def by_lane(sel: Selection) -> tuple[Indices, Mask]:
        offset, clamp = b[sel], c[sel]
        if not (_uniform(offset) and _uniform(clamp)):
            source, valid = _source_lane(mode, laneid[sel], offset, clamp)
            return start[sel] + source, valid
        pair = int(offset[0]) & 31, int(clamp[0]) & 0x1F1F
        if pair not in tables:
            source, valid = _source_lane(mode, laneid, np.array(pair[0]), np.array(pair[1]))
            tables[pair] = start + source, valid
        source, valid = tables[pair]
        return source[sel], valid[sel]

    return by_lane


def _uniform(values: Array) -> bool:
    return not values.strides[0] or bool((values == values[0]).all())


# ---- vote, activemask, elect -----------------------------------------------------------------------------------------


@opcode("vote")
def _vote(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    if not mods.flag("sync"):
        raise mods.unsupported("without .sync it is gone since sm_70")
    mode = mods.choice(("all", "any", "uni", "ballot"))
    type_ = mods.type()
    require(mods, type_, ("b32",) if mode == "ballot" else ("pred",))
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], type_)
    votes = decoder.predicate(instruction, instruction.operands[1])
    members = _Members(decoder, instruction, instruction.operands[2])
    verdicts: dict[str, Callable[[Array, Array], Array]] = {
        "all": lambda yes, group: yes == group,
        "any": lambda yes, group: yes != 0,
        "uni": lambda yes, group: (yes == group) | (yes == 0),
        "ballot": lambda yes, group: yes,
    }
    verdict = verdicts[mode]

    def step(sel: Selection) -> None:
        if isinstance(sel, slice) and members.whole(sel):
            _by_warp(d, sel)[...] = verdict(pack_warps(votes(sel)), _FULL)[:, None]
        else:
            lanes, warp, group = members.present(sel)
            d[sel] = verdict(warp_words(lanes, decoder.machine.lanes, votes(sel))[warp] & group, group)

    return step


@opcode("activemask")
def _activemask(decoder: Decoder, instruction: Instruction) -> Step:
    """The lanes that execute together here; which these are is the scheduler's choice, as it is the hardware's."""
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, ("b32",))
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], type_)

    def step(sel: Selection) -> None:
        lanes = indices(sel)
        d[sel] = warp_words(lanes, decoder.machine.lanes)[lanes // WARP]

    return step


@opcode("elect")
def _elect(decoder: Decoder, instruction: Instruction) -> Step:
    """The leader is the first thread that takes part."""
    mods = Mods(instruction)
    mods.choice(("sync",))
    mods.done()
    target, mask = instruction.operands
    first, second = decoder.pair(target)
    if second is None:
        raise mods.unsupported("expected destinations d|p")
    d, p = decoder.dst(instruction, first, TYPES["b32"]), decoder.dst(instruction, second, TYPES["pred"])
    members = _Members(decoder, instruction, mask)
    laneid = decoder.machine.laneid

    def step(sel: Selection) -> None:
        if members.whole(sel):
            leader: Array = np.zeros(1, dtype=np.int64)
        else:
            group = members.present(sel)[2].astype(np.int64)
            leader = np.frexp((group & -group).astype(np.float64))[1] - 1
        d[sel] = leader
        p[sel] = laneid[sel] == leader

    return step


# ---- match, redux ----------------------------------------------------------------------------------------------------


@opcode("match")
def _match(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    every = mods.choice(("any", "all")) == "all"
    mods.choice(("sync",))
    type_ = mods.type()
    require(mods, type_, ("b32", "b64"))
    mods.done()
    target, value, mask = instruction.operands
    first, second = decoder.pair(target)
    d = decoder.dst(instruction, first, TYPES["b32"])
    if second is not None and not every:
        raise mods.unsupported("only .all has a predicate result")
    p = None if second is None else decoder.dst(instruction, second, TYPES["pred"])
    a = decoder.src(instruction, value, type_)
    members = _Members(decoder, instruction, mask)

    def step(sel: Selection) -> None:
        lanes, warp, group = members.present(sel)
        same = pack_warps(a.reshape(-1, WARP)[warp] == a[lanes][:, None]) & group
        if not every:
            d[sel] = same
            return
        equal = same == group
        d[sel] = np.where(equal, group, np.uint32(0))
        if p is not None:
            p[sel] = equal

    return step


@opcode("redux")
def _redux(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    mods.choice(("sync",))
    operation = mods.choice(("add", "min", "max", "and", "or", "xor"))
    type_ = mods.type()
    require(mods, type_, ("b32",) if operation in ("and", "or", "xor") else ("u32", "s32"))
    mods.done()
    ufunc, neutral = {
        "add": (np.add, 0),
        "min": (np.minimum, 2 ** (31 if type_.signed else 32) - 1),
        "max": (np.maximum, -(2**31) if type_.signed else 0),
        "and": (np.bitwise_and, 0xFFFFFFFF),
        "or": (np.bitwise_or, 0),
        "xor": (np.bitwise_xor, 0),
    }[operation]
    d = decoder.dst(instruction, instruction.operands[0], type_)
    a = decoder.src(instruction, instruction.operands[1], type_)
    members = _Members(decoder, instruction, instruction.operands[2])
    nothing = type_.dtype.type(neutral)

    def step(sel: Selection) -> None:
        if isinstance(sel, slice) and members.whole(sel):
            _by_warp(d, sel)[...] = ufunc.reduce(_by_warp(a, sel), axis=1, dtype=type_.dtype)[:, None]
            return
        _, warp, group = members.present(sel)
        taking_part = group[:, None] >> np.arange(WARP, dtype=np.uint32) & np.uint32(1)
        values = np.where(taking_part, a.reshape(-1, WARP)[warp], nothing)
        d[sel] = ufunc.reduce(values, axis=1, dtype=type_.dtype)

    return step


# ---- order and delay -------------------------------------------------------------------------------------------------


@opcode("bar", "barrier")
def _bar_warp(decoder: Decoder, instruction: Instruction) -> Step:
    """``bar.warp.sync``: the scheduler has brought the warp together; here it is checked that all members came."""
    mods = Mods(instruction)
    mods.choice(("warp",))
    mods.choice(("sync",))
    mods.done()
    members = _Members(decoder, instruction, instruction.operands[0])

    def step(sel: Selection) -> None:
        groups = None if members.whole(sel) else members.present(sel)[2]
        for observer in members.machine.observers:
            observer.warp_sync(sel, groups)

    return step


def _nothing(sel: Selection) -> None:
    """Instructions run one after the other here, each seen by all at once, so there is nothing to order or wait for."""


@opcode("nanosleep")
def _nanosleep(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    require(mods, mods.type(), ("u32",))
    mods.done()
    return _nothing


@opcode("pmevent")
def _pmevent(decoder: Decoder, instruction: Instruction) -> Step:
    """An event for profilers, without any other effect."""
    mods = Mods(instruction)
    mods.flag("mask")
    mods.done()
    if not isinstance(instruction.operands[0], Immediate):
        raise mods.unsupported("expected an immediate")
    return _nothing


@opcode("griddepcontrol")
def _griddepcontrol(decoder: Decoder, instruction: Instruction) -> Step:
    """Launches run one after the other, so what a grid depends on is complete; a check asks what comes behind it."""
    mods = Mods(instruction)
    waits = mods.choice(("wait", "launch_dependents")) == "wait"
    mods.done()
    observers = decoder.machine.observers

    def step(sel: Selection) -> None:
        for observer in observers:
            observer.grid_wait(sel, instruction)

    return step if waits else _nothing
