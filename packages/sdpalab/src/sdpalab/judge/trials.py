"""Share of correct trials of a candidate, as in KernelBench (Ouyang et al. 2025).

fast_p is the share of trials that are correct and more than p times as fast as the peer; fast_0 needs no timing.
"""

from __future__ import annotations

from collections.abc import Sequence

from sdpalab.judge.verdict import Case

__all__ = ["fast_p"]


def fast_p(cases: Sequence[Case], p: float = 0.0, speedups: Sequence[float] | None = None) -> float | None:
    """The share of the trials among ``cases`` that passed and, for ``p`` > 0, were more than ``p`` times as fast.

    Parameters
    ----------
    cases : sequence of Case
        Cases with ``run["trial"]`` are trials.
    p : float
        Speed-up to beat.
    speedups : sequence of float, optional
        Speed-up of each trial over the peer, in the order of the cases.

    Returns
    -------
    float or None
        None if there is no trial.

    Raises
    ------
    ValueError
        If ``p`` is not 0 and the number of speed-ups differs from the number of trials.
    """
    trials = [case for case in cases if case.run.get("trial")]
    if p and (speedups is None or len(speedups) != len(trials)):
        raise ValueError(f"fast_{p:g} needs a measured speed-up for each of the {len(trials)} trials")
    if not trials:
        return None
    fast = [True] * len(trials) if not p or speedups is None else [speedup > p for speedup in speedups]
    return sum(case.passed and quick for case, quick in zip(trials, fast, strict=True)) / len(trials)
