"""Drives ``sdpalab serve`` with many submissions, and checks that none is lost and none is judged twice.

    PYTHONPATH=... python benchmarks/serving.py --count 10000 --workers 2 --equal 0.6 --json out/serving.json

The submissions are right, wrong, racing, hanging and hostile, in PyTorch and CUDA C++; each source is unique but for
the share that repeats an earlier one. In the middle the server is stopped, and later killed, with jobs in the queue. At
the end each job must have the verdict of its variant, and each variant that of ``evaluate`` in this process. The output
has CPU seconds and verdicts an hour and a core by stage, the wait of single jobs, and the server's memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdpalab import Evaluation, Problem, evaluate
from sdpalab.bugs import replace_once
from sdpalab.judge.sandbox.guarded import fork_server

ROOT = Path(__file__).resolve().parents[1]
TASK = {"batch": 1, "heads": 1, "seq_q": 40, "head_dim": 32, "seq_kv": 70}
TORCH = """
import torch

def attention(q, k, v, *, scale, causal):
    return (torch.softmax((q.float() @ k.float().transpose(-1, -2)) * scale, -1) @ v.float()).to(q.dtype)
"""
HEAD = "def attention(q, k, v, *, scale, causal):\n"
CUDA = (ROOT / "examples" / "my_kernel.cu").read_text()
LAUNCH = (ROOT / "examples" / "my_kernel.py").read_text()
BARRIER = "        }\n        __syncthreads();\n    }\n"


@dataclass(frozen=True)
class Variant:
    """One kind of submission.

    Attributes
    ----------
    name, share
        Share of all submissions.
    text : str
        Python source; or CUDA source with ``launch``.
    expected : tuple of str
        Statuses that a verdict may have.
    launch : str
        Python source of the launch of CUDA source.
    stages : tuple of str
    budget_s : float
    """

    name: str
    share: float
    text: str
    expected: tuple[str, ...]
    launch: str = ""
    stages: tuple[str, ...] = ("compile", "tiny")
    budget_s: float = 60.0
    task: Mapping[str, Any] = field(default_factory=lambda: TASK)

    def files(self, number: int) -> dict[str, str]:
        """The files of a submission with this number."""
        if self.launch:
            return {"my_kernel.py": self.launch, "my_kernel.cu": f"{self.text}// {number}\n"}
        return {"candidate.py": f"{self.text}\n# {number}\n"}

    def submission(self, number: int) -> dict[str, Any]:
        """The body of a request."""
        files = self.files(number)
        named = {"files": files, "entry": "my_kernel.py"} if self.launch else {"source": files["candidate.py"]}
        return {**named, "task": self.task, "stages": list(self.stages), "budget_s": self.budget_s}


def python(name: str, share: float, body: str, *expected: str, **options: Any) -> Variant:
    """A variant whose function has this body."""
    return Variant(
        name, share, f"import os, socket, sys, time\n\n{HEAD}    {body}\n    return q\n", expected, **options
    )


def edited(name: str, share: float, old: str, new: str, *expected: str) -> Variant:
    """A variant of the CUDA kernel."""
    return Variant(name, share, replace_once(CUDA, (old, new)) if old else CUDA, expected, LAUNCH)


VARIANTS = (
    Variant("torch: right", 0.16, TORCH, ("PASSED",)),
    Variant("torch: scale", 0.18, TORCH.replace("* scale", "* scale * 1.01"), ("INCORRECT",)),
    Variant("torch: last key", 0.16, TORCH.replace("-1) @ v", "-1)[..., :-1] @ v[..., :-1, :]"), ("INCORRECT",)),
    Variant("torch: raises", 0.10, TORCH.replace("torch.softmax", "torch.softmaks"), ("CRASHED",)),
    Variant("Python: does not load", 0.10, "def attention(:\n", ("BUILD_FAILED",)),
    edited("CUDA: right", 0.03, "", "", "PASSED"),
    edited("CUDA: last key", 0.05, "min(TILE, seq_kv - key0)", "min(TILE, seq_kv - 1 - key0)", "INCORRECT"),
    edited("CUDA: maximum", 0.05, "sum *= rescale;", "", "INCORRECT"),
    edited("CUDA: does not build", 0.05, "float sum = 0.0f;", "float sum = 0.0f", "BUILD_FAILED"),
    edited("CUDA: race", 0.04, BARRIER, "        }\n    }\n", "HAZARD"),
    edited("CUDA: out of bounds", 0.03, "o[q_offset + d]", "o[q_offset + d + 1]", "HAZARD"),
    python("hangs", 0.01, "time.sleep(1000)", "INTERRUPTED", budget_s=1.0),
    python("hostile: dies", 0.01, "os.abort()", "CRASHED"),
    python("hostile: exits", 0.005, "os._exit(0)", "CRASHED"),
    python("hostile: kills", 0.005, "os.kill(-1, 9)", "CRASHED", "INCORRECT", "INFRA_ERROR"),
    python("hostile: network", 0.005, "socket.create_connection(('127.0.0.1', 1))", "CRASHED"),
    python("hostile: files", 0.005, "open('/etc/passwd', 'a').write('x')", "CRASHED"),
    python("hostile: memory", 0.003, "x = bytearray(1 << 36)", "CRASHED"),
    python("hostile: output", 0.004, "print('x' * (1 << 20)); os.write(1, b'PASSED' * 1000)", "INCORRECT"),
    python("hostile: wire", 0.003, "[os.write(n, b'{}') for n in range(3, 20) if os.path.exists(f'/proc/self/fd/{n}')]",
           "CRASHED", "INCORRECT"),
)  # fmt: skip
QUICK = Variant(
    "flash at quick",
    0.0,
    "from sdpalab.kernels.flash import FLASH\n",
    ("PASSED",),
    stages=("compile", "tiny", "quick"),
    budget_s=600.0,
    task={"batch": 1, "heads": 2, "seq_q": 512, "head_dim": 64, "causal": True},
)


class Server:
    """``sdpalab serve`` in a folder; it can be ended and started again."""

    def __init__(self, state: Path, workers: int) -> None:
        self.state, self.workers, self.starts, self.most_rss = state, workers, 0, 0
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        options = ["--state", str(self.state), "--port", "0", "--workers", str(self.workers), "--grace", "20"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sdpalab", "serve", *options], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split(": ")[0]
        self.starts += 1

    def end(self, number: signal.Signals) -> None:
        """End it by a signal."""
        self.process.send_signal(number)
        self.process.communicate()

    def ask(self, path: str, body: Any = None) -> Any:
        """The JSON answer of a request; a full queue is waited for."""
        data = None if body is None else json.dumps(body).encode()
        while True:
            try:
                with urllib.request.urlopen(urllib.request.Request(self.address + path, data), timeout=120) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != 429:
                    raise
                time.sleep(min(5.0, float(error.headers["Retry-After"])))

    def rss_mib(self) -> float:
        """Resident memory of the server's own process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        now = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        self.most_rss = max(self.most_rss, int(now))
        return now


@contextmanager
def serving(state: Path, workers: int) -> Iterator[Server]:
    """A server that ends with the block."""
    server = Server(state, workers)
    try:
        yield server
    finally:
        server.end(signal.SIGTERM)


def waits(server: Server, count: int) -> list[float]:
    """Seconds from acceptance to begin of single jobs on an idle server."""
    seconds = []
    for number in range(count):
        job = server.ask("/jobs", VARIANTS[1].submission(-1 - number))
        job = finished(server, job["id"])
        seconds.append(job["begun"] - job["accepted"])
    return seconds


def finished(server: Server, identifier: str) -> dict[str, Any]:
    """A job that is done."""
    while True:
        job: dict[str, Any] = server.ask(f"/jobs/{identifier}?wait=60")
        if job["state"] == "done":
            return job


def chosen(count: int, equal: float, seed: int) -> list[tuple[Variant, int]]:
    """Variants and numbers of all submissions; a share ``equal`` repeats an earlier one."""
    draw = random.Random(seed)
    submissions: list[tuple[Variant, int]] = []
    for number in range(count):
        if submissions and draw.random() < equal:
            submissions.append(draw.choice(submissions))
        else:
            submissions.append((draw.choices(VARIANTS, [each.share for each in VARIANTS])[0], number))
    return submissions


def drive(server: Server, submissions: list[tuple[Variant, int]], batch: int) -> dict[str, Variant]:
    """Submit all; stop the server after a third of them, and kill it after two thirds."""
    accepted: dict[str, Variant] = {}
    ends = {len(submissions) // 3: signal.SIGTERM, 2 * len(submissions) // 3: signal.SIGKILL}
    for first in range(0, len(submissions), batch):
        for place in [place for place in ends if place <= first]:
            server.end(ends.pop(place))
            server.start()
        part = submissions[first : first + batch]
        answer = server.ask("/jobs", {"submissions": [each.submission(number) for each, number in part]})
        accepted |= {job["id"]: each for job, (each, _) in zip(answer["jobs"], part, strict=True)}
        report(server, len(accepted))
    return accepted


def report(server: Server, accepted: int) -> dict[str, Any]:
    """Print the state of the server."""
    health: dict[str, Any] = server.ask("/health")
    print(f"{accepted} accepted, {health['queued']} wait, {server.rss_mib():.0f} MiB", flush=True)
    return health


def direct(variant: Variant) -> Evaluation:
    """The evaluation of a variant in this process."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in variant.files(0).items():
            Path(folder, name).write_text(text)
        path = Path(folder, "my_kernel.py" if variant.launch else "candidate.py")
        options: dict[str, Any] = {"stages": variant.stages, "budget_s": variant.budget_s}
        return evaluate(str(path), Problem(**variant.task), **options)


def _stated(job: Mapping[str, Any]) -> tuple[Any, ...]:
    """The part of an evaluation that hidden seeds do not change."""
    evaluation = job["evaluation"]
    return evaluation["status"], evaluation["stages"], sorted(evaluation["hazards"])


def main() -> None:
    """Drive the server, check all jobs, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--equal", type=float, default=0.6, help="share of submissions that repeat an earlier one")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--quick", type=int, default=2, help="evaluations of flash at quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder, "state"), options.workers) as server:
        idle = waits(server, 20)
        quick = [finished(server, server.ask("/jobs", QUICK.submission(n))["id"]) for n in range(options.quick)]
        submissions = chosen(options.count, options.equal, options.seed)
        accepted = drive(server, submissions, options.batch)
        while report(server, len(accepted))["queued"]:
            time.sleep(10)
        jobs = [finished(server, identifier) for identifier in accepted]
        work = [str(each) for each in (server.state / "work").glob("*/*")]
        database = sum(each.stat().st_size for each in server.state.glob("jobs.sqlite*"))
    seconds = time.monotonic() - begin
    judged = [job for job in jobs if job["answered_from"] is None]
    unexpected = [
        (accepted[job["id"]].name, job["text"])
        for job in jobs
        if job["evaluation"]["status"] not in accepted[job["id"]].expected
    ]
    with fork_server(warm=True):
        own = {each.name: direct(each) for each in VARIANTS}
    differing = Counter(
        f"{variant.name}: {_stated(job)}, by evaluate {own[variant.name].text(200)}"
        for job in jobs
        for variant in [accepted[job["id"]]]
        if len(variant.expected) == 1
        if _stated(job) != _stated({"evaluation": own[variant.name].to_dict()})
    )
    by_stage: dict[str, list[float]] = defaultdict(list)
    for job in [*judged, *quick]:
        stages = job["evaluation"]["stages"]
        by_stage[f"{list(stages)[-1]} {stages[list(stages)[-1]]}"].append(job["cpu_seconds"])
    figures = {
        "submissions": len(submissions),
        "distinct": len({(each.name, number) for each, number in submissions}),
        "accepted": len(accepted),
        "done": sum(job["state"] == "done" for job in jobs),
        "judged": len(judged),
        "answered_from_the_record": len(jobs) - len(judged),
        "begun_again_after_a_server_ended": sum(job["starts"] > 1 for job in jobs),
        "starts_of_the_server": server.starts,
        "unexpected_verdicts": len(unexpected),
        "verdicts_unlike_evaluate": sum(differing.values()),
        "folders_left": len(work),
        "server_mib": server.most_rss,
        "database_mib": round(database / 2**20, 1),
        "seconds": round(seconds),
        "idle_wait_ms": {"median": round(1000 * statistics.median(idle), 1), "most": round(1000 * max(idle), 1)},
        "cpu_seconds_of_jobs": round(sum(job["cpu_seconds"] for job in judged)),
        "stages": {
            stage: {
                "verdicts": len(values),
                "median_cpu_s": round(statistics.median(values), 3),
                "verdicts_an_hour_and_core": round(3600 / statistics.mean(values)),
            }
            for stage, values in sorted(by_stage.items())
        },
    }
    for sentence in [*dict.fromkeys(map(str, unexpected)), *differing]:
        print(f"differs: {sentence}")
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if unexpected or differing or work or len(accepted) != len(submissions) or figures["done"] != len(submissions):
        raise SystemExit("jobs were lost, judged wrong, or left files")


if __name__ == "__main__":
    main()
