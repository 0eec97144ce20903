"""Bulk copies of tensor boxes: cp.async.bulk.tensor (PTX ISA, "Tensor copies"), in tile mode.

The mbarrier counts the whole box, including the part outside the tensor: this part is filled on loads, and left out on
stores and reductions.
"""

from __future__ import annotations

import numpy as np

from warpsan.engine.machine import Machine
from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Indices, Selection, indices
from warpsan.errors import LaunchError
from warpsan.host.tensor_map import DESCRIPTOR_BYTES, PlacedMap, swizzled
from warpsan.ptx.grammar import form_of
from warpsan.ptx.ir import Instruction, TensorAddress
from warpsan.ptx.synchronising import TensorCopy, TensorReduction
from warpsan.ptx.types import TYPES
from warpsan.replay.access import Accessor
from warpsan.replay.bulk_copies import BulkCopies, Transfer
from warpsan.replay.bulk_copy import multicast_targets
from warpsan.replay.decoder import Decoder, Step, opcode
from warpsan.replay.mbarrier import MbarrierOperand

__all__: list[str] = []

_ALIGNMENT = 128
"""Alignment of a box in shared memory in bytes."""


class _Boxes:
    """The ``[map, {x, y, ...}]`` operand of an instruction."""

    def __init__(self, decoder: Decoder, instruction: Instruction, box: TensorAddress) -> None:
        self.machine = decoder.machine
        self.access = Accessor(decoder, instruction, box.map, "generic", 64, "global")
        self.coordinates = [decoder.src(instruction, item, TYPES["s32"]) for item in box.coordinates]

    def groups(self, sel: Selection) -> list[tuple[PlacedMap, Indices, Indices]]:
        """(map, lanes, coordinates [lanes, axes]) for each tensor map of the lanes."""
        groups = []
        for access in self.access.parts(sel, width=DESCRIPTOR_BYTES):
            for observer in self.machine.observers:
                observer.tensor_map_use(access)
            lanes = indices(access.sel)
            for begin in np.unique(access.index):
                mine = lanes[access.index == begin]
                described = self.machine.descriptors.get(int(begin))
                placed = self._map(described or bytes(access.space.data[begin : begin + DESCRIPTOR_BYTES]))
                if placed is not None:
                    groups.append(
                        (placed, mine, np.stack([each[mine] for each in self.coordinates], 1).astype(np.int64))
                    )
        return groups

    def _map(self, descriptor: bytes) -> PlacedMap | None:
        """The map that these bytes describe; None if it does not suit the instruction."""
        try:
            placed = PlacedMap.read(descriptor)
        except LaunchError:
            return None
        if placed is None or len(placed.map.dims) != len(self.coordinates):
            return None
        return placed if self.machine.spaces["global"].holds(placed.begin, placed.map.reach) else None


@opcode("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")
def _tensor_copy(decoder: Decoder, instruction: Instruction) -> Step:
    """One lane copies a box of a tensor, in tile mode, or combines it with the stored values."""
    form = form_of(instruction, TensorCopy)
    boxes = _Boxes(decoder, instruction, form.box)
    return (_store if form.stores else _load)(decoder, instruction, form, boxes)


def _goals(access: Accessor, lanes: Indices, placed: PlacedMap) -> list[tuple[Indices, Indices]]:
    """(lanes, byte indices of the start) of the boxes that lie in shared memory as required."""
    return [(indices(part.sel), part.index) for part in access.parts(lanes, width=placed.map.box_bytes)]


def _places(machine: Machine, placed: PlacedMap, begin: Indices, unit: int) -> Indices:
    """Places of the units of boxes in shared memory [boxes, units], by the address bits that the swizzle mixes."""
    base = begin // machine.shared_stride * machine.shared_stride
    offset = (begin - base)[:, None] + unit * np.arange(placed.map.box_bytes // unit)
    return swizzled(offset, placed.map.swizzle) + base[:, None]


def _load(decoder: Decoder, instruction: Instruction, form: TensorCopy, boxes: _Boxes) -> Step:
    operands = list(instruction.operands)
    if form.hint:
        operands.pop()
    masks = decoder.src(instruction, operands.pop(), TYPES["u16"]) if form.casts else None
    machine, unit = decoder.machine, BulkCopies.of(decoder.machine)
    access = Accessor(decoder, instruction, operands[0], form.space, _ALIGNMENT)
    mbarrier = MbarrierOperand(decoder, instruction, operands[2], form.space)

    def step(sel: Selection) -> None:
        for placed, named, coordinates in boxes.groups(sel):
            for lanes, begin in _goals(access, named, placed):
                for chosen, offset, home in mbarrier.groups(lanes, accessed=False):
                    row = np.searchsorted(lanes, indices(chosen))
                    box = placed.box_at(coordinates[np.searchsorted(named, lanes[row])])
                    goal, many = begin[row], np.arange(len(row))
                    if masks is not None:
                        many, home = multicast_targets(machine, lanes[row], masks[lanes[row]])
                        goal = goal[many] % machine.shared_stride + home * machine.shared_stride
                    unit.issue(
                        Transfer(
                            *(instruction, lanes[row][many], np.zeros(len(many), np.int64), box.unit),
                            ("global", box.index[many]),
                            ("shared", _places(machine, placed, goal, box.unit)),
                            box.inside[many],
                            CompletionBarrier(offset, home),
                        )
                    )

    return step


def _store(decoder: Decoder, instruction: Instruction, form: TensorCopy, boxes: _Boxes) -> Step:
    machine, unit = decoder.machine, BulkCopies.of(decoder.machine)
    access = Accessor(decoder, instruction, instruction.operands[1], "shared", _ALIGNMENT)

    def step(sel: Selection) -> None:
        for placed, named, coordinates in boxes.groups(sel):
            for lanes, begin in _goals(access, named, placed):
                box = placed.box_at(coordinates[np.searchsorted(named, lanes)])
                unit.issue(
                    Transfer(
                        *(instruction, lanes, unit.groups[lanes].copy(), box.unit),
                        ("shared", _places(machine, placed, begin, box.unit)),
                        ("global", box.index),
                        box.inside,
                        reduces=isinstance(form, TensorReduction),
                    )
                )

    return step
