"""The profile of a kernel without a GPU: figures of the compiler, the simulator and the model.

No figure is measured. Each has its kind: *compiled* (read from the cubin), *simulated* (counted on the PTX in the
simulator) or *modelled* (:mod:`sdpalab.model`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sdpalab.compile import Resources
from sdpalab.compile.sass import SassInstruction, main_loop, without_padding
from sdpalab.kernels.plan import Dim3
from sdpalab.kernels.sources import kernel_sources
from sdpalab.model.counted import CountedLaunch, CountedPlan
from sdpalab.model.critical_path import CriticalPath
from sdpalab.model.modelled import ModelledStep, ModelledTime, StepWork, modelled
from sdpalab.profile.source_lines import LineFigures, line_figures
from warpsan.build import sm_limits
from warpsan.gpus import Gpu
from warpsan.profile import Counters
from warpsan.report import Sources

__all__ = ["IssueModel", "LaunchFigures", "SimulatedProfile", "hot_lines", "simulated_profile"]


@dataclass(frozen=True)
class IssueModel:
    """Issue of a launch's machine code on a full SM; modelled.

    Attributes
    ----------
    resident : int
        Blocks on the SM.
    busy : mapping of str to float
        Share of the clocks in which each unit works, in descending order.
    turn_clocks : float or None
        Clocks per iteration of the dominant loop, over all resident warps; None without such a loop.
    """

    resident: int
    busy: Mapping[str, float]
    turn_clocks: float | None


@dataclass(frozen=True)
class LaunchFigures:
    """The figures of one launch.

    Attributes
    ----------
    name : str
        Name of the entry in the source.
    entry : str
        Name of the entry in the PTX.
    file : str
        Name of the source file.
    grid, block : (int, int, int)
    resources : Resources
        Compiled.
    counters : Counters
        Simulated.
    lines : tuple of LineFigures
        Figures by source line, in descending order of cost.
    loop : tuple of SassInstruction
        Compiled: the main loop, with the control fields of each instruction.
    step : ModelledStep or None
        Modelled; None if the plan has no modelled time.
    issue : IssueModel or None
        Modelled; None without an issue schedule.
    critical_path : CriticalPath or None
        Modelled; for kernels on wgmma whose blocks are all resident at once.
    """

    name: str
    entry: str
    file: str
    grid: Dim3
    block: Dim3
    resources: Resources
    counters: Counters
    lines: tuple[LineFigures, ...]
    loop: tuple[SassInstruction, ...]
    step: ModelledStep | None
    issue: IssueModel | None
    critical_path: CriticalPath | None

    @property
    def occupancy(self) -> float:
        """Resident warps divided by the largest number that an SM can hold, 0 to 1."""
        return self.resources.warps_per_sm / sm_limits(self.resources.arch).warps

    @property
    def files(self) -> tuple[str, ...]:
        """Source files of the instructions: the kernel's own, then the others by cost."""
        return tuple(dict.fromkeys((self.file, *(line.file for line in self.lines))))

    @property
    def stall_clocks(self) -> int:
        """Compiled: least clocks of one warp alone for an iteration of the main loop, by the stall counts."""
        return sum(max(1, each.control.stall) for each in self.loop if each.control is not None)

    @property
    def ctas(self) -> int:
        """Blocks of the grid."""
        return len(self.counters.by_cta)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, by kind of figure."""
        counters = self.counters
        totals = ("sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts")
        return {
            "entry": self.name,
            "grid": list(self.grid),
            "block": list(self.block),
            "compiled": {
                **self.resources.to_dict(),
                "occupancy": self.occupancy,
                "stall_clocks": self.stall_clocks,
                "loop": [
                    {"opcode": each.opcode, "control": str(each.control or ""), "source": each.source}
                    for each in self.loop
                ],
            },
            "simulated": {
                "warp_instructions": counters.total("warps"),
                "by_pipe": counters.mix(),
                **{name: counters.total(name) for name in totals},
                "tensor_flops": counters.tensor_flops,
                "exponentials": counters.exponentials,
                "compulsory_read_bytes": counters.compulsory_read_bytes,
                "compulsory_write_bytes": counters.compulsory_write_bytes,
                "divergence": counters.divergence,
            },
            "modelled": {
                "step": asdict(self.step) if self.step else None,
                "issue": asdict(self.issue) if self.issue else None,
                "critical_path": asdict(self.critical_path) if self.critical_path else None,
            },
            "lines": [{**asdict(line), "divergence": line.divergence} for line in self.lines],
        }


@dataclass(frozen=True)
class SimulatedProfile:
    """The launches of a plan, and the plan's modelled time; None for the reason ``not_modelled``."""

    gpu: Gpu
    arch: str
    launches: tuple[LaunchFigures, ...]
    time: ModelledTime | None
    not_modelled: str
    sources: Sources = field(compare=False)


def simulated_profile(counted: CountedPlan, gpu: Gpu, arch: str, *, cold: bool = False) -> SimulatedProfile:
    """The profile of a counted plan built for ``arch``, modelled for ``gpu``.

    With ``cold``, inputs and outputs cross DRAM in the model.

    Raises
    ------
    UserError
        If blocks of a launch do not fit on an SM of the GPU.
    """
    works = tuple(counted.works(gpu)) if not counted.not_modelled else ()
    time = modelled(works, gpu, cold=cold) if works else None
    steps = dict(zip(map(id, counted.steps), zip(time.steps, works, strict=True), strict=True)) if time else {}
    modules = (launch.launch.module for launch in counted.launches)
    sources = kernel_sources(module for module in modules if module is not None)
    launches = [_figures(each, sources, gpu, *steps.get(id(each), (None, None))) for each in counted.launches]
    return SimulatedProfile(gpu, arch, tuple(launches), time, counted.not_modelled, sources)


def _figures(
    counted: CountedLaunch,
    sources: Sources,
    gpu: Gpu,
    step: ModelledStep | None,
    work: StepWork | None,
) -> LaunchFigures:
    schedule = work.schedule if work else None
    issue = None
    if schedule is not None:
        resident = min(counted.resources.blocks_per_sm, -(-len(counted.counters.by_cta) // gpu.sms))
        issue = IssueModel(resident, schedule.busy(resident), schedule.turn_clocks(resident))
    launch = counted.launch
    return LaunchFigures(
        counted.name,
        counted.build.entry,
        launch.module.name if launch.module is not None else "",
        launch.grid,
        launch.block,
        counted.resources,
        counted.counters,
        line_figures(counted, sources, paths=schedule is not None),
        main_loop(without_padding(counted.code)),
        step,
        issue,
        counted.critical_path(gpu) if schedule is not None else None,
    )


def hot_lines(lines: Sequence[LineFigures], most: int) -> tuple[LineFigures, ...]:
    """The lines with the largest share of issued instructions, or of the PTX if issue is unknown."""
    return tuple(line for line in lines if line.warps or line.issued)[:most]
