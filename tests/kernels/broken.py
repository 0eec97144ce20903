"""Deliberately broken copies of the shipped kernels: one planted bug each, made by substitution in the shipped source.

A bug in a shared header is planted in the copy that the kernel includes, so every kernel has every bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.kernels.plan import INCLUDE_DIR
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem

__all__ = ["BrokenKernel", "broken_kernels"]


@dataclass(frozen=True)
class BrokenKernel:
    """A kernel with one bug, where the bug shows, and where it cannot.

    Attributes
    ----------
    name : str
        Such as ``flash lost rescale``.
    kernel : CudaKernel
    problem : Problem
        A problem that the bug spoils, and that the shipped kernel computes rightly.
    status : Status
        What the judge must say of ``problem``.
    reason : str
        What the judge's reason must contain.
    harmless : Problem
        A problem on which the bug changes nothing, so that the broken kernel must pass: what is found on ``problem`` is
        then this bug, and not that the copy is wrong altogether.
    """

    name: str
    kernel: CudaKernel
    problem: Problem
    status: Status
    reason: str
    harmless: Problem


@dataclass(frozen=True)
class _Bug:
    name: str
    header: str  # where it is planted; empty: in the kernel's own file
    edits: Sequence[tuple[str, str]]
    problem: Problem
    harmless: Problem
    reason: str = "the limit"
    status: Status = Status.INCORRECT


_RAGGED = Problem(1, 1, 100, 32)  # no kernel's tile of keys divides 100
_EVEN = Problem(1, 1, 128, 32)
_FLAT = Problem(1, 1, 128, 32, scale=0.0)  # all scores are 0, and all weights 1

_BUGS = (
    _Bug(
        "lost rescale",
        "",
        [("const float rescale = ", "const float rescale = 1.0f + 0.0f * ")],
        problem=_EVEN,
        harmless=_EVEN.with_(seq_kv=16),
    ),
    _Bug(
        "wrong scale",
        "softmax.cuh",
        [("fabsf(scale) * LOG2_E)", "fabsf(scale))")],
        problem=_EVEN,
        harmless=_FLAT,
    ),
    _Bug(
        "off-by-one mask",
        "mask.cuh",
        [("CAUSAL ? min(row + 1, seq_kv)", "CAUSAL ? min(row + 2, seq_kv)")],
        problem=_RAGGED.with_(causal=True),
        harmless=_RAGGED,
        reason="rows are wrong, all with i from 0 to 98",  # the last row has no key after its own to see
    ),
    _Bug(
        "dropped last tile",
        "mask.cuh",
        [
            (
                "return ceil_div(visible_keys(last_row, seq_kv), block_n)",
                "return visible_keys(last_row, seq_kv) / block_n",
            )
        ],
        problem=_RAGGED,
        harmless=_EVEN,
    ),
    _Bug(
        "clamped exponential",
        "softmax.cuh",
        [
            (
                "ptx::ex2_approx_ftz_f32((score - reference) * scale_log2)",
                "ptx::ex2_approx_ftz_f32(fminf(fmaxf((score - reference) * scale_log2, -10.0f), 10.0f))",
            ),
            (
                "row_sum == 0.0f ? 0.0f : ptx::rcp_approx_ftz_f32(row_sum)",
                "fabsf(row_sum) <= 3.4e38f ? ptx::rcp_approx_ftz_f32(row_sum + 1e-6f) : 0.0f",
            ),
        ],
        problem=_RAGGED.with_(causal=True),
        harmless=_FLAT,
    ),
)


def broken_kernels() -> list[BrokenKernel]:
    """Every bug in every shipped kernel.

    Raises
    ------
    AssertionError
        If the text that a bug replaces is not there exactly once.
    """
    return [_planted(kernel, bug) for kernel in KERNELS.values() for bug in _BUGS]


def _planted(kernel: CudaKernel, bug: _Bug) -> BrokenKernel:
    assert isinstance(kernel.source, Path)
    source = kernel.source.read_text()
    if bug.header:
        header = _edited((INCLUDE_DIR / bug.header).read_text(), bug.edits, bug.header)
        source = _edited(source, [(f'#include "{bug.header}"\n', header.replace("#pragma once\n", ""))], kernel.name)
    else:
        source = _edited(source, bug.edits, kernel.name)
    copy = replace(kernel, name=f"{kernel.name}-{bug.name.replace(' ', '-')}", source=source)
    return BrokenKernel(f"{kernel.name} {bug.name}", copy, bug.problem, bug.status, bug.reason, bug.harmless)


def _edited(text: str, edits: Sequence[tuple[str, str]], where: str) -> str:
    for old, new in edits:
        assert text.count(old) == 1, f"{where}: {old!r} is there {text.count(old)} times, and a bug needs it once"
        text = text.replace(old, new)
    return text
