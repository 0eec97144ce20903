"""The GPU suite (``gpu_suite.sh``, which lists its requirements): its parts in order, each with a limit, within a
budget.

    prepare FOLDER [--arch sm_90a]     FOLDER/cache.tar.gz: all that smoke and measure would compile; FOLDER/commit
    smoke OUT | measure OUT | OUT      the first half, the second, or both, one after the other

OUT gets at most eight files (``gpu_archive.py``); the work is done in a folder beside it, OUT.work. What an earlier
call has done is not done again: it is read from OUT.work, or from the archives in OUT. What was cut off is done again.

Exit code: 0 if every part came to its end, whatever it found; 1 if one did not; 2 for wrong usage; 3 without a GPU;
130 after an interrupt, with everything packed that was done by then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpu_parts
from gpu_archive import pack, unpack
from gpu_parts import ROOT, Part
from gpu_records import Workspace, collect, green, merge_golden, share_golden, why_not_green
from gpu_run import PartRunner
from gpu_summary import write_summary

from sdpalab.evidence.environment import current_environment, harness_diff

SECONDS = {"smoke": 240.0, "measure": 570.0}
"""Budget of each half, packing included: 30 s of ten minutes are for starting and for copying."""

PACKING_SECONDS = 20.0
REPACK_SECONDS = 60.0
"""At least so long between two packings on the way: the work that is lost if the suite itself is killed."""

PROBE_SECONDS = 90.0


class Suite:
    """One call of the suite on one GPU."""

    def __init__(
        self, work: Workspace, out: Path, gpu: dict[str, Any], halves: Sequence[str], options: argparse.Namespace
    ) -> None:
        self.work, self.out, self.gpu, self.halves = work, out, gpu, halves
        self.runner = PartRunner(work, ROOT, options.patience)
        self._seconds, self._patience, self._large = options.seconds, options.patience, options.large
        self._replay: str = options.replay
        self._packed_at = time.monotonic()

    def run(self) -> int:
        """Run both halves or one, and always write the archives and the summary."""
        code = 130
        try:
            for half in self.halves:
                seconds = self._seconds or SECONDS[half] * self._patience
                self.runner.deadline = time.monotonic() + seconds - PACKING_SECONDS
                getattr(self, half)()
            code = 0 if self.runner.complete else 1
        except KeyboardInterrupt:
            print("interrupted: finished parts are kept", flush=True)
        finally:
            self.pack()
        print((self.out / "summary.txt").read_text(), end="")
        return code

    def smoke(self) -> None:
        """Check that the machine works, and that each kernel runs."""
        kernels = self.gpu["kernels"]
        self._go(gpu_parts.first_parts(self.work))
        self._go(gpu_parts.smoke_parts(kernels), min(4, gpu_parts.workers()))
        bad = [name for name in kernels if self.work.state(f"smoke_{name}").get("state") in ("failed", "timed out")]
        self._go(gpu_parts.sanitizer_parts(bad))

    def measure(self) -> None:
        """Verdicts first: only kernels that passed are timed. Then times, alone on the GPU; then the parallel parts."""
        self._go(gpu_parts.first_parts(self.work)[1:])
        verdicts = gpu_parts.verdict_parts(self.work, self.gpu["kernels"], self._large, self._patience)
        self._go(verdicts, min(4, gpu_parts.workers()))
        collect(self.work)
        fast = green(self.work)
        for part in (
            *gpu_parts.time_parts(self.work, fast, self._large),
            *gpu_parts.prove_parts(self.work, fast),
            *gpu_parts.profile_parts(self.work, fast),
        ):
            self._go([part])
        self._go([gpu_parts.timing_tests()])
        for shard in range(gpu_parts.REPLAY_SHARDS):
            share_golden(self.work, shard)
        kernels = self.gpu["kernels"]
        parts = gpu_parts.comparison_parts(self.work, kernels, self._patience, self._replay)
        self._go(parts, gpu_parts.workers())
        for part in gpu_parts.tune_parts(self.work, fast):
            self._go([part])

    def pack(self) -> None:
        """Write the archives and the summary of the results so far."""
        collect(self.work)
        merge_golden(self.work)
        packed = pack(self.work.path, self.out)
        dropped = {name: why_not_green(self.work, name) for name in self.gpu["kernels"] if name not in green(self.work)}
        judged = "measure" in self.halves
        write_summary(self.out, self.work, self.gpu, self.halves, dropped if judged else {}, packed)
        self._packed_at = time.monotonic()

    def _go(self, parts: Sequence[Part], workers: int = 1) -> None:
        self.runner.run(parts, workers)
        if time.monotonic() - self._packed_at > REPACK_SECONDS:
            self.pack()


def prepare(folder: Path, arch: str) -> int:
    """Build into a cache and pack that; needs no GPU."""
    cache = folder / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SDPALAB_CACHE_DIR": str(cache), "SDPALAB_TEST_CACHE_DIR": str(cache)}
    good = True
    for part in gpu_parts.prepare_parts(arch):
        print(f"{part.name}: {gpu_parts.describe(part)['command']}", flush=True)
        good &= subprocess.run(part.command, cwd=ROOT, env=environment, check=False).returncode == 0
    target = folder / "cache.tar.gz"
    harness = current_environment(harness_diff()).harness
    if harness.commit:
        (folder / "commit").write_text(f"{harness.commit}{'-dirty' if harness.dirty else ''}\n")
    with tarfile.open(target, "w:gz") as archive:
        for entry in sorted(cache.iterdir()):
            if (entry / "SHA256SUMS").exists():
                archive.add(entry, entry.name)
    print(f"{target}: {target.stat().st_size:,} bytes; hand it to the suite on the GPU machine with --cache {target}")
    return 0 if good else 1


def probe() -> tuple[dict[str, Any], int]:
    """The output of ``gpu_records.py probe``, in a process of its own: this process never uses the GPU."""
    command = [gpu_parts.PYTHON, str(ROOT / "scripts" / "gpu_records.py"), "probe"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"no GPU: the driver does not answer within {PROBE_SECONDS:g} s", file=sys.stderr)
        return {}, 3
    if done.returncode:
        print(done.stderr.strip() or f"the probe of the GPU ended with {done.returncode}", file=sys.stderr)
        return {}, 3
    return json.loads(done.stdout.splitlines()[-1]), 0


def workspace(out: Path, gpu: str) -> Workspace:
    """The folder OUT.work; a temporary one where that cannot be made."""
    path = out.with_name(f"{out.name}.work")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="sdpalab-suite-"))
    return Workspace(path, gpu)


def arguments_of(words: Sequence[str]) -> argparse.Namespace:
    """The command line; argparse ends the process with exit code 2 where it is wrong."""
    usage = "scripts/gpu_suite.sh [prepare | smoke | measure] OUT [options]"
    parser = argparse.ArgumentParser(prog="scripts/gpu_suite.sh", usage=usage, description="see docs/gpu.md")
    parser.add_argument("words", nargs="+", metavar="OUT", help="folder for the records, behind the half if only one")
    parser.add_argument("--seconds", type=float, default=0.0, help="budget of each half (default: 240 and 570)")
    parser.add_argument("--patience", type=float, default=1.0, help="factor on every limit, for a slow machine")
    parser.add_argument("--kernel", action="append", help="only this kernel; may be repeated (default: all)")
    shapes = "shape of the part `large`; may be repeated (default: prefill-4k and 2,16,4096,128)"
    parser.add_argument("--large", action="append", metavar="SHAPE", help=shapes)
    parser.add_argument("--replay", default="", metavar="WORD", help="repeat only launches of test files so named")
    parser.add_argument("--commit", help="commit of this tree, where it came without .git (SDPALAB_COMMIT)")
    parser.add_argument("--cache", type=Path, help="cache.tar.gz of prepare, unpacked beside OUT")
    parser.add_argument("--resume", type=Path, help="folder with the archives of an earlier call, if not OUT")
    parser.add_argument("--arch", default="sm_90a", help="for prepare: what to build for")
    asked = parser.parse_intermixed_args(words)
    named = asked.words[0] in ("prepare", *SECONDS)
    if len(asked.words) != 1 + named:
        parser.error("it takes one folder OUT, and before it prepare, smoke, measure or nothing")
    asked.large = asked.large or gpu_parts.LARGE_SHAPES
    asked.half, asked.out = asked.words[0] if named else "both", Path(asked.words[-1])
    return asked


def _interrupt(number: int, frame: object) -> None:
    """On any end of the suite: end its parts and pack the results."""
    raise KeyboardInterrupt


def main(words: Sequence[str]) -> int:
    """Run the command line."""
    asked = arguments_of(words)
    out = asked.out.absolute()
    if asked.half == "prepare":
        return prepare(out, asked.arch)
    out.mkdir(parents=True, exist_ok=True)
    # Carried packages may be named relative to where the caller is, and the parts run in the root of the tree.
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, os.environ["PYTHONPATH"].split(":"))))
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if asked.commit:
        os.environ["SDPALAB_COMMIT"] = asked.commit
    gpu, code = probe()
    if code:
        return code
    if asked.kernel:
        unknown = [name for name in asked.kernel if name not in gpu["kernels"]]
        if unknown:
            print(f"--kernel {unknown[0]}: on {gpu['gpu']} there are {', '.join(gpu['kernels'])}", file=sys.stderr)
            return 2
        gpu["kernels"] = [name for name in gpu["kernels"] if name in asked.kernel]
    work = workspace(out, gpu["gpu"])
    for folder in filter(None, (out, asked.resume)):
        for name in unpack(folder, work.path):
            print(f"taken up: {folder / name}", flush=True)
    if asked.cache:
        with tarfile.open(asked.cache) as archive:
            archive.extractall(work.path / "cache", filter="data")
        os.environ["SDPALAB_CACHE_DIR"] = str(work.path / "cache")
    os.environ["SDPALAB_DATA_DIR"] = str(work.path / "data")  # what prove keeps comes back with the other records
    if "SDPALAB_CACHE_DIR" in os.environ:
        os.environ.setdefault("SDPALAB_TEST_CACHE_DIR", os.environ["SDPALAB_CACHE_DIR"])
    halves = tuple(SECONDS) if asked.half == "both" else (asked.half,)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    return Suite(work, out, gpu, halves, asked).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
