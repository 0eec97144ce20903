"""Source lines of instructions, from the line information of the PTX (PTX ISA, "Debugging Directives")."""

from __future__ import annotations

from warpsan.ptx.ir import Instruction, PtxModule

__all__ = ["frames_of", "source_of"]


def source_of(module: PtxModule, instruction: Instruction) -> str:
    """``flash.cu:42`` from the line information, or an empty string."""
    name = _file_name(module, instruction.loc.file) if instruction.loc else ""
    return f"{name}:{instruction.loc.line}" if instruction.loc and name else ""


def frames_of(module: PtxModule, instruction: Instruction) -> tuple[str, ...]:
    """``flash.cu:42:9`` of the instruction, and of the calls through which it was inlined, outwards."""
    chain = instruction.loc.chain if instruction.loc else ()
    names = [(_file_name(module, place.file), place) for place in chain]
    return tuple(f"{name}:{place.line}:{place.column}" for name, place in names if name)


def _file_name(module: PtxModule, number: int) -> str:
    """The name of a source file without its folder; empty if there is no such number."""
    return module.files.get(number, "").replace("\\", "/").rsplit("/", 1)[-1]
