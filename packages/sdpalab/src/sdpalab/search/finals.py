"""The last gates, for the best configurations: held-out shapes, full judge, fresh seed in a fresh process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from types import MappingProxyType

from sdpalab.problem import Problem
from sdpalab.search.context import SearchContext
from sdpalab.search.draft import GateFailure
from sdpalab.search.held_out import held_out
from sdpalab.search.outcome import Finalist, Standing, Trial
from sdpalab.search.pareto import front, ranked

__all__ = ["MOST_FINALISTS", "TOLERATED", "front_of", "run_finals"]

MOST_FINALISTS = 5
"""Largest number of configurations for the full judge, until one passes; the default is an additional one."""
TOLERATED = 1.01
"""Largest accepted ratio to the default on a held-out shape: the margin of :mod:`sdpalab.measure.comparison`."""

Ratios = Mapping[str, Mapping[str, float]]
"""Cost relative to the default, by GPU and held-out problem."""


def front_of(passed: Sequence[Trial]) -> list[Trial]:
    """Trials that no other dominates, best first."""
    costs = [trial.outcome.costs for trial in passed]
    members = set(front(costs))
    return [passed[place] for place in ranked(costs) if place in members]


def run_finals(context: SearchContext, trials: Sequence[Trial], champion: Trial | None = None) -> list[Finalist]:
    """Judge the best trials in full, best first: until one passes or, with several GPUs, the whole front is judged.

    If none passes, the default configuration is judged: it is the winner if nothing beats it everywhere. The
    ``champion`` of measured races comes first. Equal costs are ordered by distance from the default. Verdicts in the
    log are reused.

    Raises
    ------
    TimeUp
        If time ends before; the log has the verdicts up to then.
    """
    passed = [trial for trial in trials if trial.standing is Standing.PASSED]
    if not passed:
        return []
    default = trials[0].knobs
    passed.sort(key=lambda trial: (trial.number != 0, context.space.distance(trial.knobs, default), trial.number))
    order = [passed[place] for place in ranked([trial.outcome.costs for trial in passed])]
    if champion is not None:
        order.sort(key=lambda trial: trial.number != champion.number)
    wanted = {trial.number for trial in front_of(passed)} if len(context.gpus) > 1 else set()
    finalists: list[Finalist] = []
    last = [trial for trial in order[MOST_FINALISTS:] if trial.number == trials[0].number]
    for trial in (*order[:MOST_FINALISTS], *last):
        done = any(each.standing is Standing.PASSED for each in finalists)
        if done and trial.number not in wanted:
            continue
        known = context.log.known_finalist(trial.identity)
        finalist = known or _derived_here(context, trial, trials[0])
        if known is None:
            context.log.keep(finalist)
        finalists.append(finalist)
        context.progress(f"finalist {trial.number}: {finalist.standing.value} {finalist.reason}".rstrip())
    return finalists


def _derived_here(context: SearchContext, trial: Trial, default: Trial) -> Finalist:
    """Run the last gates; a pass by workers on other machines is repeated on this one, and only this result counts, as
    it sets a default."""
    finalist, here = _judged(context, trial, default), context.on_this_machine()
    if here is None or finalist.standing is not Standing.PASSED:
        return finalist
    context.progress(f"finalist {trial.number}: derived again on this machine")
    for each in dict.fromkeys((trial.number, default.number)):
        failed = _differs(here, trial if each == trial.number else default)
        if failed is not None:
            return replace(finalist, standing=failed.standing, reason=failed.reason, verdict={}, held_out={})
    return _judged(here, trial, default)


def _differs(here: SearchContext, trial: Trial) -> GateFailure | None:
    """Parts of a trial's record that this machine does not reproduce: code or modelled cost."""
    jobs = [here.job("build", trial.knobs), *([here.job("count", trial.knobs)] if here.modelled else [])]
    for value in here.run(jobs):
        if isinstance(value, GateFailure):
            return value
        if "standing" in value:
            return GateFailure(Standing(value["standing"]), str(value["reason"]))
        for name, here_too in value.items():
            if _rounded(here_too) != _rounded(getattr(trial, name)):
                reason = f"its worker found another {name} of configuration {trial.number} than this machine"
                return GateFailure(Standing.LOST, reason)
    return None


def _rounded(value: object) -> object:
    """Plain values, with numbers rounded to the digits that two machines compute alike."""
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    return f"{value:.9g}" if isinstance(value, float) else value


def _judged(context: SearchContext, trial: Trial, default: Trial) -> Finalist:
    """Run the last gates in order."""
    context.progress(f"finalist {trial.number} ({trial.knobs}): last gates")
    seed = int(
        sha256(f"held out {context.log.head.seed} {sorted(trial.identity.items())}".encode()).hexdigest()[:12], 16
    )

    def rejected(failed: GateFailure, ratios: Ratios = MappingProxyType({})) -> Finalist:
        return Finalist(trial.number, trial.config, failed.standing, failed.reason, trial.identity, {}, ratios, seed)

    unseen = _held_out(context)
    # The model takes seconds and the full judge a minute. Measurements wait until the outputs are judged.
    ratios, failure = _compared(context, trial, default, unseen) if context.modelled else ({}, None)
    if failure is not None:
        return rejected(failure, ratios)
    (full,) = context.run([context.job("full", trial.knobs)])
    if isinstance(full, GateFailure):
        return rejected(full)
    if unseen:
        (judged,) = context.run([context.job("held_out", trial.knobs, unseen, seed=seed)])
        if isinstance(judged, GateFailure):
            return rejected(judged)
    if not context.modelled:
        ratios, failure = _compared(context, trial, default, unseen)
        if failure is not None:
            return rejected(failure, ratios)
    return Finalist(trial.number, trial.config, Standing.PASSED, "", trial.identity, full["verdict"], ratios, seed)


def _compared(
    context: SearchContext, trial: Trial, default: Trial, unseen: Sequence[Problem]
) -> tuple[Ratios, GateFailure | None]:
    """Ratios on the held-out shapes, and the trial's failure by them; with several GPUs a slower one is no failure."""
    if not unseen:
        return {}, None
    ratios = _ratios(context, trial, default, unseen)
    if isinstance(ratios, GateFailure):
        return {}, ratios
    slower = [(gpu, label, ratio) for gpu, each in ratios.items() for label, ratio in each.items() if ratio > TOLERATED]
    if not slower or len(context.gpus) > 1:
        return ratios, None
    gpu, label, ratio = slower[0]
    reason = f"{ratio:.3f}x the default's time on the held-out {label} on {gpu}"
    return ratios, GateFailure(Standing.SLOWER, reason)


def _held_out(context: SearchContext) -> list[Problem]:
    """Held-out shapes of all problems, without searched problems and those that the kernel rejects."""
    unseen = dict.fromkeys(each for problem in context.problems for each in held_out(problem))
    return [
        problem for problem in unseen if problem not in context.problems and context.kernel.why_not(problem) is None
    ]


def _ratios(context: SearchContext, trial: Trial, default: Trial, unseen: Sequence[Problem]) -> Ratios | GateFailure:
    if trial.number == default.number:
        return {gpu.name: {problem.label: 1.0 for problem in unseen} for gpu in context.gpus}
    if not context.modelled:
        (gpu,) = context.gpus
        entrants = {"default": dict(default.config), "finalist": dict(trial.config)}
        job = context.job("race", trial.knobs, unseen, entrants=entrants, seconds=5.0, seed=trial.number)
        (value,) = context.run([job])
        if isinstance(value, GateFailure):
            return value
        if any(len(times) < len(entrants) for times in value["times_us"].values()):
            return GateFailure(Standing.NO_COST, next(iter(value["reasons"].values()), "it was not measured"))
        return {gpu.name: {k: times["finalist"] / times["default"] for k, times in value["times_us"].items()}}
    (value,) = context.run([context.job("compare", trial.knobs, unseen, base=dict(default.config))])
    if isinstance(value, GateFailure):
        return value
    ratios: Ratios = value["ratios"]
    return ratios
