"""mbarrier: barriers in shared memory that count arrivals and bytes (PTX ISA, "mbarrier").

An object's state lies here, by CTA and address; its eight bytes in shared memory are opaque. A phase is complete when
nobody is left to arrive and no bytes are left to come. ``try_wait`` blocks until the phase it names is complete: the
lanes leave the run queue, as a hardware thread that is suspended does, whatever its time limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from sdpalab.sim.decode import Decoder, Mods, Step, opcode
from sdpalab.sim.errors import Deadlock, IllegalAccess
from sdpalab.sim.flow import End, Flow, block_end
from sdpalab.sim.ir import Address, Immediate, Instruction, Operand, Symbol
from sdpalab.sim.isa.access import Accessor
from sdpalab.sim.isa.move import take_space
from sdpalab.sim.machine import Machine, Resume, Signal, Unit
from sdpalab.sim.selection import Array, Indices, Mask, Selection, indices, subset
from sdpalab.sim.types import TYPES

__all__ = ["Mbarriers", "Place"]

_MOST_COUNT, _MOST_BYTES = (1 << 20) - 1, (1 << 20) - 1
_PENDING_BITS = np.uint64(32)
"""A state token holds the phase above these bits, and the arrivals that were pending below."""


class _Objects:
    """The mbarriers at one address of every CTA of the chunk."""

    def __init__(self, n_cta: int) -> None:
        self.valid = np.zeros(n_cta, dtype=np.bool_)
        self.expected, self.pending, self.bytes, self.phase = np.zeros((4, n_cta), dtype=np.int64)
        """Arrivals of a phase, those still to come, bytes still to come, and phases completed."""


@dataclass
class _Waiting:
    sel: Selection
    offset: int
    home: Indices
    phase: Indices
    """Complete when the object has completed more phases than this."""
    resume: int
    instruction: Instruction
    result: Array
    acquires: bool

    def part(self, mask: Mask) -> _Waiting:
        return _Waiting(
            *(subset(self.sel, mask), self.offset, self.home[mask], self.phase[mask]),
            *(self.resume, self.instruction, self.result, self.acquires),
        )


class Mbarriers(Unit):
    """All mbarriers of a machine, and who waits for them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.objects: dict[int, _Objects] = {}
        self.words = np.zeros(len(machine.spaces["shared"].data) // 8, dtype=np.bool_)
        """Which 8-byte words of shared memory are mbarriers."""
        self.waiting: list[_Waiting] = []

    @staticmethod
    def of(machine: Machine) -> Mbarriers:
        """The machine's mbarriers, made when first asked for."""
        unit = machine.units.get("mbarrier")
        if not isinstance(unit, Mbarriers):
            unit = machine.units["mbarrier"] = Mbarriers(machine)
        return unit

    def reset(self) -> None:
        """No mbarriers."""
        self.objects.clear()
        self.words.fill(False)
        self.waiting.clear()

    def misuse(self, sel: Selection, instruction: Instruction, what: str, usually: str) -> None:
        """Tell the observers, or raise where there are none."""
        if not self.machine.observers:
            self._raise(sel, instruction, what)
        for observer in self.machine.observers:
            observer.misuse("mbarrier", sel, instruction, what, usually)

    def _raise(self, sel: Selection, instruction: Instruction, what: str) -> NoReturn:
        block, thread = self.machine.where(int(indices(sel)[0]))
        where = f"PTX line {instruction.line}, block {block}, thread {thread}"
        raise IllegalAccess(f"{what}, by {instruction.text} at {where}")

    def usable(self, sel: Selection, offset: int, home: Indices, instruction: Instruction) -> Mask:
        """For which lanes there is an mbarrier at that address."""
        found = self.objects.get(offset)
        valid: Mask = np.zeros(len(home), np.bool_) if found is None else found.valid[home]
        if not valid.all():
            what = f"there is no mbarrier at offset {offset} of shared memory"
            self.misuse(subset(sel, ~valid), instruction, what, "usually a missing mbarrier.init, or one after its use")
        return valid

    def init(self, sel: Selection, offset: int, home: Indices, counts: Array, instruction: Instruction) -> None:
        """Lanes make mbarriers of ``counts`` arrivals a phase."""
        objects = self.objects.setdefault(offset, _Objects(self.machine.n_cta))
        busy = objects.valid[home] & (
            (objects.pending[home] != objects.expected[home]) | (objects.bytes[home] != 0) | self._waited(offset, home)
        )
        if busy.any():
            what = f"initialises the mbarrier at offset {offset} again in the middle of a phase"
            self.misuse(subset(sel, busy), instruction, what, "usually a missing mbarrier.inval or barrier")
        wrong = (counts < 1) | (counts > _MOST_COUNT)
        if wrong.any():
            what = f"an mbarrier expects 1 to {_MOST_COUNT} arrivals, not {int(counts[wrong][0])}"
            self.misuse(subset(sel, wrong), instruction, what, "")
        objects.valid[home] = True
        self.words[(home * self.machine.shared_stride + offset) // 8] = True
        objects.expected[home] = objects.pending[home] = np.maximum(counts, 1)
        objects.bytes[home] = objects.phase[home] = 0

    def _waited(self, offset: int, home: Indices) -> Mask:
        """In which of the CTAs somebody waits for the mbarrier."""
        waited = [entry.home for entry in self.waiting if entry.offset == offset]
        return np.isin(home, np.concatenate(waited)) if waited else np.zeros(len(home), np.bool_)

    def invalidate(self, offset: int, home: Indices) -> None:
        """There are no mbarriers there any more."""
        self.objects[offset].valid[home] = False
        self.words[(home * self.machine.shared_stride + offset) // 8] = False

    def expect_arrivals(self, offset: int, home: Indices) -> None:
        """The phases of these CTAs expect one arrival more, and so do not end before it."""
        self.objects[offset].pending += np.bincount(home, minlength=self.machine.n_cta)

    def arrive(
        self, sel: Selection, offset: int, home: Indices, counts: Array, instruction: Instruction, last: bool = True
    ) -> Array:
        """Lanes arrive ``counts`` times each: the state tokens from before. ``last`` arrivals may end the phase."""
        objects = self.objects[offset]
        token: Array = objects.phase[home].astype(np.uint64) << _PENDING_BITS | objects.pending[home].astype(np.uint64)
        left = np.bincount(home, weights=counts, minlength=self.machine.n_cta).astype(np.int64)
        over = left > objects.pending
        if over.any():
            cta = int(np.flatnonzero(over)[0])
            what = (
                f"{int(left[cta])} arrivals at once at the mbarrier at offset {offset}, whose phase expects "
                f"{int(objects.pending[cta])} more of {int(objects.expected[cta])}"
            )
            self.misuse(subset(sel, over[home]), instruction, what, "usually a wrong count in mbarrier.init")
        if not last and ((left == objects.pending) & (left > 0)).any():
            what = f"completes the phase of the mbarrier at offset {offset}"
            self.misuse(sel, instruction, what, "arrive.noComplete must not be the last arrival")
        while left.any():
            taken = np.minimum(left, objects.pending)
            objects.pending -= taken
            left -= taken
            if not self.settle(offset):
                break  # more arrivals than the phase has room for
        return token

    def expect(self, sel: Selection, offset: int, home: Indices, many: Array, instruction: Instruction) -> None:
        """The phase is not complete before that many more bytes have come."""
        self._count_bytes(sel, offset, home, many.astype(np.int64), instruction)

    def bytes_came(self, sel: Selection, offset: int, home: Indices, many: Array, instruction: Instruction) -> None:
        """That many bytes have come; phases that waited only for them are complete."""
        self._count_bytes(sel, offset, home, -many.astype(np.int64), instruction)
        objects = self.objects[offset]
        short = objects.valid & (objects.pending == 0) & (objects.bytes < 0)
        short &= np.bincount(home, minlength=len(short)) > 0
        if short.any():
            cta = int(np.flatnonzero(short)[0])
            what = f"{-int(objects.bytes[cta])} bytes more than expected come to the mbarrier at offset {offset}"
            self.misuse(subset(sel, short[home]), instruction, what, "usually a wrong count in expect_tx")
            objects.bytes[short] = 0
        self.settle(offset)

    def _count_bytes(self, sel: Selection, offset: int, home: Indices, many: Indices, instruction: Instruction) -> None:
        objects = self.objects[offset]
        np.add.at(objects.bytes, home, many)
        wrong = np.abs(objects.bytes[home]) > _MOST_BYTES
        if wrong.any():
            what = f"the mbarrier at offset {offset} counts at most {_MOST_BYTES} bytes"
            self.misuse(subset(sel, wrong), instruction, what, "split the copy over several phases")

    def settle(self, offset: int) -> bool:
        """Phases that are complete end, and those who wait for them go on; False if none is."""
        objects = self.objects[offset]
        done = objects.valid & (objects.pending == 0) & (objects.bytes == 0)
        if not done.any():
            return False
        objects.phase[done] += 1
        objects.pending[done] = objects.expected[done]
        key = Signal(offset, np.empty(0, np.int64)).key
        for observer in self.machine.observers:
            observer.publish(key, (key, "complete"), done)
        self._wake(offset)
        return True

    def _wake(self, offset: int) -> None:
        kept: list[_Waiting] = []
        for entry in self.waiting:
            over = self.objects[entry.offset].phase[entry.home] > entry.phase
            if entry.offset != offset or not over.any():
                kept.append(entry)
                continue
            free = entry if over.all() else entry.part(over)
            self.complete(free)
            self.machine.woken.append((free.resume, free.sel))
            if not over.all():
                kept.append(entry.part(~over))
        self.waiting = kept

    def complete(self, entry: _Waiting) -> None:
        """The phase that these lanes wait for is complete."""
        entry.result[entry.sel] = True
        if entry.acquires:
            key = Signal(entry.offset, entry.home).key
            for observer in self.machine.observers:
                observer.acquire((key, "complete"), entry.sel, entry.home)

    def check_drained(self) -> None:
        """Raise Deadlock if lanes still wait when nothing else can run."""
        for entry in self.waiting:
            objects, home = self.objects[entry.offset], int(entry.home[0])
            block, thread = self.machine.where(int(indices(entry.sel)[0]))
            source = self.machine.source(entry.instruction)
            raise Deadlock(
                f"{entry.instruction.text} at PTX line {entry.instruction.line}{f' ({source})' if source else ''}: the "
                f"mbarrier at offset {entry.offset} of shared memory is in phase {int(objects.phase[home])}, with "
                f"{int(objects.pending[home])} of {int(objects.expected[home])} arrivals and "
                f"{int(objects.bytes[home])} bytes still to come, and nothing that could complete it "
                f"(thread {thread} of block {block} waits for the end of phase {int(entry.phase[0])})"
            )


class Place:
    """The mbarrier operand of an instruction."""

    def __init__(self, decoder: Decoder, instruction: Instruction, operand: Operand, space: str) -> None:
        self.unit, self.instruction = Mbarriers.of(decoder.machine), instruction
        only = "shared" if space == "generic" else ""
        self.access = Accessor(decoder, instruction, operand, space, 8, only)

    def groups(
        self, sel: Selection, *, accessed: bool = True, there: bool = True
    ) -> list[tuple[Selection, int, Indices]]:
        """(lanes, offset in the CTA, CTA of the chunk) for each address.

        ``accessed`` tells the observers; ``there`` reports and leaves out lanes for which there is no mbarrier.
        """
        stride = self.unit.machine.shared_stride
        found: list[tuple[Selection, int, Indices]] = []
        for _, chosen, index in self.access.updates(sel) if accessed else self._places(sel):
            home, offsets = index // stride, index % stride
            for offset in (offsets[0],) if (offsets == offsets[0]).all() else np.unique(offsets):
                mask = offsets == offset
                lanes, homes = (chosen, home) if mask.all() else (subset(chosen, mask), home[mask])
                if there:
                    usable = self.unit.usable(lanes, int(offset), homes, self.instruction)
                    lanes, homes = (lanes, homes) if usable.all() else (subset(lanes, usable), homes[usable])
                if len(homes):
                    found.append((lanes, int(offset), homes))
        return found

    def _places(self, sel: Selection) -> list[tuple[object, Selection, Indices]]:
        return [(space, chosen, index) for space, chosen, _, index in self.access.parts(sel)]


def _order(mods: Mods, orders: tuple[str, ...]) -> bool:
    """Take the memory order and the scope; True unless it is relaxed."""
    relaxed = mods.flag("relaxed")
    if not relaxed:
        mods.choice(orders, default="")
    mods.choice(("cta", "cluster"), default="")
    return not relaxed


@opcode("mbarrier")
def _mbarrier(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    action = mods.choice(("init", "inval", "arrive_drop", "arrive", "expect_tx", "complete_tx", "test_wait"))
    if action == "arrive_drop":
        raise mods.unsupported("dropping out of an mbarrier is not modelled")
    if action == "arrive":
        return _arrive(decoder, instruction, mods)
    if action == "test_wait":
        return _test_wait(decoder, instruction, mods)
    if action in ("expect_tx", "complete_tx"):
        return _transactions(decoder, instruction, mods, action)
    space = take_space(mods)
    mods.choice(("b64",))
    mods.done()
    place = Place(decoder, instruction, instruction.operands[0], space)
    unit = place.unit
    if action == "inval":

        def inval(sel: Selection) -> None:
            for _, offset, home in place.groups(sel):
                unit.invalidate(offset, home)

        return inval
    counts = decoder.src(instruction, instruction.operands[1], TYPES["u32"])

    def init(sel: Selection) -> None:
        place.access.scatter(sel, counts[sel].astype(np.uint64))  # its bytes are opaque, and initialised
        for lanes, offset, home in place.groups(sel, accessed=False, there=False):
            unit.init(lanes, offset, home, counts[lanes].astype(np.int64), instruction)

    return init


def _arrive(decoder: Decoder, instruction: Instruction, mods: Mods) -> Step:
    expects, last = mods.flag("expect_tx"), not mods.flag("noComplete")
    releases = _order(mods, ("release",))
    space = take_space(mods)
    mods.choice(("b64",))
    mods.done()
    operands = list(instruction.operands)
    token = None
    if not isinstance(operands[0], Address):
        target = operands.pop(0)
        if not isinstance(target, Symbol):
            token = decoder.dst(instruction, target, TYPES["b64"])
    place = Place(decoder, instruction, operands[0], space)
    many = decoder.src(instruction, operands[1] if len(operands) > 1 else Immediate(1), TYPES["u32"])
    unit, observers = place.unit, decoder.machine.observers

    def step(sel: Selection) -> None:
        for lanes, offset, home in place.groups(sel):
            amounts = many[lanes].astype(np.int64)
            if expects:
                unit.expect(lanes, offset, home, amounts, instruction)
            if releases:
                for observer in observers:
                    observer.release(Signal(offset, home).key, lanes, home)
            ones = np.ones(len(home), dtype=np.int64) if expects else amounts
            tokens = unit.arrive(lanes, offset, home, ones, instruction, last)
            if token is not None:
                token[lanes] = tokens

    return step


def _transactions(decoder: Decoder, instruction: Instruction, mods: Mods, action: str) -> Step:
    _order(mods, ())
    space = take_space(mods)
    mods.choice(("b64",))
    mods.done()
    place = Place(decoder, instruction, instruction.operands[0], space)
    many = decoder.src(instruction, instruction.operands[1], TYPES["u32"])
    act = place.unit.expect if action == "expect_tx" else place.unit.bytes_came

    def step(sel: Selection) -> None:
        for lanes, offset, home in place.groups(sel):
            act(lanes, offset, home, many[lanes], instruction)

    return step


class _Wait:
    """The operands of test_wait and try_wait."""

    def __init__(self, decoder: Decoder, instruction: Instruction, mods: Mods) -> None:
        parity = mods.flag("parity")
        self.acquires = _order(mods, ("acquire",))
        space = take_space(mods)
        if space == "shared::cluster":
            raise mods.unsupported("waiting for an mbarrier of another CTA is not allowed")
        mods.choice(("b64",))
        mods.done()
        self.instruction, self.parity = instruction, parity
        self.result = decoder.dst(instruction, instruction.operands[0], TYPES["pred"])
        self.place = Place(decoder, instruction, instruction.operands[1], space)
        type_ = TYPES["u32" if parity else "b64"]
        self.state = decoder.src(instruction, instruction.operands[2], type_)
        if len(instruction.operands) > 3:
            decoder.src(instruction, instruction.operands[3], TYPES["u32"])  # how long to be suspended at most

    def entries(self, sel: Selection, resume: int) -> list[_Waiting]:
        """What each group of lanes waits for; lanes without an mbarrier get true, and are reported."""
        self.result[sel] = True
        found: list[_Waiting] = []
        for lanes, offset, home in self.place.groups(sel):
            now = self.place.unit.objects[offset].phase[home]
            if self.parity:  # the current phase if it has that parity, otherwise the one before
                phase = np.where((self.state[lanes] & 1) == now & 1, now, now - 1)
            else:
                phase = (self.state[lanes] >> _PENDING_BITS).astype(np.int64)
                old = phase < now - 1
                if old.any():
                    what = f"waits for a phase of the mbarrier at offset {offset} that ended more than one phase ago"
                    self.place.unit.misuse(subset(lanes, old), self.instruction, what, "usually a state token too old")
            self.result[lanes] = False
            found.append(_Waiting(lanes, offset, home, phase, resume, self.instruction, self.result, self.acquires))
        return found


def _test_wait(decoder: Decoder, instruction: Instruction, mods: Mods) -> Step:
    wait = _Wait(decoder, instruction, mods)
    unit = wait.place.unit

    def step(sel: Selection) -> None:
        for entry in wait.entries(sel, 0):
            over = unit.objects[entry.offset].phase[entry.home] > entry.phase
            if over.any():
                unit.complete(entry.part(over))

    return step


@block_end("mbarrier.try_wait")
def _try_wait(flow: Flow, instruction: Instruction, following: int) -> End:
    mods = Mods(instruction)
    mods.choice(("try_wait",))
    wait = _Wait(flow.decoder, instruction, mods)
    unit = wait.place.unit

    def end(sel: Selection) -> list[Resume]:
        ready = np.ones(flow.machine.lanes, dtype=np.bool_)
        for entry in wait.entries(sel, following):
            over = unit.objects[entry.offset].phase[entry.home] > entry.phase
            if over.any():
                unit.complete(entry.part(over))
            if not over.all():
                waiting = entry.part(~over)
                unit.waiting.append(waiting)
                ready[waiting.sel] = False
        mask = ready[sel]
        return [(following, sel)] if mask.all() else [(following, subset(sel, mask))] if mask.any() else []

    return end
