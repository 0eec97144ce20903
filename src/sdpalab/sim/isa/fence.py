"""Fences (PTX ISA, "membar, fence").

Instructions run one after the other here, each seen by all at once: a fence moves no data. It matters to the checks: to
what a relaxed arrival at a cluster barrier passes on, to what is released and acquired through memory, and to what is
visible in the async proxy.
"""

from __future__ import annotations

from sdpalab.sim.decode import Decoder, Mods, Step, opcode
from sdpalab.sim.ir import Instruction
from sdpalab.sim.selection import Selection

__all__: list[str] = []


@opcode("fence", "membar")
def _fence(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    observers = decoder.machine.observers
    if mods.flag("proxy"):
        return _proxy_fence(decoder, mods)
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


def _proxy_fence(decoder: Decoder, mods: Mods) -> Step:
    """Between the generic proxy and another; a check tracks the visibility of shared memory in the async proxy."""
    observers = decoder.machine.observers
    kind = mods.choice(("async", "alias", "tensormap::generic"))
    space = mods.choice(("global", "shared::cta", "shared::cluster"), default="") if kind == "async" else ""
    if kind == "tensormap::generic":  # nothing here changes a tensor map
        mods.choice(("acquire", "release"))
        mods.choice(("cta", "cluster", "gpu", "sys"))
    mods.done()
    spaces = (space.split("::")[0],) if space else ("shared", "global")

    def step(sel: Selection) -> None:
        for observer in observers if kind == "async" else ():
            observer.proxy_fence(sel, spaces)

    return step
