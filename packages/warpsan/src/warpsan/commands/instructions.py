"""``warpsan instructions``: the PTX instructions that the simulator executes."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption
from warpsan.terminal.tables import show_table, table

__all__ = ["instructions"]


def instructions(
    opcode: Annotated[
        str | None, typer.Argument(metavar="[OPCODE]", help="An opcode, such as mma or cp.async. Default: all.")
    ] = None,
    json: JsonOption = None,
) -> int:
    """List the supported opcodes, or describe the support of one."""
    from warpsan import semantics as semantics  # registers every handler
    from warpsan.engine.assembler import HANDLERS
    from warpsan.ptx.opcodes import OPCODES

    console = console_and_subject(json, opcode or "")
    name = (opcode or "").partition(".")[0]
    handlers = {form: handler for form, handler in sorted(HANDLERS.items()) if _has(form, opcode, name)}
    shown = table("", ("form", "PTX ISA", "unit", "meaning"), prose=("meaning",), spare=("unit",))
    listed: list[dict[str, str]] = []
    for form, handler in handlers.items():
        record = OPCODES.get(form.partition(".")[0])
        section, unit = (record.section, record.pipe or "by type") if record else ("", "")
        meaning = " ".join((inspect.getdoc(handler) or "").split("\n\n")[0].split())
        listed.append({"form": form, "section": section, "unit": unit, "meaning": meaning})
        shown.add_row(form, section, unit, meaning)
    if handlers:
        shown.title = None
        show_table(console, shown)
    else:
        console.print(f"{opcode} is not executed: a launch that reaches it ends with UnsupportedInstruction")
    content: dict[str, Any] = {"opcode": opcode or "", "executed": bool(handlers), "forms": listed}
    write_document(json, content, status="PASSED" if handlers else "FAILED")
    return 0 if handlers else 1


def _has(form: str, opcode: str | None, name: str) -> bool:
    """Whether a handler's form belongs to the requested opcode."""
    if opcode is None:
        return True
    return form == opcode or form.startswith(f"{opcode}.") or (form == name and "." in opcode)
