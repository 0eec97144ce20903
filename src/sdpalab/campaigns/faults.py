"""Fail the machine under the judge, on purpose, and see what it says.

    python scripts/fault_campaign.py [--kills N] [--repeats N] [--seed N] [--out FILE]

- ``kills``: SIGKILL for one of the judge's processes (a guard, a candidate's process, an executor), drawn at random, at
  a random moment of a judgement. A case is then PASSED, with the very record it has when nobody disturbs, or
  INFRA_ERROR; none is missing, and no process is left.
- ``no_space``: a build cache of 16 KiB, in a file system of its own.
- ``no_compiler``: an environment in which NVRTC cannot be imported.
- ``repeats``: the same candidate, judged again and again: the same verdict each time.

Each must end within a minute. By default the record goes to ``evidence/campaigns/faults-<commit>.json``. Exit 1 if
anything was not as it should be.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpalab.errors import MachineError
from sdpalab.evidence.campaign import Campaign
from sdpalab.judge import CaseSpec, Status, Verdict, judge_candidate
from sdpalab.judge.sandbox.guard import descendants
from sdpalab.problem import Problem

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60.0
"""What every fault may take until there is a verdict."""

CANDIDATES = ("scalar", str(ROOT / "examples" / "my_callable.py"))
SPECS = tuple(CaseSpec(f"seed {seed}", Problem(1, 1, 32, 64), seed=seed) for seed in range(3))
_ROLES = {
    "guard.py": "guard",
    "sdpalab.judge.sandbox.worker": "candidate",
    "sdpalab.judge.sandbox.executor": "executor",
}


@dataclass(frozen=True)
class Baseline:
    """What a candidate's verdict is, and how many seconds it takes, when nobody disturbs."""

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
    """One judgement with one kill, and what came of it; None if it was over before."""
    delay, victims, before = draw.uniform(0.0, calm.seconds), list[str](), set(descendants())

    def kill() -> None:
        time.sleep(delay)
        found = [(pid, role) for pid in sorted(descendants()) if (role := _role(pid))]
        if found:
            pid, role = draw.choice(found)
            os.kill(pid, signal.SIGKILL)
            victims.append(role)

    killer = threading.Thread(target=kill)
    start = time.monotonic()
    killer.start()
    try:
        cases = judge_candidate(calm.candidate, SPECS, workers=1).cases
        said = ""
    except MachineError as error:
        cases, said = (), str(error)
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
        "reasons": sorted({case.reason for case in cases if case.reason}) or [said][: bool(said)],
        "left_running": _left(before),
        "ok": right and len(cases) in (len(SPECS), 0) and seconds <= SECONDS and not _left(before),
    }


def _role(pid: int) -> str:
    """What a process of the judge does; empty if it is none, or gone."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    # A guard has the command of what it guards among its own arguments, so that the first match counts.
    names = [role for word in command for name, role in _ROLES.items() if word == name or word.endswith(f"/{name}")]
    return names[0] if names else ""


def _left(before: set[int]) -> int:
    """Processes of this one that were not there ``before``, and still are a few seconds after the judge is done."""
    end = time.monotonic() + 5.0
    while (count := len(set(descendants()) - before)) and time.monotonic() < end:
        time.sleep(0.05)
    return count


def no_space() -> dict[str, Any]:
    """A judgement whose build cache has no room for a build: it is not needed for a verdict."""
    with tempfile.TemporaryDirectory() as folder:
        mount = 'mount -t tmpfs -o size=16k none "$SDPALAB_CACHE_DIR" && "$0" "$@"; code=$?'
        mount += '; echo builds in the cache: $(ls "$SDPALAB_CACHE_DIR" | grep -c sm_89) >&2; exit $code'
        fault = _judged(["unshare", "-Urm", "sh", "-c", mount], {"SDPALAB_CACHE_DIR": folder}, 0, "PASSED")
    return {**fault, "ok": fault["ok"] and fault["said"] == ["builds in the cache: 0"]}


def no_compiler() -> dict[str, Any]:
    """A judgement where there is no compiler."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "cuda")
        package.mkdir()
        package.joinpath("__init__.py").write_text("raise ImportError('there is no compiler here')\n")
        path = os.pathsep.join([folder, str(ROOT / "src")])
        return _judged([], {"SDPALAB_CACHE_DIR": f"{folder}/cache", "PYTHONPATH": path}, 3, "INFRA_ERROR")


def _judged(before: list[str], environment: Mapping[str, str], code: int, status: str) -> dict[str, Any]:
    """Judge ``scalar`` as a user does; ``ok`` if the exit code and all statuses are as given."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "verdict.json")
        command = [sys.executable, "-m", "sdpalab", "judge", "scalar", "--shape", "1,1,8,32", "--json", str(report)]
        given = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
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
    """Judge a candidate again and again: how many verdicts are the first one, byte for byte."""
    first = json.dumps(calm.verdict.to_dict())
    same = sum(json.dumps(judge_candidate(calm.candidate, SPECS, workers=1).to_dict()) == first for _ in range(times))
    return {"candidate": Path(calm.candidate).name, "times": times, "same": same, "ok": same == times}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign, print what happens, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    ran = Campaign("faults", " ".join(["python scripts/fault_campaign.py", *(arguments or sys.argv[1:])]), packages=())
    draw = random.Random(given.seed)
    calm = [baseline(candidate) for candidate in CANDIDATES]
    kills: list[dict[str, Any]] = []
    while len(kills) < given.kills:
        kill = kill_one(calm[len(kills) % len(calm)], draw)
        if kill is not None:
            kills.append(kill)
            print(f"kill {len(kills):3} {kill}", flush=True)
    faults = {"no_space": no_space(), "no_compiler": no_compiler(), "repeats": repeat(calm[0], given.repeats)}
    for name, fault in faults.items():
        print(f"{name} {fault}", flush=True)
    ok = all(each["ok"] for each in (*kills, *faults.values()))
    record = ran.record(
        confinement=calm[0].verdict.cases[0].run["confinement"],
        totals={
            "ok": ok,
            "kills": len(kills),
            "longest_seconds": max((kill["seconds"] for kill in kills), default=0.0),
            "left_running": sum(kill["left_running"] for kill in kills),
            "victims": dict(sorted(Counter(kill["victim"] for kill in kills).items())),
            "statuses": dict(sorted(Counter(status for kill in kills for status in kill["statuses"]).items())),
        },
        kills=kills,
        **faults,
    )
    ran.write(record, given.out)
    print(f"{'all as it should be' if ok else 'NOT as it should be'}: {record['totals']}, in {record['seconds']} s")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
