"""Sentences on the figures of a simulated profile, with their source lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sdpalab.profile.observations import BUSY
from sdpalab.profile.simulated_profile import LaunchFigures
from sdpalab.profile.source_lines import LineFigures

__all__ = ["Remark", "remarks"]

NOTABLE = 0.05
"""Share of all wavefronts, sectors or inactive lanes from which on a line is reported."""
MOST_LINES = 3
FULL = 0.8
"""Share of the SMs' time below which an uneven distribution is reported."""

_ADVICE = {
    "tensor": "the tensor cores: only fewer or narrower products make it faster",
    "issue": "the issue slots: it issues too many instructions beside the products",
    "special": "the special function unit: compute a part of the exponentials on the FMA pipe",
    "shared": "shared memory: remove bank conflicts, or take wider accesses",
    "l2": "the port to L2: take larger tiles, or share them over a cluster",
    "float": "the float32 pipe",
    "alu": "the ALU pipe",
    "integer": "the integer multiply pipe",
    "convert": "the conversions",
    "half": "the half-precision pipe",
}


@dataclass(frozen=True)
class Remark:
    """One sentence and the kind of its figure: ``compiled``, ``simulated`` or ``modelled``.

    ``binds`` is True for the limit of the launch.
    """

    sentence: str
    kind: str
    binds: bool = False


def remarks(launch: LaunchFigures) -> tuple[Remark, ...]:
    """The limit first, then occupancy, conflicts, sectors, divergence and spills, as far as they are significant."""
    return (*_binding(launch), *_occupancy(launch), *_memory(launch), *_divergence(launch))


def _binding(launch: LaunchFigures) -> Iterator[Remark]:
    step, issue = launch.step, launch.issue
    if step is None:
        return
    if issue is None:
        why = f" ({step.no_schedule})" if step.no_schedule else ""
        yield Remark(f"{step.binds} binds, by counts alone: there is no issue schedule{why}", "modelled", True)
    else:
        dram = next(each.microseconds for each in step.resources if each.name == "dram")
        unit, share = next(iter(issue.busy.items()))
        if dram > (step.schedule_us or 0.0):
            yield Remark(f"limited by DRAM: {dram:.2f} us of {step.microseconds:.2f} us", "modelled", True)
        elif share * 100 >= BUSY:
            yield Remark(f"limited by {_ADVICE.get(unit, unit)} ({share:.0%} busy)", "modelled", True)
        else:
            yield Remark(
                f"limited by latency: no unit is busy {BUSY:.0f}% of the time, the busiest is {unit} with {share:.0%}",
                "modelled",
                True,
            )
    if step.wave_efficiency < FULL:
        yield Remark(
            f"the {launch.ctas} blocks fill the SMs to {step.wave_efficiency:.0%}: too few, or uneven ones", "modelled"
        )


def _occupancy(launch: LaunchFigures) -> Iterator[Remark]:
    used = launch.resources
    per_sm = f"{used.blocks_per_sm} block{'s' if used.blocks_per_sm != 1 else ''} an SM"
    yield Remark(f"occupancy {launch.occupancy:.0%}, {per_sm}, limited by {used.limiter}", "compiled")
    if used.spill_bytes:
        yield Remark(f"{used.spill_bytes} bytes in local memory: registers spill, or a local array", "compiled")


def _memory(launch: LaunchFigures) -> Iterator[Remark]:
    wavefronts, sectors = launch.counters.total("wavefronts"), launch.counters.total("sectors")
    for line in _worst(launch.lines, lambda line: line.conflicts, wavefronts):
        yield Remark(
            f"{line.place}: {line.wavefronts / line.ideal_wavefronts:.1f}x the wavefronts it needs, "
            f"{line.conflicts / wavefronts:.0%} of all are its bank conflicts",
            "simulated",
        )
    for line in _worst(launch.lines, lambda line: line.excess_sectors, sectors):
        yield Remark(
            f"{line.place}: {line.sectors / line.ideal_sectors:.1f}x the sectors it needs, "
            f"{line.excess_sectors / sectors:.0%} of all are too many: its lanes access bytes that lie apart",
            "simulated",
        )


def _divergence(launch: LaunchFigures) -> Iterator[Remark]:
    all_warps = launch.counters.total("warps")
    for line in _worst(launch.lines, lambda line: line.divergence * line.warps, all_warps):
        yield Remark(
            f"{line.place}: {line.divergence:.0%} of the lanes of its {line.warps:,} instructions are switched off",
            "simulated",
        )


def _worst(lines: Sequence[LineFigures], of: Callable[[LineFigures], float], total: float) -> list[LineFigures]:
    """The lines with a notable part of the total, the largest first."""
    notable = [line for line in lines if of(line) > NOTABLE * total]
    return sorted(notable, key=lambda line: -of(line))[:MOST_LINES]
