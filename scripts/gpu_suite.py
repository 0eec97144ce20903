"""The GPU suite (``gpu_suite.sh``): tests, verdicts, times and profiles in steps, each with a limit, within a budget.

OUT/evidence/<gpu>/ has the records to commit, OUT/steps/ the outcome and the log of each step, OUT/work/ bundles and
profiles. A step with a file OUT/steps/NAME.json is finished, and later calls skip it. A step that hung, crashed or was
interrupted has no file.

Exit code: 0 if every step finished, with any result; 1 if one did not; 2 for wrong usage; 3 without a GPU; 130 after
an interrupt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sdpalab.evidence import ReportData
from sdpalab.evidence.records import AttemptRecord
from sdpalab.evidence.store.folders import folder_of
from sdpalab.kernels.registry import GRADIENT_KERNELS, KERNELS

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "packages" / "sdpalab" / "tests"
SIMULATOR_TESTS = ROOT / "packages" / "warpsan" / "tests"
PARITY = TESTS / "gpu" / "parity.py"
PROBE = "from sdpalab.run import GpuExecutor; print(GpuExecutor().device)"
SHARDS = 6
"""Processes among which the files of ``packages/warpsan/tests`` are divided."""
CASE_SECONDS = 10
"""Time limit of one case of the judge, or of the comparison with the simulator."""
LARGE = ("prefill-4k", "2,16,4096,128")
"""Shapes timed in addition to the mission shape."""
AGAIN = 4
"""Exit code of ``packages/sdpalab/tests/gpu/parity.py`` when its process had to end; a new process does the rest."""
GRACE_SECONDS = 5.0
"""Time between the interrupt of a step and its kill."""


@dataclass(frozen=True)
class SuiteStep:
    """One command; ``done``: exit codes of a finished step; ``evidence``: whether its document is a record."""

    name: str
    seconds: float
    command: tuple[str, ...]
    evidence: bool = False
    done: tuple[int, ...] = (0, 1, 2)


class Suite:
    """One call on one GPU."""

    def __init__(self, asked: argparse.Namespace, gpu: str) -> None:
        self.asked, self.out = asked, Path(asked.out).absolute()
        self.evidence = self.out / "evidence" / folder_of(gpu)
        self.verdicts = self.out / "work" / "verdicts"
        self.deadline = time.monotonic() + asked.seconds
        self.python = os.environ.get("PYTHON") or sys.executable
        self.kernels: list[str] = asked.kernel or [*KERNELS, *GRADIENT_KERNELS]
        self.stop = threading.Event()
        self.lines: list[str] = []
        self.finished = True
        for folder in (self.evidence, self.out / "steps", self.out / "work"):
            folder.mkdir(parents=True, exist_ok=True)
        os.environ["SDPALAB_DATA_DIR"] = str(self.out / "work" / "data")

    def run(self) -> int:
        """Run every step, in order."""
        code = 0
        try:
            for workers, steps in self.groups():
                wanted = [each for each in steps if any(word in each.name for word in self.asked.only or [""])]
                with ThreadPoolExecutor(min(workers, os.cpu_count() or 1)) as pool:
                    try:
                        list(pool.map(self.step, wanted))
                    except KeyboardInterrupt:
                        self.stop.set()
                        raise
        except KeyboardInterrupt:
            code = 130
            self.lines.append("interrupted: finished steps are kept")
        self.collect()
        (self.out / "summary.txt").write_text("\n".join(self.lines) + "\n")
        print(f"records: {self.evidence}", flush=True)
        return code or (0 if self.finished else 1)

    def groups(self) -> Iterator[tuple[int, list[SuiteStep]]]:
        """Consecutive groups of steps, each with its number of concurrent steps."""
        pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
        case = ("--case-seconds", str(CASE_SECONDS * self.asked.patience))
        large = self.asked.large or LARGE
        marked = sorted(
            path for path in ROOT.glob("packages/*/tests/**/test_*.py") if "pytest.mark.gpu" in path.read_text()
        )
        left_out = {"test_kernel_parity", "test_sampling", "test_gpu_timing"}  # a step each, or no test of a GPU
        tests = [path for path in marked if path.stem not in left_out]
        simulated = sorted(path for path in SIMULATOR_TESTS.glob("test_*.py") if self.asked.replay in path.stem)
        shards = [simulated[number::SHARDS] for number in range(min(SHARDS, len(simulated)))]

        def tests_of(name: str, seconds: float, *words: Path | str) -> SuiteStep:
            return self.python_step(name, seconds, *pytest, *words, done=(0, 1, 5))

        yield 1, [self.lab("doctor", 60, "doctor", done=(0, 3))]
        yield 1, [tests_of("clocks", 60, TESTS / "measure" / "test_gpu_timing.py", "-m", "gpu")]
        steps = [tests_of(path.stem, 120, path, "-m", "gpu") for path in tests]
        for number, files in enumerate(shards):
            golden = self.evidence / "golden" / str(number)
            steps.append(tests_of(f"replay_{number}", 420, *files, "--replay-on-gpu", golden))
        for name in (each for each in self.kernels if each in KERNELS):  # the explained distance is that of O
            records = self.evidence / f"parity_{name}.jsonl"
            steps.append(self.python_step(f"parity_{name}", 300, PARITY, name, records, *case))
        yield 8, steps
        judging = ("--device", "gpu", *(word for shape in large for word in ("--also-for", shape)), *case)
        yield (
            4,
            [
                self.lab(f"verdict_{name}", 120, "repro", "--kernel", name, *judging, "--out", self.verdicts / name)
                for name in self.kernels
            ],
        )
        self.collect()
        green, gate = self.green(), ("--verdicts", self.evidence.parent)
        shapes = [word for shape in large for word in ("--shape", shape)]
        gradients = [name for name in green if name in GRADIENT_KERNELS]
        green = [name for name in green if name not in GRADIENT_KERNELS]
        large_ones = (*shapes, "--clock", "gpu", "--seconds", "6")
        timing: tuple[tuple[str, float, Sequence[str]], ...] = (
            ("mission", 100, (*green, "--shape", "mission", "--seconds", "8", "--keep")),
            ("large", 90, (*green, *large_ones)),
            ("mission_cold", 50, (*green, "--shape", "mission", "--clock", "gpu", "--cold", "--seconds", "8")),
            ("large_backward", 90, (*gradients, *large_ones, "--task", "backward")),
        )
        yield 1, [self.lab(name, most, "bench", *gate, *words, evidence=True) for name, most, words in timing]
        # Nsight Compute on the last two kernels in CUDA C++, the most elaborate ones.
        profiled = [name for name in green if not name.startswith("triton")][-2:] if shutil.which("ncu") else []
        out = ("--out", self.out / "work" / "profile")
        yield 1, [self.lab(f"profile_{name}", 70, "profile", name, *gate, *out, evidence=True) for name in profiled]

    def python_step(self, name: str, seconds: float, *words: Path | str, **more: object) -> SuiteStep:
        """A step that runs Python."""
        return SuiteStep(name, seconds, (self.python, *map(str, words)), **more)  # type: ignore[arg-type]

    def lab(self, name: str, seconds: float, *words: Path | str, **more: object) -> SuiteStep:
        """A step that is a command of the lab, with its ``--json`` document."""
        return self.python_step(name, seconds, "-m", "sdpalab", *words, "--json", self.draft(name), **more)

    def draft(self, name: str) -> Path:
        """The document of a step that has not finished."""
        return self.out / "work" / f"{name}.json"

    def step(self, step: SuiteStep) -> None:
        """Run a step unless it is finished, and store its outcome if it completes."""
        state = self.out / "steps" / f"{step.name}.json"
        if state.exists():
            return
        code, seconds, last = self.execute(step)
        if step.evidence and code in step.done:
            text = self.draft(step.name).read_text()
            for folder in (self.out, ROOT):
                text = text.replace(f"{folder}/", "")
            (self.evidence / f"{step.name}.json").write_text(text)
        if code in step.done:
            state.write_text(json.dumps({"exit_code": code, "seconds": round(seconds, 1), "last_line": last}) + "\n")
        else:
            self.finished = False
        words = "passed" if code == 0 else f"exit code {code}" if code is not None else "not finished"
        self.lines.append(f"{step.name:28} {words:13} {seconds:6.1f} s  {last}".rstrip())
        print(self.lines[-1], flush=True)

    def execute(self, step: SuiteStep) -> tuple[int | None, float, str]:
        """The exit code (None if it was killed), the seconds and the last printed line."""
        start = time.monotonic()
        until = min(start + step.seconds * self.asked.patience, self.deadline)
        code: int | None = AGAIN
        log = self.out / "steps" / f"{step.name}.log"
        while code == AGAIN and time.monotonic() + 1 < until and not self.stop.is_set():
            with log.open("ab") as file:
                process = subprocess.Popen(
                    step.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
                )
                code = self.wait(process, until)
            if step.command[1:2] != (str(PARITY),):
                break
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        last = next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
        return None if code == AGAIN else code, time.monotonic() - start, last

    def wait(self, process: subprocess.Popen[bytes], until: float) -> int | None:
        """The exit code of a process; None if it did not end by itself before ``until``."""
        ended: int | None = None
        while (ended := process.poll()) is None and time.monotonic() < until and not self.stop.is_set():
            time.sleep(0.05)
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            if ended is None:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(GRACE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and its remaining children
        return ended

    def collect(self) -> None:
        """Copy the attempts judged on the GPU, and the records of ``bench`` for the op, to the evidence."""
        for bundle in sorted(self.verdicts.glob("*/*.tar.gz")):
            try:
                attempts = ReportData.read(bundle).attempts
            except (OSError, ValueError) as error:
                self.lines.append(f"{bundle.name} is no bundle: {error}")
                continue
            for attempt in attempts:
                if attempt.verdict and not attempt.verdict.device.startswith(("simulator", "cpu")):
                    target = self.evidence / f"{attempt.kernel}.json"
                    target.write_text(json.dumps(attempt.to_dict(), indent=1) + "\n")
        for record in (self.out / "work" / "data").glob("*/*/*.json"):
            shutil.copy(record, self.evidence)

    def green(self) -> list[str]:
        """The kernels with a PASSED verdict of this GPU."""
        passed = []
        for name in self.kernels:
            path = self.evidence / f"{name}.json"
            attempt = AttemptRecord.from_dict(json.loads(path.read_bytes())) if path.exists() else None
            if attempt and attempt.verdict and attempt.verdict.passed:
                passed.append(name)
        return passed


def main(words: Sequence[str]) -> int:
    """Run the command line; argparse ends the process with exit code 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_suite.sh", description="See docs/gpu.md.")
    parser.add_argument("out", metavar="OUT", help="folder for records and logs")
    parser.add_argument("--kernel", action="append", metavar="K", help="only this kernel; may be repeated")
    parser.add_argument("--only", action="append", metavar="WORD", help="only steps with this word in their names")
    parser.add_argument("--large", action="append", metavar="B,H,S,D", help=f"timed, too; default: {', '.join(LARGE)}")
    parser.add_argument("--replay", default="", metavar="WORD", help="only its test files with this word")
    parser.add_argument("--seconds", type=float, default=570.0, metavar="S", help="of this call; default: 570")
    parser.add_argument("--patience", type=float, default=1.0, metavar="X", help="factor on the limit of each step")
    asked = parser.parse_args(words)
    for name in asked.kernel or ():
        if name not in (*KERNELS, *GRADIENT_KERNELS):
            parser.error(f"--kernel {name}: there are {', '.join((*KERNELS, *GRADIENT_KERNELS))}")
    # Paths of carried packages may be relative to the working directory; the steps run in the root of the tree.
    path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path))
    if cache := os.environ.get("WARPSAN_CACHE_DIR"):
        os.environ["WARPSAN_CACHE_DIR"] = os.environ["SDPALAB_TEST_CACHE_DIR"] = os.path.abspath(cache)
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        probe = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired:
        print("no GPU: the driver does not answer within 90 s", file=sys.stderr)
        return 3
    if probe.returncode:
        print((probe.stderr.strip() or "no GPU").splitlines()[-1].partition("MachineError: ")[2], file=sys.stderr)
        return 3
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return Suite(asked, probe.stdout.strip()).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
