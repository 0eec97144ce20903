"""The table of instructions: one record per opcode, with the properties that do not depend on operands, and its forms
(:mod:`~warpsan.ptx.grammar`), which the modules imported here add.

Parser, program, checks, counters, both engines and docs/instructions.md use these records. Properties that depend on
modifiers are functions of the instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpsan.ptx import accesses, arithmetic, matrices, synchronising
from warpsan.ptx.grammar import FORMS, find_grammar
from warpsan.ptx.ir import Instruction

__all__ = [
    "OPCODES",
    "Opcode",
    "ends_block",
    "is_warp_barrier",
    "opcode_of",
    "role_of",
    "spaces_of",
    "updates_memory",
]


@dataclass(frozen=True)
class Opcode:
    """Properties of an opcode.

    Attributes
    ----------
    section : str
        Section of the PTX ISA manual.
    pipe : str
        Execution unit; empty if it depends on the type, ``space`` if it depends on the state space.
    ends : tuple of str
        First modifiers of the forms that end a basic block; an empty string matches every form.
    goes_on : bool
        Whether control continues after it, without a guard.
    lanes : {"each", "warp", "members"}
        Executed per lane, per warp, or by the lanes in the mask of its last operand.
    writes : bool
        Whether the first operand is a result if it is a register; ``.red`` forms always have a result.
    undefined : {"computed", "used", "followed"}
        Effect of an undefined operand: the result is undefined, the use is reported, or each element is tracked
        separately.
    moves : int
        Number of sources whose bits move to the result unchanged; 0 for a computation.
    passes_pointers : bool
        Whether a result may be a pointer into a source's buffer.
    effects : bool
        Whether it has effects other than register writes.
    awaited : bool
        Whether other threads may wait for its effect, or it waits itself.
    memory : {"", "load", "store", "update"}
        Memory access of each lane.
    """

    section: str
    pipe: str = ""
    ends: tuple[str, ...] = ()
    goes_on: bool = True
    lanes: str = "each"
    writes: bool = True
    undefined: str = "computed"
    moves: int = 0
    passes_pointers: bool = False
    effects: bool = False
    awaited: bool = False
    memory: str = ""


OPCODES: dict[str, Opcode] = {}

_INTEGER, _EXTENDED = "Integer Arithmetic Instructions", "Extended-Precision Integer Arithmetic Instructions"
_NUMBERS, _FLOAT = "Integer Arithmetic and Floating-Point Instructions", "Floating-Point Instructions"
_COMPARE, _LOGIC = "Comparison and Selection Instructions", "Logic and Shift Instructions"
_MOVE, _CONTROL = "Data Movement and Conversion Instructions", "Control Flow Instructions"
_ASYNC = "Data Movement and Conversion Instructions: Asynchronous copy"
_SYNCHRONISE = "Parallel Synchronization and Communication Instructions"
_WARP_MATRIX, _GROUP_MATRIX = "Warp-Level Matrix Instructions", "Asynchronous Warpgroup-Level Matrix Instructions"
_VIDEO, _OTHERS = "Video Instructions: SIMD", "Miscellaneous Instructions"

_EVERY = ("",)
_SPACES = frozenset({"global", "shared", "local", "const", "param"})


def _add(record: Opcode, *names: str) -> None:
    for name in names:
        assert name not in OPCODES, f"two records for {name}"
        OPCODES[name] = record


_add(Opcode(_NUMBERS), "abs", "div", "max", "min", "mul", "neg")
_add(Opcode(_NUMBERS, passes_pointers=True), "add", "sub", "mad")
_add(Opcode(_INTEGER), "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "dp2a", "dp4a", "fns", "mad24", "mul24", "popc")
_add(Opcode(_INTEGER), "rem", "sad", "szext")
_add(Opcode(_EXTENDED), "addc", "madc", "subc")
_add(Opcode(_FLOAT), "copysign", "fma", "testp")
_add(Opcode(_FLOAT, pipe="special"), "cos", "ex2", "lg2", "rcp", "rsqrt", "sin", "sqrt", "tanh")
_add(Opcode(_COMPARE), "set", "setp", "slct")
_add(Opcode(_COMPARE, pipe="move", moves=2, passes_pointers=True), "selp")
_add(Opcode(_LOGIC), "and", "cnot", "lop3", "not", "or", "shf", "xor")
_add(Opcode(_LOGIC, moves=1), "shl", "shr")

_add(Opcode(_MOVE, pipe="move", moves=1, passes_pointers=True), "mov")
_add(Opcode(_MOVE, pipe="move", passes_pointers=True), "cvta")
_add(Opcode(_MOVE, pipe="move", moves=2), "prmt")
_add(Opcode(_MOVE, pipe="convert", moves=1), "cvt")
_add(Opcode(_MOVE, pipe="space", undefined="used", memory="load"), "ld", "ldu")
_add(Opcode(_MOVE, pipe="space", writes=False, effects=True, memory="store"), "st")
_add(Opcode(_MOVE), "applypriority", "createpolicy", "getctarank", "isspacep", "mapa", "prefetch", "prefetchu")
_add(Opcode(_MOVE, effects=True, awaited=True), "discard")
_add(Opcode(_MOVE, pipe="warp", lanes="members", moves=1), "shfl")
_add(Opcode(_MOVE, undefined="used", effects=True, awaited=True), "tensormap")
_add(Opcode(_ASYNC, pipe="async", writes=False, effects=True, awaited=True), "cp")

_add(Opcode(_CONTROL, pipe="control", ends=_EVERY, goes_on=False, writes=False), "bra")
_add(Opcode(_CONTROL, pipe="control", ends=_EVERY, goes_on=False, writes=False, effects=True), "brx", "ret")
_add(Opcode(_CONTROL, pipe="control", ends=_EVERY, goes_on=False, effects=True), "exit")
# A call's results are written when the function returns: no register of the function may reuse their rows.
_add(Opcode(_CONTROL, pipe="control", ends=_EVERY, writes=False, effects=True), "call")

_add(
    Opcode(_SYNCHRONISE, pipe="barrier", ends=_EVERY, writes=False, undefined="used", effects=True, awaited=True),
    *("bar", "barrier"),
)
_add(Opcode(_SYNCHRONISE, writes=False, effects=True), "fence", "membar")
_add(Opcode(_SYNCHRONISE, writes=False, effects=True, awaited=True), "griddepcontrol")
_add(Opcode(_SYNCHRONISE, pipe="atomic", undefined="used", effects=True, memory="update"), "atom")
_add(Opcode(_SYNCHRONISE, pipe="atomic", writes=False, effects=True, memory="update"), "red")
_add(Opcode(_SYNCHRONISE, pipe="warp", lanes="members", undefined="used"), "elect", "match", "redux", "vote")
_add(Opcode(_SYNCHRONISE, pipe="warp", lanes="warp", undefined="used"), "activemask")
_add(Opcode(_SYNCHRONISE, pipe="barrier", ends=("try_wait",), undefined="used", effects=True, awaited=True), "mbarrier")

_add(Opcode(_WARP_MATRIX, pipe="tensor", lanes="warp", undefined="followed"), "mma")
_add(Opcode(_WARP_MATRIX, pipe="tensor", lanes="warp", undefined="used", awaited=True), "wmma")
_add(Opcode(_WARP_MATRIX, pipe="shared", lanes="warp", undefined="used"), "ldmatrix")
_add(Opcode(_WARP_MATRIX, pipe="shared", lanes="warp", awaited=True), "stmatrix")
_add(Opcode(_WARP_MATRIX, lanes="warp", undefined="followed", moves=1), "movmatrix")
_GROUP = ("mma_async", "wait_group")
_add(
    Opcode(
        *(_GROUP_MATRIX, "tensor", _GROUP),
        lanes="warp",
        undefined="used",
        effects=True,
        awaited=True,
    ),
    "wgmma",
)

_add(
    Opcode(_VIDEO),
    *(f"{name}{lanes}" for name in ("vabsdiff", "vadd", "vavrg", "vmax", "vmin", "vsub") for lanes in (2, 4)),
)
_add(Opcode(_OTHERS, writes=False, effects=True), "nanosleep")
_add(Opcode(_OTHERS), "pmevent")
_add(Opcode(_OTHERS, lanes="warp", ends=_EVERY, effects=True), "setmaxnreg")
_add(Opcode(_OTHERS, pipe="control", ends=_EVERY, goes_on=False, effects=True), "brkpt", "trap")

for _module in (accesses, arithmetic, matrices, synchronising):
    assert _module is not None
assert {name.partition(".")[0] for name in FORMS} == set(OPCODES), "forms without an opcode, or an opcode without one"

_UNKNOWN = Opcode("")
"""Record of an opcode without a model: an error when a lane executes it."""


def opcode_of(instruction: Instruction) -> Opcode:
    """The record of an instruction's opcode."""
    return OPCODES.get(instruction.opcode, _UNKNOWN)


def role_of(instruction: Instruction) -> str:
    """The role of an instruction in synchronisation (:class:`~warpsan.ptx.grammar.Grammar`); empty without one."""
    grammar = find_grammar(instruction)
    return "" if grammar is None else grammar.role


def ends_block(instruction: Instruction) -> bool:
    """Whether a basic block ends after an instruction: control may branch, or lanes wait."""
    ends = opcode_of(instruction).ends
    if "" in ends:
        return not is_warp_barrier(instruction)
    return bool(ends) and instruction.mods[:1] != () and instruction.mods[0] in ends


def is_warp_barrier(instruction: Instruction) -> bool:
    """Whether an instruction is ``bar.warp``, which ends no block: the lanes of a warp reach it together."""
    return instruction.mods[:1] == ("warp",)


def spaces_of(instruction: Instruction) -> frozenset[str]:
    """State spaces that an instruction names, without their windows (``::cta``); empty for a generic address."""
    return _SPACES.intersection(mod.partition("::")[0] for mod in instruction.mods)


def updates_memory(instruction: Instruction) -> bool:
    """Whether an instruction reads and writes memory in one operation: an atomic, or a copy with a reduction."""
    return opcode_of(instruction).memory == "update" or (instruction.opcode == "cp" and "reduce" in instruction.mods)
