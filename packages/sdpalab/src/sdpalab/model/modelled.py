"""The modelled time of a plan: for each step the issue schedule of its machine code, and a floor by counts.

The schedule (:mod:`sdpalab.model.schedule`) gives the time of an SM for its resident CTAs, and the placement of the
CTAs the end of the last one. DRAM traffic is a lower bound, and each step has a launch time. Steps without a schedule,
because they are library products or their counts fit no path through the machine code, use the floor instead, and
state that.

The floor divides the work of a step by the rates of the GPU. All resources of an SM are assumed to work at their peaks
concurrently whenever there is work. The floor includes the distribution of CTAs over SMs and whether an SM has a warp
for each sub-core. It excludes latency and dependencies, barriers, fill and drain, launches, the integer pipe, shuffles,
shared-memory traffic of TMA and wgmma, hits in L1, traffic between L2 and DRAM beyond the least, the lower rate of
``mma.sync`` on GPUs with wgmma, and clocks that fall under load. Issue slots are counted on the PTX, from which the
compiler removes some instructions (moves) and to which it adds others; :mod:`sdpalab.model.turn` counts the machine
code.

Sources: CUDA C++ Programming Guide 13.0, "Compute Capability 8.x" and "9.0": four warp schedulers per SM that issue one
instruction per clock each, and 32 banks of shared memory, each 32 bits wide and accessed once per clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sdpalab.errors import UserError
from sdpalab.inputs import dtype_of
from sdpalab.kernels.plan import Gemm, LaunchPlan
from sdpalab.model.pipes import SUB_CORES, pipes_of
from sdpalab.model.placement import wave_efficiency
from sdpalab.model.schedule import Schedule
from warpsan.gpus import Gpu
from warpsan.profile import SECTOR, Counters

__all__ = [
    "ModelledStep",
    "ModelledTime",
    "Resource",
    "StepWork",
    "gemm_work",
    "is_float8",
    "launch_work",
    "modelled",
]

ISSUE_PER_CLK_SM = SUB_CORES
"""Warp instructions that an SM issues per clock."""

WAVEFRONTS_PER_CLK_SM = 1
"""Passes of 128 bytes that the shared memory of an SM serves per clock."""

_FP8 = re.compile(r"\.e[45]m[32]\b")
_OTHER_TYPES = re.compile(r"\.(tf32|f64|[su][48]|b1|e[23]m[123])\b")


@dataclass(frozen=True)
class StepWork:
    """Work of one step of a plan.

    Attributes
    ----------
    name : str
        Name of the entry or the library product.
    tensor_flops : mapping of str to int
        Multiplications and additions of the matrix instructions by their operands' type, ``fp16`` (also bfloat16) or
        ``fp8``.
    warp_instructions : int
        PTX instructions issued.
    special_lanes : int
        Results of the special function unit: exponentials, logarithms, reciprocals.
    wavefronts : int
        Passes of 128 bytes through shared memory.
    l2_bytes : int
        Bytes between the SMs and L2.
    dram_bytes : int
        Distinct bytes that are read or written.
    cold_bytes : int
        The part of them that no earlier step accesses: inputs and outputs, without intermediate results in L2.
    by_cta : tuple of int
        Warp instructions of each CTA in launch order; empty for a library product, whose CTAs are unknown and assumed
        to fill the GPU evenly.
    blocks_per_sm : int
        Resident CTAs of an SM.
    warps : int
        Warps of a CTA; 0 if unknown.
    schedule : Schedule or None
        Schedule of its machine code.
    no_schedule : str
        Why the schedule is missing, in one sentence.
    """

    name: str
    tensor_flops: Mapping[str, int] = field(default_factory=dict)
    warp_instructions: int = 0
    special_lanes: int = 0
    wavefronts: int = 0
    l2_bytes: int = 0
    dram_bytes: int = 0
    cold_bytes: int = 0
    by_cta: tuple[int, ...] = ()
    blocks_per_sm: int = 1
    warps: int = 0
    schedule: Schedule | None = field(default=None, compare=False)
    no_schedule: str = ""


@dataclass(frozen=True)
class Resource:
    """Least time of one resource in microseconds with evenly filled SMs, and the calculation."""

    name: str
    microseconds: float
    how: str


@dataclass(frozen=True)
class ModelledStep:
    """The modelled time of a step.

    Attributes
    ----------
    resources : tuple of Resource
        tensor, issue, exp, shared and l2, all divided evenly among the SMs, and dram.
    wave_efficiency : float
        See :func:`wave_efficiency`; 1 for a library product.
    floor_us : float
        The longest of the resources, those of an SM divided by the wave efficiency.
    binds : str
        Name of the resource with the longest time.
    issue_share : float or None
        Issue slots over tensor time, both of the same SMs; None without matrix instructions.
    schedule_us : float or None
        Time until the last CTA ends, by the issue schedule; None without one, for the reason ``no_schedule``.
    launch_us : float
        Time of an empty kernel on this GPU, in a graph.
    microseconds : float
        The launch time plus the longer of schedule and DRAM time; without a schedule, the floor.
    """

    name: str
    resources: tuple[Resource, ...]
    wave_efficiency: float
    floor_us: float
    binds: str
    issue_share: float | None
    schedule_us: float | None
    no_schedule: str
    launch_us: float
    microseconds: float


@dataclass(frozen=True)
class ModelledTime:
    """The modelled time of a plan on a GPU: the sum of its consecutive steps."""

    gpu: str
    steps: tuple[ModelledStep, ...]
    cold: bool
    kind: str = "modelled"

    @property
    def microseconds(self) -> float:
        """Time of all steps together."""
        return sum(step.microseconds for step in self.steps)

    @property
    def floor_us(self) -> float:
        """Least time of the steps, by counts."""
        return sum(step.floor_us for step in self.steps)

    @property
    def longest(self) -> ModelledStep:
        """The step with the longest time."""
        return max(self.steps, key=lambda step: step.microseconds)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        totals = {"microseconds": self.microseconds, "floor_us": self.floor_us, "binds": self.longest.binds}
        return {**asdict(self), **totals}


def launch_work(name: str, counters: Counters, blocks_per_sm: int, *, fp8_units: bool = True) -> StepWork:
    """The work of a launch, from the simulator's counts.

    Parameters
    ----------
    name : str
    counters : Counters
    blocks_per_sm : int
    fp8_units : bool
        Whether the machine code multiplies float8. If not, as with ``mma.sync`` for sm_90, the compiler has replaced
        float8 products by float16 products.

    Raises
    ------
    UserError
        If it has matrix instructions on a type whose peak is missing from the lab's data file.
    """
    flops: dict[str, int] = {}
    for each in counters.by_instruction:
        if each.tensor_flops:
            other = _OTHER_TYPES.search(each.text)
            if other:
                raise UserError(f"{name}: no peak rate is known for {each.text.split()[0]}, with operands {other[1]}")
            precision = "fp8" if fp8_units and is_float8(each.text) else "fp16"
            flops[precision] = flops.get(precision, 0) + each.tensor_flops
    return StepWork(
        name=name,
        tensor_flops=flops,
        warp_instructions=counters.total("warps"),
        special_lanes=counters.total("lanes", "special"),
        wavefronts=counters.total("wavefronts"),
        l2_bytes=SECTOR * counters.total("sectors"),
        dram_bytes=counters.compulsory_read_bytes + counters.compulsory_write_bytes,
        by_cta=tuple(counters.by_cta),
        blocks_per_sm=blocks_per_sm,
        warps=len(counters.by_warp),
    )


def is_float8(instruction: str) -> bool:
    """Whether a matrix instruction of PTX multiplies float8."""
    return _FP8.search(instruction) is not None


def gemm_work(gemm: Gemm, plan: LaunchPlan) -> StepWork:
    """The work of a library product: FLOPs at the rate of its operands, and each matrix moved once."""
    moved = 0
    for operand, matrix in gemm.matrices.items():
        buffer = plan.buffer(getattr(gemm, operand))
        moved += gemm.batch * matrix.rows * matrix.columns * dtype_of(buffer.dtype).itemsize
    precision = "fp8" if dtype_of(plan.buffer(gemm.a).dtype).itemsize == 1 else "fp16"
    return StepWork("matrix product", {precision: gemm.flops}, l2_bytes=moved, dram_bytes=moved)


def modelled(works: Iterable[StepWork], gpu: Gpu, *, cold: bool = False) -> ModelledTime:
    """The modelled time of consecutive steps.

    Parameters
    ----------
    works : iterable of StepWork
    gpu : Gpu
    cold : bool
        Whether inputs and outputs cross DRAM. If False they are in L2. The excess of a step over L2 crosses DRAM
        always.

    Raises
    ------
    UserError
        If the GPU has no tensor unit for a type, or the CTAs of a step do not fit on an SM.
    """
    return ModelledTime(gpu.name, tuple(_step(work, gpu, cold=cold) for work in works), cold)


def _step(work: StepWork, gpu: Gpu, *, cold: bool) -> ModelledStep:
    if work.blocks_per_sm < 1:
        raise UserError(f"{work.name}: no block of it fits on an SM of {gpu.name}")
    crossing = max(work.dram_bytes - gpu.l2_mib * 2**20, work.cold_bytes if cold else 0.0, 0.0)
    flops = " and ".join(f"{count / 1e6:,.1f} MFLOP {precision}" for precision, count in work.tensor_flops.items())
    used = _sub_cores_used(work, gpu)
    flops += f", on {used} of {SUB_CORES} sub-cores" if flops and used < SUB_CORES else ""
    share = used / SUB_CORES
    of_an_sm = (
        Resource("tensor", _tensor_us(work, gpu) / share, flops or "no matrix instruction"),
        _per_clock("issue", work.warp_instructions, ISSUE_PER_CLK_SM * share, "warp instructions", gpu),
        _per_clock("exp", work.special_lanes, gpu.exp_per_clk_sm * share, "special function results", gpu),
        _per_clock("shared", work.wavefronts, WAVEFRONTS_PER_CLK_SM, "wavefronts", gpu),
        _per_clock("l2", work.l2_bytes, gpu.l2_bytes_per_clk_sm, "bytes", gpu),
    )
    dram = Resource("dram", crossing / gpu.dram_gb_s / 1e3, f"{crossing:,.0f} bytes at {gpu.dram_gb_s:g} GB/s")
    efficiency = wave_efficiency(work.by_cta, work.blocks_per_sm, gpu.sms) if work.by_cta else 1.0
    times = {each.name: each.microseconds / efficiency for each in of_an_sm} | {"dram": dram.microseconds}
    binds = max(times, key=lambda name: times[name])
    tensor, issue = of_an_sm[0].microseconds, of_an_sm[1].microseconds
    issue_share = issue / tensor if tensor and issue else None
    schedule, launch = _schedule_us(work, gpu), _launch_us(gpu)
    spent = launch + (times[binds] if schedule is None else max(schedule, dram.microseconds))
    floor = (work.name, (*of_an_sm, dram), efficiency, times[binds], binds, issue_share)
    return ModelledStep(*floor, schedule, "" if work.schedule else work.no_schedule, launch, spent)


def _sub_cores_used(work: StepWork, gpu: Gpu) -> int:
    """Largest number of sub-cores of an SM with a warp of the step."""
    if not work.warps:
        return SUB_CORES
    resident = min(work.blocks_per_sm, -(-len(work.by_cta) // gpu.sms))
    return min(SUB_CORES, resident * work.warps)


def _schedule_us(work: StepWork, gpu: Gpu) -> float | None:
    """Time until the last CTA ends; the CTAs of an SM progress at the schedule's rate for their number."""
    if work.schedule is None:
        return None
    return work.schedule.last_end(work.by_cta, work.blocks_per_sm, gpu.sms) / gpu.clock_mhz


def _launch_us(gpu: Gpu) -> float:
    try:
        return pipes_of(gpu).launch_us
    except UserError:  # unknown latencies of this GPU: no schedule either
        return 0.0


def _per_clock(name: str, count: int, rate: float, unit: str, gpu: Gpu) -> Resource:
    how = f"{count:,} {unit} at {gpu.sms} SM x {rate:g} a clock x {gpu.clock_mhz / 1e3:.2f} GHz"
    return Resource(name, count / (gpu.sms * rate * gpu.clock_mhz), how)


def _tensor_us(work: StepWork, gpu: Gpu) -> float:
    return sum(count / _tflops(gpu, precision) / 1e6 for precision, count in work.tensor_flops.items())


def _tflops(gpu: Gpu, precision: str) -> float:
    tflops = {"fp16": gpu.fp16_tflops, "fp8": gpu.fp8_tflops}[precision]
    if tflops is None:
        raise UserError(f"{gpu.name} has no {precision} tensor unit")
    return tflops
