"""A kernel with its launch plan and its builds, to run in the ring of :mod:`warpsan.numerics.ring` with other PTX."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.compile import Build, build
from sdpalab.judge.algebra.outcome import AlgebraCase, AlgebraStatus
from sdpalab.judge.algebra.running import run_in_ring
from sdpalab.judge.algebra.stage import algebra_case, drawn
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.problem import Problem
from warpsan.numerics import has_eight_bits

__all__ = ["RingSubject", "outcome_of"]


class RingSubject:
    """A kernel with its plan and its builds.

    Parameters
    ----------
    kernel, config, problem
        The run.
    orders : sequence of bool, optional
        The orders of the codes in which it runs, one after the other, until the outputs are not equal: False for their
        number, True for the second order (:attr:`warpsan.numerics.ring.Ring.spacing`). Default: both for 8-bit types,
        whose codes are below every threshold in the first one.
    """

    def __init__(self, kernel: Kernel, config: Config, problem: Problem, orders: Sequence[bool] = ()) -> None:
        self.kernel, self.config, self.problem = kernel, config, problem
        self.plan: LaunchPlan = kernel.launch_plan(problem, config, lse=kernel.lse)
        self.arch = kernel.default_arch
        self.builds = [build(step.module, self.arch) for step in self.plan.launches if step.module is not None]
        self.draws = drawn(problem)
        eight_bits = any(has_eight_bits(built.ptx.decode()) for built in self.builds)
        self.orders = orders or ((False, True) if eight_bits else (False,))

    def run(self, number: int = 0, ptx: str | None = None, max_steps: int | None = None) -> AlgebraCase:
        """The stage's record, with the PTX of one of its builds replaced.

        Raises
        ------
        warpsan.SimError
            If the launch does not come to its end.
        """
        builds: list[Build] = list(self.builds)
        if ptx is not None:
            builds[number] = replace(builds[number], ptx=ptx.encode())
        for order in self.orders:
            case = self._run_in_order(builds, order, max_steps)
            if outcome_of(case) != "equal":
                break
        return case

    def _run_in_order(self, builds: Sequence[Build], order: bool, max_steps: int | None) -> AlgebraCase:
        plan = self.plan
        settings: dict[str, Any] = {"arch": self.arch, "reordered": order, "max_steps": max_steps}
        reply, outputs = run_in_ring(plan, builds, self.draws, **settings)
        if reply.get("not_algebraic") and "lse" in {buffer.name for buffer in plan.buffers}:
            refusal = reply["not_algebraic"]
            reply, outputs = run_in_ring(plan.without("lse"), builds, self.draws, **settings)
            reply["lse_refusal"] = refusal
        return algebra_case(self.problem, reply, outputs, _digest)


def outcome_of(case: AlgebraCase) -> str:
    """The outcome of a run in the ring: ``equal``, ``unequal``, ``log-sum-exp``, ``factor`` or ``not algebraic``."""
    if case.status is AlgebraStatus.UNEQUAL:
        return "unequal" if case.unequal else "log-sum-exp"
    if case.status is AlgebraStatus.EQUAL:
        return "equal" if case.scale_explained else "factor"
    return "not algebraic" if case.status is AlgebraStatus.NOT_ALGEBRAIC else "not run"


def _digest(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
