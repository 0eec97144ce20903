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
    from sdpalab.judge.sandbox.candidate import Candidate
    from sdpalab.judge.session import Store, judge_candidate
    from sdpalab.problem import Problem

__all__ = [
    "Case",
    "CaseSpec",
    "Errors",
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
    "Store": "session",
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
) -> Verdict:
    """Judge a kernel; see :func:`sdpalab.judge.session.judge`."""
    from sdpalab.judge import session

    return session.judge(kernel, problems, device=device, level=level, seed=seed, claims=claims)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"sdpalab.judge.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _CallableModule(ModuleType):
    """The type of this package."""

    def __call__(self, *args: Any, **kwargs: Any) -> Verdict:
        return judge(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
