"""The judge: decides whether an untrusted kernel computes attention, and why it fails.

``sdpalab.judge(kernel, problems)`` is :func:`judge`: the package itself is callable, because Python binds
``sdpalab.judge`` to the package as soon as one of its modules is imported. Importing it loads neither torch nor NumPy.

``judge_candidate`` (in :mod:`~sdpalab.judge.session`) takes every option. The rule and the float64 reference are in
:mod:`~sdpalab.judge.rule`, the cases in :mod:`~sdpalab.judge.cases`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sdpalab.judge.verdict import Case, Errors, Limits, Status, Verdict

if TYPE_CHECKING:
    from sdpalab.judge.cases import CaseSpec, quick_cases, twelve_cases
    from sdpalab.judge.options import JudgeOptions, Store
    from sdpalab.judge.sandbox.candidate import Candidate
    from sdpalab.judge.session import judge_candidate
    from sdpalab.problem import Problem

__all__ = [
    "Case",
    "CaseSpec",
    "Errors",
    "JudgeOptions",
    "Limits",
    "Status",
    "Store",
    "Verdict",
    "judge",
    "judge_candidate",
    "quick_cases",
    "twelve_cases",
]

_HOME = {
    "CaseSpec": "cases",
    "quick_cases": "cases",
    "twelve_cases": "cases",
    "JudgeOptions": "options",
    "Store": "options",
    "judge_candidate": "session",
}


def judge(
    kernel: Candidate,
    problems: Iterable[Problem] | None = None,
    *,
    device: str = "auto",
    level: str = "quick",
    seed: int = 0,
    claims: bool = True,
    signature: str | None = None,
) -> Verdict:
    """Judge a kernel: run it in a separate process and compare its outputs with float64.

    Parameters
    ----------
    kernel : str, CudaKernel or callable
        A registry name, ``FILE.py:NAME`` or ``FILE.py``, an importable ``module:NAME``, a CudaKernel, or
        ``fn(q, k, v, *, scale, causal) -> out`` on torch CPU tensors [B, H, S, D] of the problem's dtype, with further
        parameters for further features (:data:`sdpalab.judge.parameters.PARAMETERS`).
    problems : iterable of Problem, optional
        Problems to judge. Default: the twelve cases, and one with a hidden seed for each of their shapes. Probes, edges
        and relations are added (:mod:`sdpalab.judge.cases`).
    device : {"auto", "sim", "cpu", "gpu"}
        ``sim``: the simulator, for kernels that the lab builds; ``gpu``: the GPU, for these; ``cpu``: torch on the CPU,
        for callables; ``auto``: the simulator or the CPU, so that a verdict does not depend on the machine.
    level : {"quick", "full"}
        ``quick`` takes about a minute, ``full`` many minutes.
    seed : int
        Public seed of the inputs for ``problems``; the twelve cases have their own.
    claims : bool
        Whether the kernel is also judged on small problems beyond the request that it claims to support, for example
        with a causal mask (:mod:`sdpalab.judge.claims`). :attr:`Verdict.covers` lists the judged features.

    signature : str, optional
        Peer's interface by which a function is called (:data:`sdpalab.judge.signatures.SIGNATURES`), or ``sdpalab`` for
        the lab's own. Default: recognised by the function's parameters.

    Returns
    -------
    Verdict
        A kernel that crashes, hangs or cheats gets a status; it raises no exception here.

    Raises
    ------
    UserError
        If the request is invalid: an unknown kernel, a file that does not load, an unsupported problem, source that
        does not compile, an unknown device or level.
    MachineError
        If no worker process can be started.
    """
    from sdpalab.judge.cases import cases_for
    from sdpalab.judge.session import judge_candidate
    from sdpalab.judge.signatures import signature_of

    form = signature_of(kernel, signature)
    specs = cases_for(level, problems, seed=seed, claims=claims, signature=form)
    name = form.name if form else ""
    return judge_candidate(kernel, specs, device=device, level=level, seed=seed, coverage=True, signature=name)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"sdpalab.judge.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _CallableModule(ModuleType):
    """The type of this package."""

    __call__ = staticmethod(judge)


sys.modules[__name__].__class__ = _CallableModule
