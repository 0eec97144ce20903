"""``warpsan explain``: explanation of a hazard kind."""

from __future__ import annotations

from typing import Annotated

import typer

from warpsan.errors import UserError
from warpsan.report.explanations import EXPLANATIONS, Explanation
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption
from warpsan.terminal.tables import show_table, table

__all__ = ["explain"]


def explain(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="Hazard kind, such as race. Default: a list.")
    ] = None,
    json: JsonOption = None,
) -> int:
    """Explain a hazard kind: meaning, example, and fix."""
    console = console_and_subject(json, kind or "")
    if kind is None:
        shown = table("", ("kind", "meaning", "compute-sanitizer"), prose=("meaning",))
        for name, each in EXPLANATIONS.items():
            shown.add_row(name, each.title, each.tool)
        shown.title = None
        show_table(console, shown)
    else:
        if kind not in EXPLANATIONS:
            raise UserError(f"there is no kind of hazard {kind!r}; the kinds are: {', '.join(EXPLANATIONS)}")
        chosen = EXPLANATIONS[kind]
        console.print(f"{kind}: {chosen.title}.", soft_wrap=True)
        console.print()
        console.print(chosen.text)
        console.print()
        for line in chosen.example.splitlines():
            console.print(f"    {line}", soft_wrap=True)
        if chosen.tool:
            console.print()
            console.print(f"On a GPU, compute-sanitizer --tool {chosen.tool} reports similar errors.", soft_wrap=True)
    kinds = EXPLANATIONS if kind is None else {kind: EXPLANATIONS[kind]}
    write_document(json, {"kinds": [_content(name, each) for name, each in kinds.items()]}, status="PASSED")
    return 0


def _content(kind: str, each: Explanation) -> dict[str, str]:
    return {"kind": kind, "title": each.title, "text": each.text, "example": each.example, "tool": each.tool}
