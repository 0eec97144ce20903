"""Speed of light: the least time a problem can take on a GPU, resource by resource.

Each floor is work divided by a peak rate, so no kernel that does the work can be faster. They are floors, not
predictions: a kernel that overlaps everything perfectly takes the largest of them, a real one takes more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sdpalab.errors import UserError
from sdpalab.problem import Problem

__all__ = [
    "GPUS",
    "PUBLISHED_MISSION_US",
    "Feasibility",
    "Floor",
    "Gpu",
    "binding_floor",
    "feasibility",
    "floors",
    "gpu_named",
]


@dataclass(frozen=True)
class Gpu:
    """Peak rates of one GPU, from ``gpus.json``; None where no figure with a source is known.

    Attributes
    ----------
    name, arch : str
        Marketing name and the architecture to compile for.
    sms : int
        Streaming multiprocessors.
    clock_mhz : float
        Clock at which the tensor peak holds, MHz.
    fp16_tflops, fp8_tflops : float
        Dense tensor peak with FP32 accumulation, TFLOPS.
    dram_gb_s : float
        DRAM bandwidth, GB/s (1e9).
    l2_mib : float
        Size of L2, MiB.
    exp_per_clk_sm : int
        Results of ``ex2.approx.f32`` per clock and SM.
    l2_bytes_per_clk_sm : int
        Bytes that one SM can read from L2 per clock (an assumption, see the data file).
    graph_node_us : float
        Time of one kernel node in a replayed CUDA graph, microseconds.
    source : str
        Where the figures come from.
    """

    name: str
    arch: str
    sms: int
    clock_mhz: float
    fp16_tflops: float
    fp8_tflops: float | None
    dram_gb_s: float
    l2_mib: float
    exp_per_clk_sm: int
    l2_bytes_per_clk_sm: int
    graph_node_us: float | None
    source: str

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError(f"GPU {self.name}: figures need a source")


@dataclass(frozen=True)
class Floor:
    """Least time that one resource needs, in microseconds, and the arithmetic behind it in words."""

    resource: str
    microseconds: float
    how: str


@dataclass(frozen=True)
class Feasibility:
    """Whether a target time is physically possible, and in words how near to the limit it lies."""

    possible: bool
    sentence: str


def _load() -> Mapping[str, Gpu]:
    data = json.loads((Path(__file__).parent / "gpus.json").read_text(encoding="utf-8"))
    return {entry["name"]: Gpu(**entry) for entry in data["gpus"]}


GPUS: Mapping[str, Gpu] = _load()
"""Every GPU of the data file by name."""

PUBLISHED_MISSION_US: Mapping[str, Mapping[str, float]] = {
    "L4": {"torch SDPA": 40.9, "CUTLASS FMHA in torch": 24.5},
}
"""Published times of peers on the mission shape, microseconds, by GPU. Not measured by this lab."""


def gpu_named(name: str) -> Gpu:
    """The GPU of that name, upper or lower case.

    Raises
    ------
    UserError
        If the data file has no such GPU.
    """
    for known, gpu in GPUS.items():
        if known.lower() == name.lower():
            return gpu
    raise UserError(f"unknown GPU {name!r}; known are {', '.join(GPUS)}")


def floors(problem: Problem, gpu: Gpu, *, precision: str = "fp16", cold: bool = True) -> tuple[Floor, ...]:
    """The least time of each resource for ``problem`` on ``gpu``.

    Parameters
    ----------
    precision : {"fp16", "fp8"}
        Of both matrix products; BF16 runs at the rate of FP16. Bytes are those of the problem's own dtype.
    cold : bool
        Q, K, V and O cross DRAM. If False they are already in L2, and DRAM sets no floor.

    Returns
    -------
    tuple of Floor
        tensor, exp, l2, then dram if cold, then launch if the GPU's graph node has a published time.

    Raises
    ------
    UserError
        If the precision is unknown, or the GPU has no tensor unit for it.
    """
    rates = {"fp16": gpu.fp16_tflops, "fp8": gpu.fp8_tflops}
    if precision not in rates:
        raise UserError(f"precision must be one of {', '.join(rates)}, not {precision!r}")
    tflops = rates[precision]
    if tflops is None:
        raise UserError(f"{gpu.name} has no {precision} tensor unit; use fp16")
    cycles = gpu.sms * gpu.clock_mhz * 1e6
    exp_rate = cycles * gpu.exp_per_clk_sm
    l2_rate = cycles * gpu.l2_bytes_per_clk_sm
    clock = f"{gpu.clock_mhz / 1e3:.2f} GHz"
    found = [
        Floor(
            "tensor", problem.flops / tflops / 1e6, f"{problem.flops / 1e6:,.1f} MFLOP at {tflops:g} TFLOPS {precision}"
        ),
        Floor(
            "exp",
            problem.exponentials / exp_rate * 1e6,
            f"{problem.exponentials / 1e6:,.2f} M exponentials at {gpu.sms} SM x {gpu.exp_per_clk_sm}/clk x {clock}",
        ),
        Floor(
            "l2",
            problem.least_bytes / l2_rate * 1e6,
            f"{problem.least_bytes / 2**20:,.2f} MiB at {gpu.sms} SM x {gpu.l2_bytes_per_clk_sm} B/clk x {clock}",
        ),
    ]
    if cold:
        how = f"{problem.least_bytes / 2**20:,.2f} MiB at {gpu.dram_gb_s:,g} GB/s"
        found.append(Floor("dram", problem.least_bytes / gpu.dram_gb_s / 1e3, how))
    if gpu.graph_node_us is not None:
        found.append(Floor("launch", gpu.graph_node_us, "one kernel node of a replayed CUDA graph, published"))
    return tuple(found)


def binding_floor(problem: Problem, gpu: Gpu, *, precision: str = "fp16", cold: bool = True) -> Floor:
    """The largest floor: the resource that would limit a perfect kernel. Arguments as for :func:`floors`."""
    return max(floors(problem, gpu, precision=precision, cold=cold), key=lambda floor: floor.microseconds)


def feasibility(
    target_us: float, problem: Problem, gpu: Gpu, *, precision: str = "fp16", cold: bool = False
) -> Feasibility:
    """Whether any kernel could take ``target_us`` microseconds, with everything in L2 unless ``cold``.

    Raises
    ------
    UserError
        If the target is not a positive number, or as :func:`floors`.
    """
    if not 0 < target_us < float("inf"):
        raise UserError(f"a target time must be a positive number of microseconds, not {target_us!r}")
    worst = binding_floor(problem, gpu, precision=precision, cold=cold)
    share = worst.microseconds / target_us
    where = "from cold DRAM" if cold else "with every byte already in L2"
    if share > 1:
        sentence = (
            f"{target_us:g} us on {gpu.name} is impossible: the {worst.resource} floor alone is "
            f"{worst.microseconds:.2f} us ({worst.how})"
        )
    else:
        sentence = (
            f"{target_us:g} us on {gpu.name} is not ruled out: the longest floor, {worst.resource}, takes "
            f"{worst.microseconds:.2f} us ({worst.how}), {share:.0%} of it, {where}"
        )
    return Feasibility(share <= 1, sentence)
