"""Fences (PTX ISA, "membar, fence", "griddepcontrol").

Instructions run one after the other here, and their effects are visible at once: a fence changes no value. Only the
checks use it: for the releases of a relaxed arrival at a cluster barrier, for releases and acquires through memory, and
for visibility in the async proxy.
"""

from __future__ import annotations

from warpsan.engine.selection import Selection
from warpsan.host.tensor_map import DESCRIPTOR_BYTES
from warpsan.ptx.ir import Immediate, Instruction
from warpsan.ptx.modifiers import Mods
from warpsan.replay.access import Accessor
from warpsan.replay.decoder import Decoder, Step, opcode

__all__ = ["one_way_release"]


@opcode("fence", "membar")
def _fence(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    observers = decoder.machine.observers
    if mods.flag("proxy"):
        return _proxy_fence(decoder, instruction, mods)
    if instruction.opcode == "membar":
        mods.choice(("cta", "gl", "sys"))
    elif mods.flag("mbarrier_init"):
        mods.choice(("release",))
        mods.choice(("cluster",))
    else:
        mods.choice(("sc", "acq_rel", "acquire", "release"), default="acq_rel")
        mods.choice(("cta", "cluster", "gpu", "sys"))
    mods.done()

    def step(sel: Selection) -> None:
        for observer in observers:
            observer.fence(sel, instruction)

    return step


def _proxy_fence(decoder: Decoder, instruction: Instruction, mods: Mods) -> Step:
    """A fence between the generic proxy and another; checks track visibility in the async and the tensor map proxy."""
    observers = decoder.machine.observers
    kind = mods.choice(("async", "alias", "async::generic", "tensormap::generic"))
    if kind == "tensormap::generic":
        return _tensor_map_fence(decoder, instruction, mods)
    space = mods.choice(("global", "shared::cta", "shared::cluster"), default="") if kind == "async" else ""
    if kind == "async::generic" and one_way_release(mods):
        kind, space = "async", "shared::cta"
    mods.done()
    spaces = (space.split("::")[0],) if space else ("shared", "global")

    def step(sel: Selection) -> None:
        for observer in observers if kind == "async" else ():
            observer.proxy_fence(sel, spaces)

    return step


def one_way_release(mods: Mods) -> bool:
    """Take the rest of ``fence.proxy.async::generic``. Returns whether it is the release, which makes writes to the
    block's shared memory visible in the async proxy. Its acquire orders reads in the generic proxy, which are not
    checked."""
    order = mods.choice(("acquire", "release"))
    mods.choice((f"sync_restrict::shared::{'cta' if order == 'release' else 'cluster'}",))
    mods.choice(("cluster",))
    return order == "release"


def _tensor_map_fence(decoder: Decoder, instruction: Instruction, mods: Mods) -> Step:
    """A release of writes to tensor maps, or an acquire of the map at an address."""
    order = mods.choice(("acquire", "release"))
    mods.choice(("cta", "cluster", "gpu", "sys"))
    mods.done()
    observers, operands = decoder.machine.observers, instruction.operands
    if order == "release":
        if operands:
            raise mods.unsupported("a release has no operands")

        def release(sel: Selection) -> None:
            for observer in observers:
                observer.tensor_map_fence(sel, instruction, None)

        return release
    if len(operands) != 2 or operands[1] != Immediate(DESCRIPTOR_BYTES):
        raise mods.unsupported(f"an acquire takes the address of a tensor map and its size, {DESCRIPTOR_BYTES}")
    maps = Accessor(decoder, instruction, operands[0], "generic", 1, "global")

    def acquire(sel: Selection) -> None:
        for part in maps.parts(sel, width=DESCRIPTOR_BYTES):
            for observer in observers:
                observer.tensor_map_fence(sel, instruction, part)

    return acquire


@opcode("griddepcontrol")
def _griddepcontrol(decoder: Decoder, instruction: Instruction) -> Step:
    """Launches run one after the other, so the grids that a grid depends on are complete; a check uses the accesses
    after it."""
    mods = Mods(instruction)
    waits = mods.choice(("wait", "launch_dependents")) == "wait"
    mods.done()
    observers = decoder.machine.observers

    def step(sel: Selection) -> None:
        for observer in observers:
            observer.grid_wait(sel, instruction)

    return step if waits else lambda sel: None
