"""Progress over the cases of a judgement, and one line for each case."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from sdpalab.commands.common import verdict_text
from sdpalab.judge.verdict import Case

__all__ = ["CaseProgress", "figures_of"]


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
    """Progress over the cases: a bar on a terminal, and a line for each finished case if ``lines``."""

    def __init__(self, console: Console, label: str, total: int, *, lines: bool = False) -> None:
        self._console, self._lines = console, lines
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=total)

    def __enter__(self) -> CaseProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self) -> None:
        """Count one."""
        self._bar.advance(self._task)

    def finished(self, case: Case) -> None:
        """Count one finished case."""
        self.advance()
        if self._lines:
            max_abs, share, _, rel_l2_share, _, row_share, *_ = figures_of(case)
            figures = f"max error {max_abs}, {share} of its limit; rel L2 {rel_l2_share}; worst row {row_share}"
            detail = figures if case.passed else case.reason
            line = Text.assemble(verdict_text(case.passed, f"{case.status.value:9}"), f" {case.name:28} {detail}")
            self._console.print(line, soft_wrap=True)
