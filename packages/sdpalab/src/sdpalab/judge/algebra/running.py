"""Runs a launch plan in the ring of its PTX, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.compile import Build
from sdpalab.inputs import dtype_of
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.run import SimulatedExecutor
from warpsan import NotAlgebraic
from warpsan.numerics import has_eight_bits, ring_of

__all__ = ["run_in_ring"]

Array = npt.NDArray[Any]


def run_in_ring(
    plan: LaunchPlan,
    builds: Sequence[Build],
    draws: Mapping[str, Array],
    *,
    arch: str,
    reordered: bool = False,
    poison: int = 0xFF,
    max_steps: int | None = None,
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Run a plan once on codes made from random 16-bit numbers.

    Parameters
    ----------
    plan : LaunchPlan
    builds : sequence of Build
        Builds of its launches, in order.
    draws : mapping of str to ndarray
        One for each ``in`` buffer (:func:`sdpalab.judge.algebra.stage.drawn`): uint16 for codes, the values for
        integers.
    reordered : bool
        Whether codes are compared in the ring's second order (:attr:`warpsan.numerics.ring.Ring.spacing`).
    arch, poison, max_steps
        As for :class:`sdpalab.run.SimulatedExecutor`.

    Returns
    -------
    reply, outputs
        ``ring`` and ``ptx_sha256`` with the words of every ``out`` buffer; or ``not_algebraic``, and no outputs.

    Raises
    ------
    warpsan.SimError
        As :func:`warpsan.launch`.
    """
    eight_bits = any(has_eight_bits(built.ptx.decode()) for built in builds)
    ring = ring_of("ring", eight_bits=eight_bits, reordered=reordered)
    assert ring is not None
    inputs = {}
    for buffer in plan.buffers:
        if buffer.role == "in":
            drawn, dtype = draws[buffer.name], dtype_of(buffer.dtype)
            inputs[buffer.name] = drawn if drawn.dtype == dtype else ring.encoded(ring.elements(drawn), dtype)
    executor = SimulatedExecutor(arch, numerics=ring.name, workers=1, max_steps=max_steps)
    try:
        result = executor.run(plan, inputs, poison=poison, builds=builds)
    except NotAlgebraic as error:
        return {"not_algebraic": str(error)}, {}
    outputs = {name: np.asarray(out) for name, out in result.outputs.items()}
    return {"ring": ring.name, "ptx_sha256": list(result.ptx_sha256)}, outputs
