"""Fences (PTX ISA, "membar, fence", "griddepcontrol").

Instructions run one after the other here, and their effects are visible at once: a fence changes no value. Only the
checks use it: for the releases of a relaxed arrival at a cluster barrier, for releases and acquires through memory, and
for visibility in the async proxy.
"""

from __future__ import annotations

from warpsan.engine.selection import Selection
from warpsan.ptx.forms import DESCRIPTOR_BYTES
from warpsan.ptx.grammar import Form, form_of
from warpsan.ptx.ir import Instruction
from warpsan.ptx.synchronising import ProxyFence, TensorMapFence
from warpsan.replay.access import Accessor
from warpsan.replay.decoder import Decoder, Step, opcode

__all__: list[str] = []


@opcode("fence", "membar")
def _fence(decoder: Decoder, instruction: Instruction) -> Step:
    form, observers = form_of(instruction, Form), decoder.machine.observers
    if isinstance(form, TensorMapFence):
        return _tensor_map_fence(decoder, instruction)
    spaces = form.spaces if isinstance(form, ProxyFence) else None

    def step(sel: Selection) -> None:
        for observer in observers:
            if spaces is None:
                observer.fence(sel, instruction)
            elif spaces:
                observer.proxy_fence(sel, spaces)

    return step


def _tensor_map_fence(decoder: Decoder, instruction: Instruction) -> Step:
    """A release of writes to tensor maps, or an acquire of the map at an address."""
    observers, operands = decoder.machine.observers, instruction.operands
    if not operands:

        def release(sel: Selection) -> None:
            for observer in observers:
                observer.tensor_map_fence(sel, instruction, None)

        return release
    maps = Accessor(decoder, instruction, operands[0], "generic", 1, "global")

    def acquire(sel: Selection) -> None:
        for part in maps.parts(sel, width=DESCRIPTOR_BYTES):
            for observer in observers:
                observer.tensor_map_fence(sel, instruction, part)

    return acquire


@opcode("griddepcontrol.wait")
def _griddepcontrol(decoder: Decoder, instruction: Instruction) -> Step:
    """Launches run one after the other, so the grids that a grid depends on are complete."""
    return lambda sel: None
