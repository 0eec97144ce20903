"""Whether a time is possible: a time below the floors of the FLOPs and the bytes is a measurement error.

Only floors that hold for every kernel count here: those of :mod:`sdpalab.measure.speed_of_light` that rest on a
published measurement (launch), on an assumption (l2), or that an algorithm can avoid (exponentials can be polynomials
on the FMA units) do not. Of the bytes only Q, K and V count, and only if they were cold: O may stay in L2.
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
    """Whether a time is possible, and why not. ``share`` is the floor over the time, None if no floor is known."""

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
        Of one call, microseconds.
    problem : Problem
    gpu : Gpu or None
        None if its rates are not known: then nothing can be said, and nothing is called impossible. So too for ``fp8``
        on a GPU without that unit (A100 has INT8).
    l2 : L2State
    precision : {"fp16", "fp8"}
        In which both products are computed at the fastest; INT8 has the rate of FP8 where there is an FP8 unit.
    sm_clock_mhz : float, optional
        The highest clock that the device can have. Where it is above the clock at which the tensor peak is stated, the
        floor is that much lower.

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
