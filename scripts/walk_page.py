"""Write the pages that walk from the output of ``sdpalab judge`` or ``warpsan sanitize`` to the lines of planted bugs.

    python scripts/walk_page.py            # run all, and write the pages
    python scripts/walk_page.py barrier    # run one, and print its section

The pages show the real output, 80 columns wide. ``packages/sdpalab/tests/test_walk.py`` repeats the runs and compares.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [str(ROOT / "packages" / name / "src") for name in ("sdpalab", "warpsan")]
sys.path[:0] = SOURCES

from sdpalab.bugs import replace_once  # noqa: E402

COLUMNS = 80
MOST_LINES = 60
SHAPE = ("--shape", "1,2,100,64")


@dataclass(frozen=True)
class Step:
    """A planted bug, and the way from the output to its line.

    Attributes
    ----------
    name, title : str
    right, wrong : str
        Text of the kernel, and its replacement.
    shows : tuple of str
        Texts that the output must contain.
    reading : str
        Explanation below the output.
    causal : bool
        Judged with a causal mask.
    """

    name: str
    title: str
    right: str
    wrong: str
    shows: tuple[str, ...]
    reading: str
    causal: bool = False


@dataclass(frozen=True)
class Walk:
    """A page.

    Attributes
    ----------
    path : Path
    source, beside : str
        The example's source, and the file that its run needs besides.
    package : str
        The package whose command runs.
    head : str
        Title and introduction.
    steps : tuple of Step
    """

    path: Path
    source: str
    beside: str
    package: str
    head: str
    steps: tuple[Step, ...]

    def command(self, step: Step) -> tuple[str, ...]:
        """The arguments of the package's command."""
        if self.package == "warpsan":
            return ("sanitize", self.source)
        return ("judge", self.beside, *SHAPE, *(("--causal",) if step.causal else ()))

    def right(self) -> str:
        """The source without a bug."""
        return (ROOT / "examples" / self.source).read_text()

    def broken(self, step: Step) -> str:
        """The source with a bug."""
        return replace_once(self.right(), (step.right, step.wrong))


_HOW = (
    "in a terminal of 80 columns, the way from it to the line, and the fix. `scripts/walk_page.py` wrote the output; "
    "only the seconds are left out."
)

STEPS = (
    Step(
        "barrier",
        "A missing barrier",
        "        __syncthreads();\n\n        for (int j",
        "        for (int j",
        (
            "race at my_kernel.cu:",
            "k_smem[i / HEAD_DIM]",
            "score = fmaf(q_row[d], k_smem[j][d], score);",
            "missing barrier",
        ),
        "The report shows two races. The carets of each mark a write to a tile in shared memory and a read of the same "
        "tile in the loop below it. No barrier between the two loops makes the warps wait. The outputs are within "
        "their limits in this order of the warps, so the status is HAZARD and not INCORRECT.",
    ),
    Step(
        "mask",
        "A causal mask that is off by one",
        "min(row + 1, seq_kv)",
        "min(row + 2, seq_kv)",
        ("likely: the mask is wrong (query i sees key i + 1",),
        "The line `likely:` names the cause: query i attends to key i + 1. The variable `visible` holds the number of "
        "keys of a row. The map shows errors in every row but the last, which has no key i + 1.",
        causal=True,
    ),
)

TENSOR_STEPS = (
    Step(
        "fence",
        "A missing fence",
        '    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");\n    for (int column',
        "    for (int column",
        ("without a fence after the synchronisation", "missing tcgen05.fence::after_thread_sync"),
        "All threads wait for the mbarrier of the commit, so that the product is complete. A load of another thread "
        "than the one that issued the product also needs a fence after that wait. The output is right on the "
        "simulator, and on a GPU as long as the hardware does not use its freedom.",
    ),
    Step(
        "stage",
        "A stage that is used too early",
        '"r"(step & 1)',
        '"r"(0)',
        ("overwrites", "still reads"),
        "The parity of the wait stays 0, and the phase of parity 0 is over from the second step on. The threads then "
        "copy the next columns into tiles that the product still reads, and the loads of the sums come before the "
        "last product.",
    ),
    Step(
        "lanes",
        "The lanes of another warp",
        "(32 * warp << 16)",
        "(warp << 16)",
        ("the warp has the 32 lanes from 32", "number modulo 4"),
        "The lane is in the upper half of an address. Warp 1 begins at lane 1, and may only access the lanes 32 to 63.",
    ),
)

WALKS = (
    Walk(
        ROOT / "packages" / "sdpalab" / "docs" / "walk.md",
        "my_kernel.cu",
        "my_kernel.py",
        "sdpalab",
        "# A walk through two bugs\n\n"
        "Two bugs are planted in [examples/my_kernel.cu](../../../examples/my_kernel.cu), one at a time. Each section "
        f"shows the output of `sdpalab judge` {_HOW} [Read a failure](failures.md) explains each part of the output.",
        STEPS,
    ),
    Walk(
        ROOT / "packages" / "warpsan" / "docs" / "blackwell.md",
        "my_tensor.cu",
        "my_tensor.json",
        "warpsan",
        "# Debug a Blackwell kernel without a Blackwell GPU\n\n"
        "Products of sm_100 run asynchronously and accumulate in tensor memory. The simulator executes them as "
        "compiled: allocation, moves, products of one CTA or of a pair, copies, commits and fences. Three bugs are "
        "planted in [examples/my_tensor.cu](../../../examples/my_tensor.cu), a product of two matrices, one at a time. "
        f"Each section shows the output of `warpsan sanitize` {_HOW}\n\n"
        "CUTLASS and FlashAttention-4 leave out `tcgen05.fence` and `tcgen05.wait::ld`, which the PTX manual demands. "
        "Both are checked in a kernel that has some of them, and in any kernel with `--strict`.",
        TENSOR_STEPS,
    ),
)


def run(walk: Walk, step: Step) -> str:
    """Output of the command with long lines folded, without the seconds, which differ between runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / walk.beside).write_bytes((ROOT / "examples" / walk.beside).read_bytes())
        (folder / walk.source).write_text(walk.broken(step))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES), "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
        command = [sys.executable, "-m", walk.package, *walk.command(step)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 1:
        raise SystemExit(f"{' '.join(command[2:])} of {step.name} ended with {done.returncode}: {done.stderr}")
    lines = [part.rstrip() for line in done.stdout.splitlines() for part in folded(line)]
    return re.sub(r" in [\d.]+ s$", "", "\n".join(lines), flags=re.MULTILINE)


def folded(line: str) -> list[str]:
    """A line as a terminal shows it."""
    return [line[start : start + COLUMNS] for start in range(0, len(line), COLUMNS)] or [""]


def section(walk: Walk, step: Step, output: str) -> str:
    """One section of a page."""
    right = walk.right().splitlines()
    changed = list(difflib.unified_diff(walk.broken(step).splitlines(), right, "broken", "fixed", n=1, lineterm=""))[2:]
    return "\n\n".join(
        [
            f"## {step.title}",
            f"```console\n$ {walk.package} {' '.join(walk.command(step))}\n{output}\n```",
            step.reading,
            "```diff\n" + "\n".join(changed) + "\n```",
        ]
    )


def page(walk: Walk, outputs: dict[str, str]) -> str:
    """A whole page."""
    return "\n\n".join([walk.head, *(section(walk, step, outputs[step.name]) for step in walk.steps)]) + "\n"


def main() -> None:
    """Write the pages, or print one section."""
    chosen = sys.argv[1:]
    for walk in WALKS:
        outputs = {}
        for step in walk.steps:
            if chosen and step.name not in chosen:
                continue
            outputs[step.name] = run(walk, step)
            lines = outputs[step.name].splitlines()
            print(f"{step.name}: {len(lines)} lines, {max(map(len, lines))} columns", flush=True)
            if chosen:
                print(section(walk, step, outputs[step.name]))
        if not chosen:
            walk.path.write_text(page(walk, outputs))


if __name__ == "__main__":
    main()
