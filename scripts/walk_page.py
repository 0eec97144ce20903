"""Write ``packages/sdpalab/docs/walk.md``: from the output of ``sdpalab judge`` to the line of two bugs.

    python scripts/walk_page.py            # judge both, and write the page
    python scripts/walk_page.py barrier    # judge one, and print its section

The page shows the real output, 80 columns wide. ``packages/sdpalab/tests/test_walk.py`` repeats the runs and compares.
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

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of ``sdpalab``."""
        return ("judge", "my_kernel.py", *SHAPE, *(("--causal",) if self.causal else ()))


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


def broken(step: Step) -> str:
    """The kernel's source with the bug."""
    return replace_once((ROOT / "examples" / "my_kernel.cu").read_text(), (step.right, step.wrong))


def run(step: Step) -> str:
    """Output of ``sdpalab`` with long lines folded, without the seconds, which differ between runs."""
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
        "# A walk through two bugs\n\n"
        "Two bugs are planted in [examples/my_kernel.cu](../../../examples/my_kernel.cu), one at a time. Each section "
        "shows the output of `sdpalab judge` in a terminal of 80 columns, the way from it to the line, and the fix. "
        "`scripts/walk_page.py` wrote the output; only the seconds are left out. [Read a failure](failures.md) "
        "explains each part of the output."
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
