"""Progress over the cases of a judgement: the first verdicts at once, and a line for cases that take long."""

from __future__ import annotations

import threading
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from sdpalab.judge.verdict import Case
from warpsan.terminal.console import progress_console, verdict_text

__all__ = ["CaseProgress", "figures_of"]

FIRST_SIGN_SECONDS = 5.0
"""Seconds before a line on a running case; the intervals of further lines double."""


def figures_of(case: Case) -> tuple[str, ...]:
    """Max error, its share of the limit, relative L2, its share, the shares of the rows, that of the log-sum-exp, exact
    elements: as texts."""
    errors, shares = case.errors, {name: each.text for name, each in case.limited.items()}
    if errors is None or not shares:
        return ("-",) * 8
    return (
        f"{errors.max_abs:.2e}",
        shares["max_abs"],
        f"{errors.rel_l2:.2e}",
        shares["rel_l2"],
        shares["rms_row_rel_l2"],
        shares["worst_row_rel_l2"],
        shares.get("lse", "-"),
        f"{errors.exact - errors.exact_wrong}/{errors.exact}" if errors.exact else "-",
    )


class CaseProgress:
    """Progress over the cases: a bar on a terminal, and in any output a line for a case that takes long.

    The first finished case has a line, and so has the first failed one: the table of all cases follows at the end.
    ``started`` and ``finished`` are the judge's ``on_start`` and ``progress``; a job of several cases begins with
    ``started`` and ends with ``ended``.

    Parameters
    ----------
    label : str
        Name of the judged kernel or stage.
    lines : Console, optional
        Console for a line per finished case.
    seconds : float, optional
        Time limit of one case, shown in lines on slow cases.
    """

    def __init__(self, label: str, *, lines: Console | None = None, seconds: float | None = None) -> None:
        self._label, self._lines, self._seconds = label, lines, seconds
        self._console = progress_console()
        self._running: dict[str, float] = {}
        self._signs: dict[str, float] = {}
        self._done = self._total = 0
        self._failed = False
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._watch_cases, daemon=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=None)

    def __enter__(self) -> CaseProgress:
        self._bar.start()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()
        self._bar.stop()

    def started(self, name: str, total: int, since: float | None = None) -> None:
        """Record that a case, or a job of cases, has begun, now or at a time on the clock of ``time.monotonic``;
        ``total`` is the number of all cases."""
        self._total = total
        self._running[name] = time.monotonic() if since is None else since
        self._bar.update(self._task, total=total, description=f"{self._label}: {name}")

    def ended(self, name: str) -> None:
        """Record that a job of cases has ended."""
        self._running.pop(name, None)

    def finished(self, case: Case) -> None:
        """Count one finished case."""
        self._done += 1
        self._running.pop(case.name, None)
        self._bar.advance(self._task)
        first_failure = not case.passed and not self._failed
        self._failed |= first_failure
        if self._lines is None and (self._done == 1 or first_failure):
            status = verdict_text(case.passed, case.status.value)
            of = f"; {self._done} of {self._total} cases judged"
            self._console.print(Text.assemble(f"{self._label}: {case.name}: ", status, of), soft_wrap=True)
        if self._lines is not None:
            max_abs, share, _, rel_l2_share, _, row_share, *_ = figures_of(case)
            figures = f"max error {max_abs}, {share} of its limit; rel L2 {rel_l2_share}; worst row {row_share}"
            detail = figures if case.passed else case.reason
            line = Text.assemble(verdict_text(case.passed, f"{case.status.value:9}"), f" {case.name:28} {detail}")
            self._lines.print(line, soft_wrap=True)

    def _watch_cases(self) -> None:
        """Print the elapsed time of each case that runs long."""
        while not self._ended.wait(0.5):
            now = time.monotonic()
            for name, start in tuple(self._running.items()):
                due = self._signs.get(name, FIRST_SIGN_SECONDS)
                if now - start >= due:
                    self._signs[name] = 2 * due
                    most = f" of at most {self._seconds:g} s" if self._seconds else ""
                    self._console.print(
                        f"{self._label}: {name} has run for {now - start:.0f} s{most}; "
                        f"{self._done} of {self._total} cases judged",
                        soft_wrap=True,
                    )
