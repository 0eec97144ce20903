"""Verdicts of kernels at level full, as of ``sdpalab judge KERNEL --level full``, without the individual cases.

Each kernel runs in its default configuration on the simulator, which takes minutes. The record has a kernel's cases by
status, the case nearest to each limit, and a digest of the code of the mission shape, from which a test detects a
changed kernel. The newest record that names a kernel counts. ``scripts/readme_tables.py --write`` writes the figures
into ``docs/kernels``.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sdpalab.campaigns.campaign import CampaignResult, Content, Say
from sdpalab.compile import build
from sdpalab.errors import UserError
from sdpalab.jobs import Executor
from sdpalab.jobs.judging import judge_by_jobs
from sdpalab.judge import Verdict
from sdpalab.judge.cases import CaseSpec, cases_for
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.registry import KERNELS, get
from sdpalab.problem import MISSION, Problem
from warpsan.ptx import parse

__all__ = ["LEVEL", "PACKAGES", "code_of", "full_cases", "run"]

LEVEL = "full"
LAYOUTS = ("dense", "varlen", "paged:64", "paged:64:e4m3")
PACKAGES = ("numpy", "torch")


def full_cases(mission: Problem = MISSION) -> tuple[CaseSpec, ...]:
    """The cases of ``sdpalab judge KERNEL --level full`` for kernels of the task and the layout of ``mission``."""
    return tuple(cases_for(LEVEL, dtype="float16", causal=False, task=mission.task, layout=mission.layout))


def mission_of(kernel: Kernel) -> Problem:
    """The mission shape in the kernel's task and the first layout that it takes."""
    for layout in LAYOUTS:
        mission = MISSION.with_(task=kernel.task, layout=layout)
        if kernel.why_not(mission) is None:
            return mission
    raise UserError(f"kernel {kernel.name} takes the mission shape in no layout of {', '.join(LAYOUTS)}")


def judged(name: str, specs: Sequence[CaseSpec], executor: Executor) -> dict[str, Any]:
    """A kernel's entry: its verdict on ``specs``, without the individual cases."""
    start = time.monotonic()
    verdict = judge_by_jobs(executor, name, specs, device="sim", level=LEVEL)
    errors = [case.errors for case in verdict.cases if case.errors]
    return {
        "kernel": verdict.kernel,
        "config": verdict.config,
        "device": verdict.device,
        "status": verdict.status.value,
        "reason": "" if verdict.passed else verdict.reason,
        "cases": len(verdict.cases),
        "statuses": dict(Counter(case.status.value for case in verdict.cases)),
        "nearest": nearest(verdict),
        "exact": sum(each.exact for each in errors),
        "exact_wrong": sum(each.exact_wrong for each in errors),
        "original_contract": verdict.original_contract,
        "fast_0": verdict.fast_0,
        "code_sha256": code_of(get(name)),
        "seconds": round(time.monotonic() - start, 1),
    }


def code_of(kernel: Kernel) -> str:
    """Digest of the PTX instructions of the mission shape, without line numbers of the source."""
    digest = hashlib.sha256()
    for step in kernel.launch_plan(mission_of(kernel)).launches:
        assert step.module is not None, "a launch plan names the module of every step"
        built = build(step.module, kernel.default_arch)
        for instruction in parse(built.ptx.decode()).entries[built.entry].instructions:
            digest.update(f"{instruction.text}\n".encode())
    return digest.hexdigest()


def nearest(verdict: Verdict) -> dict[str, dict[str, Any]]:
    """For each limit, and that of the log-sum-exp, the case whose error is the largest share of it."""
    by_limit: dict[str, dict[str, Any]] = {}
    for case in verdict.cases:
        for name, share in case.shares.items():
            if name not in by_limit or share > by_limit[name]["share"]:
                by_limit[name] = {"share": share, "case": case.name}
    return by_limit


def run(names: Sequence[str], say: Say, keep: Callable[[Content], None], executor: Executor) -> CampaignResult:
    """Judge the named kernels (default: the whole ladder); ``keep`` gets the content after every kernel.

    Raises
    ------
    UserError
        If there is no such kernel, before anything is judged.
    MachineError
        If the judge cannot work here.
    """
    names = list(names or KERNELS)
    missions = [mission_of(get(name)) for name in names]
    verdicts: list[dict[str, Any]] = []
    for name, mission in zip(names, missions, strict=True):
        specs = full_cases() if mission == MISSION else full_cases(mission)
        verdicts.append(judged(name, specs, executor))
        keep(_content(verdicts))
        say(line_of(verdicts[-1]))
    passed = sum(entry["status"] == "PASSED" for entry in verdicts)
    return CampaignResult(_content(verdicts), passed == len(verdicts), f"{passed} of {len(verdicts)} kernels PASSED")


def _content(verdicts: Sequence[dict[str, Any]]) -> Content:
    return {"level": LEVEL, "verdicts": list(verdicts)}


def line_of(entry: dict[str, Any]) -> str:
    """An entry in one line."""
    passed = f"{entry['statuses'].get('PASSED', 0)} of {entry['cases']} cases in {entry['seconds']:.0f} s"
    return f"{entry['kernel']}: {entry['status']}, {passed} {entry['reason']}".rstrip()
