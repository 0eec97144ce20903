"""``docs/walk.md``: from ``sdpalab judge`` to the wrong line, for planted bugs in ``examples/my_kernel.cu``.

    python scripts/walk_page.py            # run everything and write the page: minutes
    python scripts/walk_page.py barrier    # run one, and print it

What the page shows is the real output, 80 columns wide. ``tests/test_walk.py`` runs it again and compares.
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

PAGE = ROOT / "packages" / "sdpalab" / "docs" / "walk.md"
COLUMNS = 80
MOST_LINES = 60
SHAPE = ("--shape", "1,2,100,64")


@dataclass(frozen=True)
class Step:
    """A planted bug, and what leads from the screen to its line.

    Attributes
    ----------
    name, title : str
    right, wrong : str
        Text of the kernel, and what it is replaced by.
    shows : tuple of str
        What must be on the screen, and is enough to find the line.
    reading : str
        How it leads there.
    causal : bool
        Whether it is judged with a causal mask.
    """

    name: str
    title: str
    right: str
    wrong: str
    shows: tuple[str, ...]
    reading: str
    causal: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of ``sdpalab``."""
        return ("judge", "my_kernel.py", *SHAPE, *(("--causal",) if self.causal else ()))


STEPS = (
    Step(
        "barrier",
        "A barrier is missing between write and read",
        "        __syncthreads();\n\n        for (int j",
        "        for (int j",
        (
            "race at my_kernel.cu:",
            "k_smem[i / HEAD_DIM]",
            "score = fmaf(q_row[d], k_smem[j][d], score);",
            "missing barrier",
        ),
        "Two races, and each pair of carets is a write and a read of one tile: the write in the loop that fills it, "
        "the read in the loop behind it. Nothing between the two loops makes the warps wait. The numbers are right in "
        "this order of the warps; the hazard is what fails.",
    ),
    Step(
        "slot",
        "A barrier is missing before a tile is overwritten",
        "        }\n        __syncthreads();\n    }\n",
        "        }\n    }\n",
        ("race at my_kernel.cu:", "k_smem[i / HEAD_DIM]", "overwrites what ld.shared", "missing barrier"),
        "The same pair of lines, and the other way round: a warp overwrites the tile that another still reads. The way "
        "from the read to the next write leads over the end of the outer loop, so the barrier belongs there.",
    ),
    Step(
        "return",
        "Threads return before a barrier",
        "    float q_row[HEAD_DIM] = {};\n",
        "    if (row >= seq_q) return;\n    float q_row[HEAD_DIM] = {};\n",
        ("barrier at my_kernel.cu:", "threads have exited and never come to barrier 0", "behind a return"),
        "The caret is under a `__syncthreads()`, and 28 of 64 threads have exited before it: rows past the end, so the "
        "kernel has a `return` for them. What is read uninitialised follows from it: those threads filled no tile.",
    ),
    Step(
        "bounds",
        "The last tile is filled past the end of K and V",
        "min(TILE, seq_kv - key0);",
        "TILE;",
        ("out-of-bounds at my_kernel.cu:", "one row past the end of k [1, 2, 100, 64]", "missing bound"),
        "The index says which row: number 100 of 100, so the tile of 32 keys is not cut at the last one. The bound of "
        "that loop is `keys`, two lines above the caret.",
    ),
    Step(
        "mask",
        "The causal mask is off by one",
        "min(row + 1, seq_kv)",
        "min(row + 2, seq_kv)",
        ("likely: the mask is wrong (query i sees key i + 1",),
        "Query i sees key i + 1, says the last line but two. The number of keys that a row sees is `visible`.",
        causal=True,
    ),
    Step(
        "tail",
        "The last keys are left out",
        "for (int key0 = 0; key0 < last; key0",
        "for (int key0 = 0; key0 + TILE <= last; key0",
        ("likely: keys are left out", "after the last multiple of 32 are left out"),
        "32 is `TILE`, and the keys after its last multiple are what a loop over whole tiles leaves out: the condition "
        "of the loop over `key0`.",
    ),
    Step(
        "scale",
        "The scale is missing",
        "q_row[d] = scale * __half2float",
        "q_row[d] = __half2float",
        ("likely: the scores have a wrong factor (8 times the right one: the scale is missing)",),
        "8 is the square root of 64, the head dimension. The scale belongs where Q is loaded.",
    ),
)


def broken(step: Step) -> str:
    """The kernel's source with the bug."""
    return replace_once((ROOT / "examples" / "my_kernel.cu").read_text(), (step.right, step.wrong))


def run(step: Step) -> str:
    """The screen after ``sdpalab``, with long lines folded; without the seconds, which differ from run to run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "my_kernel.py").write_bytes((ROOT / "examples" / "my_kernel.py").read_bytes())
        (folder / "my_kernel.cu").write_text(broken(step))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES), "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "sdpalab", *step.command]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 1:
        raise SystemExit(f"{' '.join(step.command)} of {step.name} ended with {done.returncode}: {done.stderr}")
    lines = [part.rstrip() for line in done.stdout.splitlines() for part in folded(line)]
    return re.sub(r" in [\d.]+ s$", "", "\n".join(lines), flags=re.MULTILINE)


def folded(line: str) -> list[str]:
    """A line as a terminal shows it."""
    return [line[start : start + COLUMNS] for start in range(0, len(line), COLUMNS)] or [""]


def section(step: Step, output: str) -> str:
    """One section of the page."""
    right = (ROOT / "examples" / "my_kernel.cu").read_text().splitlines()
    changed = list(difflib.unified_diff(broken(step).splitlines(), right, "broken", "fixed", n=1, lineterm=""))[2:]
    return "\n\n".join(
        [
            f"## {step.title}",
            f"```console\n$ sdpalab {' '.join(step.command)}\n{output}\n```",
            step.reading,
            "```diff\n" + "\n".join(changed) + "\n```",
        ]
    )


def page(outputs: dict[str, str]) -> str:
    """The whole page."""
    head = (
        "# A walk: from `judge` to the wrong line\n\n"
        "Seven bugs, planted one at a time into [examples/my_kernel.cu](../examples/my_kernel.cu), and what the judge "
        "prints for each in a terminal of 80 columns. The output is real, written by `scripts/walk_page.py`; only the "
        "seconds are left out. Each section ends with how the screen leads to the line, and the fix. The terms are "
        "those of [the judge](judge.md) and of [the simulator](simulator.md)."
    )
    return "\n\n".join([head, *(section(step, outputs[step.name]) for step in STEPS)]) + "\n"


def main() -> None:
    """Write the page, or print one section."""
    chosen = sys.argv[1:]
    steps = [step for step in STEPS if not chosen or step.name in chosen]
    outputs = {}
    for step in steps:
        outputs[step.name] = run(step)
        lines = outputs[step.name].splitlines()
        print(f"{step.name}: {len(lines)} lines, {max(map(len, lines))} columns", flush=True)
        if chosen:
            print(section(step, outputs[step.name]))
    if not chosen:
        PAGE.write_text(page(outputs))


if __name__ == "__main__":
    main()
