"""Sentences on the limits of a kernel, from the figures of one launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sdpalab.profile.metrics import STALLS
from sdpalab.profile.raw_csv import LaunchProfile

__all__ = ["Observation", "observations"]

BUSY = 80.0
"""Percentage of its peak from which a unit counts as limiting; higher values are rarely sustained."""

LOW_OCCUPANCY = 0.8
MOST_CONFLICTS = 0.1
_WORKING = ("selected", "not_selected")
_MOST_REASONS = 2

_UNITS = {
    "tensor": "the tensor cores: nothing but fewer or narrower products makes it faster",
    "dram": "DRAM: read less, or keep it in L2",
    "l2": "L2: take larger tiles, or share them over a cluster",
    "l1": "shared memory and L1: look at bank conflicts, and at wider accesses",
    "exp": "the exponential unit: compute a part of the exponentials on the FMA pipe",
    "issue": "the issue slots: it executes too many instructions beside the products",
    "fma": "the FMA pipe",
    "alu": "the ALU pipe",
}


@dataclass(frozen=True)
class Observation:
    """One sentence and its figures; ``limits`` is True for the limit of the kernel."""

    sentence: str
    figures: tuple[str, ...]
    limits: bool


def observations(launch: LaunchProfile) -> tuple[Observation, ...]:
    """The limit of the launch, then further observations.

    A unit that is busy more than 80% of the time limits the launch; without one, warps wait, and the most frequent wait
    reason is the limit. Figures that ncu did not report give no sentences.
    """
    return (*_limits(launch), *_noticed(launch))


def _limits(launch: LaunchProfile) -> Iterator[Observation]:
    figures = launch.figures
    busy = sorted((key for key in _UNITS if figures.get(key, 0.0) >= BUSY), key=lambda key: -figures[key])
    if busy:
        for key in busy:
            yield Observation(f"limited by {_UNITS[key]} ({figures[key]:.0f}% busy)", (key,), True)
        return
    most = max((key for key in _UNITS if key in figures), key=lambda key: figures[key], default=None)
    if most is not None:
        yield Observation(
            f"limited by latency: no unit is busy {BUSY:.0f}% of the time, the most is {figures[most]:.0f}% ({most})",
            (most,),
            True,
        )
    waiting = {name: warps for name, warps in launch.stalls.items() if name not in _WORKING and warps > 0}
    total = sum(waiting.values())
    for name in list(waiting)[:_MOST_REASONS]:
        yield Observation(
            f"{waiting[name] / total:.0%} of the waiting warps wait {_meaning(name)} ({name})", (name,), True
        )


def _noticed(launch: LaunchProfile) -> Iterator[Observation]:
    figures = launch.figures
    waves = figures.get("waves")
    if waves is not None and waves < 1:
        yield Observation(f"the grid is {waves:.2f} of a wave: SMs are idle from the start", ("waves",), False)
    elif waves is not None and waves % 1 and waves < 4:
        share = waves / -(-waves // 1)
        yield Observation(
            f"{waves:.2f} waves of blocks: the last one leaves the GPU {share:.0%} filled", ("waves",), False
        )
    achieved, possible = figures.get("occupancy"), figures.get("occupancy_limit")
    if achieved is not None and possible and achieved < LOW_OCCUPANCY * possible:
        yield Observation(
            f"occupancy is {achieved:.0f}% and could be {possible:.0f}%: too few blocks, or uneven ones",
            ("occupancy", "occupancy_limit"),
            False,
        )
    wavefronts, conflicts = figures.get("wavefronts"), figures.get("conflicts")
    if wavefronts and conflicts is not None and conflicts > MOST_CONFLICTS * wavefronts:
        yield Observation(
            f"{conflicts / wavefronts:.0%} of the shared-memory wavefronts are bank conflicts",
            ("conflicts", "wavefronts"),
            False,
        )
    if figures.get("local", 0.0) > 0:
        yield Observation(
            f"{figures['local']:.0f} warp instructions on local memory: registers spill", ("local",), False
        )


def _meaning(name: str) -> str:
    return STALLS.get(name, "for a reason that is not in the lab's table")
