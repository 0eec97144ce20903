"""Plausibility of a time: a time below the floors of FLOPs and bytes is a measurement error.

Only floors that hold for every kernel apply here. Excluded from :mod:`sdpalab.measure.speed_of_light` are floors based
on a published measurement (launch) or an assumption (l2), and avoidable ones (polynomials on the FMA units replace
exponentials). Bytes include Q, K and V only, and only for cold inputs: O may stay in L2.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdpalab.measure.samples import L2State
from sdpalab.measure.speed_of_light import floors
from sdpalab.problem import DTYPES, Problem
from warpsan.gpus import Gpu

__all__ = ["FloorCheck", "check_floor"]


@dataclass(frozen=True)
class FloorCheck:
    """Whether a time is possible, with a reason if not. ``share`` is floor over time; None without a known floor."""

    possible: bool
    share: float | None
    reason: str


def check_floor(
    time_us: float,
    problem: Problem,
    gpu: Gpu | None,
    *,
    l2: L2State,
    precision: str = "fp16",
    sm_clock_mhz: float | None = None,
) -> FloorCheck:
    """Check a measured time against the floors of its FLOPs and, if the inputs were cold, of their bytes.

    Parameters
    ----------
    time_us : float
        Time of one call in microseconds.
    problem : Problem
    gpu : Gpu or None
        None if its rates are unknown: every time is then accepted. The same holds for ``fp8`` on a GPU without that
        unit (A100 has INT8).
    l2 : L2State
    precision : {"fp16", "fp8"}
        Fastest precision of both products; INT8 has the rate of FP8 on GPUs with an FP8 unit.
    sm_clock_mhz : float, optional
        Highest SM clock of the device. A clock above that of the stated tensor peak lowers the floor accordingly.

    Raises
    ------
    UserError
        As :func:`~sdpalab.measure.speed_of_light.floors`.
    """
    if gpu is None or (precision == "fp8" and gpu.fp8_tflops is None):
        return FloorCheck(True, None, "the rates of this GPU are not in the lab's data file, so no floor is known")
    by_name = {floor.resource: floor for floor in floors(problem, gpu, precision=precision)}
    overclock = max(1.0, (sm_clock_mhz or 0.0) / gpu.clock_mhz)
    tensor, dram = by_name["tensor"], by_name["dram"]
    candidates = [(tensor.microseconds / overclock, "tensor", tensor.how)]
    if l2 is L2State.COLD:
        out = problem.batch * problem.heads * problem.seq_q * problem.head_dim * DTYPES[problem.dtype]
        read = 1.0 - out / problem.least_bytes
        candidates.append((dram.microseconds * read, "DRAM", f"Q, K and V at {gpu.dram_gb_s:,g} GB/s"))
    floor_us, name, how = max(candidates)
    share = floor_us / time_us
    if share > 1:
        reason = f"{time_us:.3g} us is impossible on {gpu.name}: the {name} floor alone is {floor_us:.3g} us ({how})"
        return FloorCheck(False, share, reason)
    return FloorCheck(True, share, f"{share:.0%} of the {name} limit of {gpu.name}")
