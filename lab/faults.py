"""Inject machine faults while the judge runs, and compare the verdict with the expected one.

- ``kills``: SIGKILL for one of the judge's processes (a guard, a candidate's process, an executor), drawn at random, at
  a random moment of a judgement. A case is then PASSED, with the same record as without a fault, or INFRA_ERROR; none
  is missing, and no process is left.
- ``no_space``: a build cache of 16 KiB, in a file system of its own.
- ``no_compiler``: an environment in which NVRTC cannot be imported.
- ``repeats``: the same candidate, judged again and again: the same verdict each time.

Each must end within a minute.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import ROOT
from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.errors import MachineError
from sdpalab.installation import IMPORT_FOLDERS
from sdpalab.judge import CaseSpec, Status, Verdict, judge_candidate
from sdpalab.judge.sandbox.guard import descendants
from sdpalab.problem import Problem

__all__ = ["baseline", "kill_one", "no_compiler", "no_space", "repeat", "run"]

SECONDS = 60.0
"""Time limit of a verdict under a fault, in seconds."""

SPECS = tuple(CaseSpec(f"seed {seed}", Problem(1, 1, 32, 64), seed=seed) for seed in range(3))
_ROLES = {
    "guard.py": "guard",
    "sdpalab.judge.sandbox.candidate_server": "candidate",
    "sdpalab.judge.sandbox.plan_server": "executor",
}


@dataclass(frozen=True)
class Baseline:
    """A candidate's verdict without faults, and its duration in seconds."""

    candidate: str
    verdict: Verdict
    seconds: float


def baseline(candidate: str) -> Baseline:
    """Judge a candidate undisturbed; the second time counts, when everything is built and loaded."""
    for _ in range(2):
        start = time.monotonic()
        verdict = judge_candidate(candidate, SPECS, workers=1)
    if not verdict.passed:
        raise MachineError(f"{candidate} does not pass undisturbed: {verdict.reason}")
    return Baseline(candidate, verdict, time.monotonic() - start)


def kill_one(calm: Baseline, draw: random.Random) -> dict[str, Any] | None:
    """One judgement with one kill, and its outcome; None if it ended before the kill."""
    delay, victims, before = draw.uniform(0.0, calm.seconds), list[str](), set(descendants())

    def kill() -> None:
        time.sleep(delay)
        processes = [(pid, role) for pid in sorted(descendants()) if (role := _role(pid))]
        if processes:
            pid, role = draw.choice(processes)
            os.kill(pid, signal.SIGKILL)
            victims.append(role)

    killer = threading.Thread(target=kill)
    start = time.monotonic()
    killer.start()
    try:
        cases = judge_candidate(calm.candidate, SPECS, workers=1).cases
        message = ""
    except MachineError as error:
        cases, message = (), str(error)
    seconds = time.monotonic() - start
    killer.join()
    if not victims:
        return None
    same = [case == undisturbed for case, undisturbed in zip(cases, calm.verdict.cases, strict=False)]
    right = all(case.status is Status.INFRA_ERROR or is_same for case, is_same in zip(cases, same, strict=True))
    return {
        "candidate": Path(calm.candidate).name,
        "victim": victims[0],
        "after_seconds": round(delay, 3),
        "seconds": round(seconds, 1),
        "statuses": [case.status.value for case in cases] or ["MachineError"],
        "reasons": sorted({case.reason for case in cases if case.reason}) or [message][: bool(message)],
        "left_running": _left(before),
        "ok": right and len(cases) in (len(SPECS), 0) and seconds <= SECONDS and not _left(before),
    }


def _role(pid: int) -> str:
    """The role of a process of the judge; empty for any other process."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    # The arguments of a guard include the command of the guarded process: the first match counts.
    names = [role for word in command for name, role in _ROLES.items() if word == name or word.endswith(f"/{name}")]
    return names[0] if names else ""


def _left(before: set[int]) -> int:
    """Number of descendants, not in ``before``, that are alive 5 s after the judge ended."""
    end = time.monotonic() + 5.0
    while (count := len(set(descendants()) - before)) and time.monotonic() < end:
        time.sleep(0.05)
    return count


def no_space() -> dict[str, Any]:
    """A judgement whose build cache has no space for a build; the verdict must be PASSED."""
    with tempfile.TemporaryDirectory() as folder:
        mount = 'mount -t tmpfs -o size=16k none "$WARPSAN_CACHE_DIR" && "$0" "$@"; code=$?'
        mount += '; echo builds in the cache: $(ls "$WARPSAN_CACHE_DIR" | grep -c sm_89) >&2; exit $code'
        fault = _judged(["unshare", "-Urm", "sh", "-c", mount], {"WARPSAN_CACHE_DIR": folder}, 0, "PASSED")
    return {**fault, "ok": fault["ok"] and fault["said"] == ["builds in the cache: 0"]}


def no_compiler() -> dict[str, Any]:
    """A judgement without a compiler; the verdict must be INFRA_ERROR."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "cuda")
        package.mkdir()
        package.joinpath("__init__.py").write_text("raise ImportError('there is no compiler here')\n")
        path = os.pathsep.join([folder, *IMPORT_FOLDERS])
        return _judged([], {"WARPSAN_CACHE_DIR": f"{folder}/cache", "PYTHONPATH": path}, 3, "INFRA_ERROR")


def _judged(before: list[str], environment: Mapping[str, str], code: int, status: str) -> dict[str, Any]:
    """Judge ``scalar`` by the command line; ``ok`` if the exit code and all statuses are as given."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "verdict.json")
        command = [sys.executable, "-m", "sdpalab", "judge", "scalar", "--shape", "1,1,8,32", "--json", str(report)]
        given = {**os.environ, "PYTHONPATH": os.pathsep.join(IMPORT_FOLDERS), **environment}
        start = time.monotonic()
        done = subprocess.run([*before, *command], env=given, capture_output=True, text=True, cwd=ROOT)
        seconds = time.monotonic() - start
        verdict = json.loads(report.read_text()) if report.exists() else {"cases": []}
    statuses = sorted({case["status"] for case in verdict["cases"]})
    return {
        "seconds": round(seconds, 1),
        "exit_code": done.returncode,
        "statuses": statuses,
        "said": done.stderr.strip().splitlines()[-1:],
        "ok": done.returncode == code and statuses == [status] and seconds <= SECONDS,
    }


def repeat(calm: Baseline, times: int) -> dict[str, Any]:
    """Judge a candidate ``times`` times: the number of verdicts equal to the first, byte for byte."""
    first = json.dumps(calm.verdict.to_dict())
    same = sum(json.dumps(judge_candidate(calm.candidate, SPECS, workers=1).to_dict()) == first for _ in range(times))
    return {"candidate": Path(calm.candidate).name, "times": times, "same": same, "ok": same == times}


def run(kills: int, repeats: int, seed: int, say: Say) -> CampaignResult:
    """Kill ``kills`` processes of the judge one by one, take away space and compiler, judge ``repeats`` times.

    Raises
    ------
    MachineError
        If a candidate does not pass undisturbed.
    """
    draw = random.Random(seed)
    candidates = ("scalar", str(ROOT / "examples" / "my_callable.py"))
    calm = [baseline(candidate) for candidate in candidates]
    outcomes: list[dict[str, Any]] = []
    while len(outcomes) < kills:
        outcome = kill_one(calm[len(outcomes) % len(calm)], draw)
        if outcome is not None:
            outcomes.append(outcome)
            say(f"kill {len(outcomes):3} {outcome}")
    faults = {"no_space": no_space(), "no_compiler": no_compiler(), "repeats": repeat(calm[0], repeats)}
    for name, fault in faults.items():
        say(f"{name} {fault}")
    good = all(each["ok"] for each in (*outcomes, *faults.values()))
    totals = {
        "ok": good,
        "kills": len(outcomes),
        "longest_seconds": max((kill["seconds"] for kill in outcomes), default=0.0),
        "left_running": sum(kill["left_running"] for kill in outcomes),
        "victims": dict(sorted(Counter(kill["victim"] for kill in outcomes).items())),
        "statuses": dict(sorted(Counter(status for kill in outcomes for status in kill["statuses"]).items())),
    }
    content = {
        "confinement": calm[0].verdict.cases[0].run["confinement"],
        "totals": totals,
        "kills": outcomes,
        **faults,
    }
    summary = f"{'every fault' if good else 'NOT every fault'} is handled as it should be: {totals}"
    return CampaignResult(content, good, summary)
