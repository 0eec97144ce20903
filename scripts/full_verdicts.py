"""Judge kernels at level full, as ``sdpalab judge KERNEL --level full`` does, and keep what each verdict says.

    python scripts/full_verdicts.py [KERNEL]... [--out FILE]

Without kernels, all of the ladder, each in its default configuration on the simulator: minutes a kernel. The record has
a kernel's cases by status, the case that came nearest to each limit, and a digest of the code that the mission shape
runs, by which a test sees whether the kernel has changed since. It is written after every kernel, so that what is done
is kept. Exit 1 if a kernel is not PASSED.

By default it goes to ``evidence/campaigns/verdicts-<commit>.json``; of several records the newest that names a kernel
counts. ``scripts/readme_tables.py --write`` brings the figures into ``docs/ladder.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdpalab.build import build
from sdpalab.commands.common import one_thread_each, progress_console
from sdpalab.commands.progress import CaseProgress
from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.campaign import Campaign
from sdpalab.judge import Verdict, judge_candidate
from sdpalab.judge.cases import CaseSpec, cases_for
from sdpalab.judge.trials import fast_p
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.registry import KERNELS, get
from sdpalab.problem import MISSION
from sdpalab.sim.parser import parse

LEVEL = "full"
PACKAGES = ("numpy", "torch")


def full_cases() -> tuple[CaseSpec, ...]:
    """The cases of ``sdpalab judge KERNEL --level full``."""
    return tuple(cases_for(LEVEL, dtype="float16", causal=False))


def judged(name: str, specs: Sequence[CaseSpec]) -> dict[str, Any]:
    """A kernel's entry: its verdict on ``specs``, without what the cases have one by one."""
    start = time.monotonic()
    with CaseProgress(progress_console(), f"judging {name}", len(specs)) as progress:
        verdict = judge_candidate(name, specs, device="sim", level=LEVEL, progress=progress.finished)
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
        "fast_0": fast_p(verdict.cases),
        "code_sha256": code_of(get(name)),
        "seconds": round(time.monotonic() - start, 1),
    }


def code_of(kernel: Kernel) -> str:
    """Digest of the instructions that the kernel runs on the mission shape: of the PTX, but without line numbers of the
    source, which a comment changes."""
    digest = hashlib.sha256()
    for step in kernel.launch_plan(MISSION).launches:
        assert step.module is not None, "a launch plan names the module of every step"
        built = build(step.module, kernel.default_arch)
        for instruction in parse(built.ptx.decode()).entries[built.entry].instructions:
            digest.update(f"{instruction.text}\n".encode())
    return digest.hexdigest()


def nearest(verdict: Verdict) -> dict[str, dict[str, Any]]:
    """For each limit, and that of the log-sum-exp, the case whose error is the largest share of it."""
    found: dict[str, dict[str, Any]] = {}
    for case in verdict.cases:
        for name, share in case.shares.items():
            if name not in found or share > found[name]["share"]:
                found[name] = {"share": share, "case": case.name}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, print and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="default: all of the ladder")
    parser.add_argument("--out", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    names = given.kernels or list(KERNELS)
    one_thread_each()
    command = " ".join(("python scripts/full_verdicts.py", *given.kernels))
    campaign = Campaign("verdicts", command, packages=PACKAGES)
    verdicts: list[dict[str, Any]] = []
    try:
        for name in names:
            get(name)
        specs = full_cases()
        for name in names:
            verdicts.append(judged(name, specs))
            out = campaign.write(campaign.record(level=LEVEL, verdicts=verdicts), given.out)
            print(said(verdicts[-1]), flush=True)
    except (UserError, MachineError) as error:
        print(f"full_verdicts: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 3
    print(f"record: {out}")
    return 0 if all(each["status"] == "PASSED" for each in verdicts) else 1


def said(entry: dict[str, Any]) -> str:
    """An entry in one line."""
    passed = f"{entry['statuses'].get('PASSED', 0)} of {entry['cases']} cases in {entry['seconds']:.0f} s"
    return f"{entry['kernel']}: {entry['status']}, {passed} {entry['reason']}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
