"""Speed of light: the least time of a problem on a GPU, resource by resource.

Each floor is work divided by a peak rate: no kernel that does the work is faster. Floors are not predictions: a kernel
with perfect overlap takes the largest of them, a real one takes more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sdpalab.errors import UserError
from sdpalab.problem import Problem
from warpsan.gpus import Gpu

__all__ = ["PUBLISHED_MISSION_US", "Feasibility", "Floor", "binding_floor", "feasibility", "floors"]


@dataclass(frozen=True)
class Floor:
    """Least time of one resource.

    Attributes
    ----------
    resource : str
        tensor, exp, l2, dram or launch.
    microseconds : float
    how : str
        Text of the calculation.
    kind : str
        ``modelled``, or ``published`` for measurements by others.
    verified : bool
        False if the rate is among the GPU's unverified figures; the floor is then equally uncertain.
    """

    resource: str
    microseconds: float
    how: str
    kind: str = "modelled"
    verified: bool = True


@dataclass(frozen=True)
class Feasibility:
    """Whether a target time is possible, and its distance from the limit, in words."""

    possible: bool
    sentence: str


PUBLISHED_MISSION_US: Mapping[str, Mapping[str, float]] = {
    "L4": {"torch SDPA": 40.9, "CUTLASS FMHA in torch": 24.5},
}
"""Published times of peers on the mission shape in microseconds, by GPU. Not measured by this lab."""


def floors(problem: Problem, gpu: Gpu, *, precision: str = "fp16", cold: bool = True) -> tuple[Floor, ...]:
    """The least time of each resource for ``problem`` on ``gpu``.

    Parameters
    ----------
    precision : {"fp16", "fp8"}
        Precision of both matrix products; BF16 runs at the rate of FP16. Bytes are those of the problem's own dtype.
    cold : bool
        Whether Q, K, V and O cross DRAM. If False, only the part that exceeds L2 does.

    Returns
    -------
    tuple of Floor
        tensor, exp, l2, then dram if any bytes cross it, then launch if the GPU's graph node has a published time.

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
    clock = f"{gpu.clock_mhz / 1e3:.2f} GHz"
    moved = f"{problem.least_bytes / 2**20:,.2f} MiB"

    def floor(resource: str, seconds: float, how: str, figure: str) -> Floor:
        return Floor(resource, seconds * 1e6, how, verified=figure not in gpu.unverified)

    bounds = [
        floor(
            "tensor",
            problem.flops / tflops / 1e12,
            f"{problem.flops / 1e6:,.1f} MFLOP at {tflops:g} TFLOPS {precision}",
            f"{precision}_tflops",
        ),
        floor(
            "exp",
            problem.exponentials / (cycles * gpu.exp_per_clk_sm),
            f"{problem.exponentials / 1e6:,.2f} M exponentials at {gpu.sms} SM x {gpu.exp_per_clk_sm}/clk x {clock}",
            "exp_per_clk_sm",
        ),
        floor(
            "l2",
            problem.least_bytes / (cycles * gpu.l2_bytes_per_clk_sm),
            f"{moved} at {gpu.sms} SM x {gpu.l2_bytes_per_clk_sm} B/clk x {clock}",
            "l2_bytes_per_clk_sm",
        ),
    ]
    crossing = problem.least_bytes - (0 if cold else gpu.l2_mib * 2**20)
    if crossing > 0:
        how = f"{moved} at {gpu.dram_gb_s:,g} GB/s"
        if not cold:
            how = f"{crossing / 2**20:,.2f} of {how}, the rest in {gpu.l2_mib:g} MiB of L2"
        bounds.append(floor("dram", crossing / gpu.dram_gb_s / 1e9, how, "dram_gb_s"))
    if gpu.graph_node_us is not None:
        how = "one kernel node of a replayed CUDA graph"
        bounds.append(
            Floor("launch", gpu.graph_node_us, how, "published", verified="graph_node_us" not in gpu.unverified)
        )
    return tuple(bounds)


def binding_floor(problem: Problem, gpu: Gpu, *, precision: str = "fp16", cold: bool = True) -> Floor:
    """The largest floor, i.e. the limit of a perfect kernel. Arguments as for :func:`floors`."""
    return max(floors(problem, gpu, precision=precision, cold=cold), key=lambda floor: floor.microseconds)


def feasibility(
    target_us: float, problem: Problem, gpu: Gpu, *, precision: str = "fp16", cold: bool = False
) -> Feasibility:
    """Whether any kernel can take ``target_us`` microseconds, with a warm L2 unless ``cold``.

    Raises
    ------
    UserError
        If the target is not a positive number, or as :func:`floors`.
    """
    if not 0 < target_us < float("inf"):
        raise UserError(f"a target time must be a positive number of microseconds, not {target_us!r}")
    worst = binding_floor(problem, gpu, precision=precision, cold=cold)
    share = worst.microseconds / target_us
    where = "from cold DRAM" if cold else "from a warm L2"
    doubt = "" if worst.verified else "; no second source confirms the rate"
    time = f"{target_us:.3g} us on {gpu.name}"
    if share > 1:
        sentence = (
            f"{time} is impossible {where}: the {worst.resource} floor alone is {worst.microseconds:.2f} us "
            f"({worst.how}){doubt}"
        )
    else:
        sentence = (
            f"{time} is not ruled out {where}: the longest floor, {worst.resource}, takes "
            f"{worst.microseconds:.2f} us ({worst.how}), {share:.0%} of it{doubt}"
        )
    return Feasibility(share <= 1, sentence)
