"""A kernel's SASS: the mix of instructions by class, the main loop, traffic to local memory.

nvdisasm disassembles the cubin; the cache keeps its text as derived data. All figures are static: an instruction
counts once, however often it runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdpalab.compile.control import Control
from sdpalab.compile.loops import natural_loops
from sdpalab.errors import MachineError
from warpsan.build import Build, Cache, key_of, run_tool, tool_version, workshop_of

__all__ = [
    "TENSOR_CLASSES",
    "SassInstruction",
    "SassReport",
    "analyse",
    "classify",
    "disassemble",
    "main_loop",
    "parse",
    "successors",
    "tool_output",
    "without_padding",
]

TENSOR_CLASSES = frozenset(
    {"HMMA", "IMMA", "QMMA", "OMMA", "DMMA", "BMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA", "UTCMMA"}
)
"""Instructions of the tensor cores; UTCMMA means all UTC*MMA of sm_100."""

_GROUPS = {
    "FADD/FMUL": "FADD FADD2 FMUL FMUL2 UFADD UFMUL",
    "FFMA": "FFMA FFMA2 UFFMA",
    "float other": "FMNMX FMNMX3 FSEL FSETP FSET FCHK FSWZADD UFMNMX UFSEL UFSETP UFSET DADD DMUL DFMA DSETP DMNMX",
    "half": "HADD2 HMUL2 HFMA2 HMNMX2 HSET2 HSETP2",
    "convert": "F2F F2I F2FP F2IP I2F I2FP I2I I2IP FRND UF2F UF2FP UF2I UI2F UI2FP UFRND",
    "integer": """
        IADD IADD3 IADD32I IMAD IMUL IDP IMNMX ISETP ISCADD ISET LEA LOP LOP3 SHF SHL SHR SGXT BMSK BREV FLO POPC PRMT
        IABS VABSDIFF VABSDIFF4 VIADD VIADDMNMX VIMNMX VIMNMX3 UIADD3 UIMAD UISETP ULEA ULOP ULOP3 USHF USGXT UBMSK
        UBREV UFLO UPOPC UPRMT UVIADD UVIMNMX UIMNMX UIABS UVIRTCOUNT""",
    "move": "MOV UMOV SEL USEL S2R S2UR CS2R CS2UR R2UR R2P P2R R2B B2R UP2UR UR2UP MOVM LEPC ELECT",
    "predicate": "PLOP3 UPLOP3 PSETP UPSETP VOTE VOTEU",
    "constant": "LDC LDCU ULDC",
    "atomic": "ATOM ATOMG ATOMS RED REDG REDUX CREDUX UREDUX REDS MATCH",
    "async": """
        LDGDEPBAR DEPBAR ARRIVES SYNCS UTMALDG UTMASTG UTMAREDG UTMACCTL UTMACMDFLUSH UTMAPF UBLKCP UBLKPF UBLKRED
        WARPGROUP WARPGROUPSET ACQBULK ENDCOLLECTIVE UTCBAR UTCATOMSWS UTCCP UTCSHIFT LDTM STTM FENCE""",
    "fence": "MEMBAR CCTL CCTLL CCTLT ERRBAR UCGABAR_ARV UCGABAR_WAIT CGAERRBAR UCGABAR",
    "control": """
        BRA BRX BRXU JMP JMX EXIT BSSY BSYNC BREAK BMOV CALL RET RPCMOV WARPSYNC YIELD NANOSLEEP NANOTRAP KILL NOP BPT
        COLLECTIVE PREEXIT USETMAXREG SETCTAID SETLMEMBASE GETLMEMBASE USETSHMSZ UGETNEXTWORKID ACQSHMINIT""",
}
_GROUP_OF = {opcode: group for group, opcodes in _GROUPS.items() for opcode in opcodes.split()}
_MEMORY = {"LDSM", "LDGSTS", "LDG", "STG", "LDS", "STS", "STSM", "LDL", "STL", "LD", "ST", "STAS"}
_OWN = TENSOR_CLASSES | _MEMORY | {"MUFU", "SHFL", "BAR"}

_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_UPPER_WORD = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/$")
_PLACE = r'"(?:[^"]*[/\\])?([^"/\\]+)", line (\d+)'
_SOURCE = re.compile(rf"^\s*//## File {_PLACE}(?: inlined at {_PLACE})?")
_OPTIONS = ("-c", "-hex", "-gi")
_WITHOUT_DATAFLOW = (*_OPTIONS, "-ndf")
_INDIRECT = ("BRX", "JMX")
"""Opcode prefixes of branches to a register's address; nvdisasm's data-flow analysis lists their targets."""
_LABEL = re.compile(r"^(\.L_x_\d+):")
_SECTION = re.compile(r"^\.text\.(\S+):")
_ENTRY = re.compile(r'^\s*\.other\s+(\S+),@"STO_CUDA_ENTRY', re.MULTILINE)
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_WIDTH = re.compile(r"\.(U8|S8|U16|S16|64|128)\b")
_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_BRANCHES = frozenset({"BRA", "JMP", "BRX", "BRXU"})
_ENDS = frozenset({"EXIT", "RET"})
_PREDICATE = re.compile(r"\bU?P\d")


@dataclass(frozen=True)
class SassInstruction:
    """One SASS instruction.

    Attributes
    ----------
    address : int
        Byte offset in its function.
    opcode : str
        Opcode with all modifiers, such as ``HMMA.16816.F32``.
    target : int or None
        Address of the label in the operands, if it belongs to the same function.
    guarded : bool
        Whether the instruction has a predicate.
    operands : str
        Text of the operands.
    control : Control or None
        Control fields; None if the text does not show the encoding.
    source : str
        ``flash.cu:42`` from the line information, or an empty string.
    frames : tuple of str
        ``file:line:0`` of the instruction and of the inlined calls around it, from the inside out; columns are unknown.
    """

    address: int
    opcode: str
    target: int | None = None
    guarded: bool = False
    operands: str = ""
    control: Control | None = None
    source: str = ""
    frames: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class SassReport:
    """Static figures of one entry.

    Attributes
    ----------
    sass : mapping of str to int
        Instructions by class, the most frequent first; padding NOPs after the last branch are not counted.
    main_loop : mapping of str to int
        Instructions by class of the main loop (see :func:`main_loop`); empty without a loop.
    tensor_share : float or None
        Tensor-core instructions over all instructions of the main loop, 0 to 1; None without a loop.
    local_bytes : int
        Bytes stored to and loaded from local memory by the entry and by all functions that are not entries: spills,
        and local arrays if there are any.
    """

    sass: Mapping[str, int]
    main_loop: Mapping[str, int]
    tensor_share: float | None
    local_bytes: int


def classify(opcode: str) -> str:
    """Class of an opcode: its own name if significant (HMMA, LDSM, MUFU, ...), otherwise its group, or ``other``."""
    base = opcode.partition(".")[0]
    if base in _OWN:
        return base
    if re.fullmatch(r"UTC\w*MMA", base):
        return "UTCMMA"
    if opcode.startswith("IMAD.MOV"):  # the compiler's form of a move on a free integer pipe
        return "move"
    return _GROUP_OF.get(base, "other")


def disassemble(build: Build, cache: Cache | None = None) -> str:
    """The SASS of a build as printed by nvdisasm, with encodings and source lines.

    The first call takes about 0.3 s; later ones read the cache.

    Raises
    ------
    MachineError
        If nvdisasm is not installed or fails.
    """
    key = key_of(" ".join(("nvdisasm", *_OPTIONS)), tool_version("nvdisasm"), build.cubin)

    def make() -> dict[str, bytes]:
        # Data-flow analysis is a fifth of the work, and adds nothing without indirect branches.
        text = tool_output(build, "nvdisasm", _WITHOUT_DATAFLOW)
        if any(opcode in text for opcode in _INDIRECT):
            text = tool_output(build, "nvdisasm", _OPTIONS)
        return {"kernel.sass": text.encode()}

    workshop = workshop_of(build)
    store = workshop.cache if workshop else cache or Cache()
    stored = store.get_or_make(f"{build.name}-sass-{key[:8]}", key, make)
    return stored.files["kernel.sass"].decode()


def tool_output(build: Build, tool: str, options: tuple[str, ...]) -> str:
    """Standard output of ``cuobjdump`` or ``nvdisasm`` on a build's cubin; a workshop runs it for untrusted code.

    Raises
    ------
    MachineError
        As :func:`warpsan.build.tools.run_tool`.
    """
    workshop = workshop_of(build)
    return (workshop.run_tool if workshop else run_tool)(tool, options, build.cubin)


@dataclass
class _Line:
    """An instruction in the text, before its label and control fields are known."""

    address: int
    opcode: str
    label: str
    guarded: bool
    operands: str
    source: str
    frames: tuple[str, ...]
    control: Control | None = None

    def instruction(self, labels: Mapping[str, int]) -> SassInstruction:
        target = labels.get(self.label) if self.label else None
        return SassInstruction(
            *(self.address, self.opcode, target, self.guarded, self.operands, self.control, self.source, self.frames)
        )


def parse(text: str) -> dict[str, tuple[SassInstruction, ...]]:
    """Functions of a disassembly: name to instructions in the order of addresses."""
    functions: dict[str, tuple[SassInstruction, ...]] = {}
    current: list[_Line] = []
    labels: dict[str, int] = {}
    pending: list[str] = []
    frames: tuple[str, ...] = ()
    name = caller = ""

    def close() -> None:
        if name:
            functions[name] = tuple(line.instruction(labels) for line in current)

    for line in text.splitlines():
        section = _SECTION.match(line)
        if section:
            close()
            name, current, labels, pending, frames = section[1], [], {}, [], ()
            continue
        place = _SOURCE.match(line)
        if place:
            here = f"{place[1]}:{place[2]}"
            frames = (*(frames if here == caller else ()), f"{here}:0")  # a call, or another location
            caller = f"{place[3]}:{place[4]}" if place[3] else ""
            continue
        upper = _UPPER_WORD.match(line)
        if upper and current:
            current[-1].control = Control.decode(int(upper[1], 16))
            continue
        named = _LABEL.match(line)
        if named:
            pending.append(named[1])
            continue
        match = _LINE.match(line)
        if match:
            address = int(match[1], 16)
            labels.update(dict.fromkeys(pending, address))
            pending.clear()
            named_target = _TARGET.search(match[4])
            guarded, operands = match[2] is not None, match[4].strip()
            source = frames[0].rpartition(":")[0] if frames else ""
            label = named_target[1] if named_target else ""
            current.append(_Line(address, match[3], label, guarded, operands, source, frames))
            caller = ""
    close()
    return functions


def main_loop(instructions: Sequence[SassInstruction]) -> tuple[SassInstruction, ...]:
    """The instructions of the main loop; empty if there is no loop.

    The main loop is the smallest loop with the largest number of tensor-core instructions, or of FFMA if no loop has
    any: inner spins on a barrier and outer loops over tiles do not qualify. An inner loop that is not unrolled counts
    once. The result extends from the loop's first instruction to its back branch; code that the compiler moved behind
    the branch, such as spins of waits that rarely spin, is excluded.
    """
    loops = []
    for header, *body in natural_loops(successors(instructions)):
        back = max(
            (place for place in (header, *body) if instructions[place].target == instructions[header].address),
            default=header,
        )
        loops.append(tuple(instructions[place] for place in (header, *body) if header <= place <= back))

    def work(loop: tuple[SassInstruction, ...]) -> tuple[int, int, int]:
        classes = [classify(instruction.opcode) for instruction in loop]
        tensor = sum(name in TENSOR_CLASSES for name in classes)
        return tensor, 0 if tensor else classes.count("FFMA"), -len(loop)

    return max(loops, key=work, default=())


def successors(instructions: Sequence[SassInstruction]) -> list[list[int]]:
    """Successors of each instruction, as positions in the sequence.

    BSYNC continues at the target of the preceding BSSY on its barrier, and RET behind each call of its function. A CALL
    in a function without RET is a jump. Targets known only at run time are excluded.
    """
    returns = [place + 1 for place, each in enumerate(instructions) if each.base == "CALL" and each.target is not None]
    places = {instruction.address: place for place, instruction in enumerate(instructions)}
    rejoin: dict[str, int] = {}
    edges: list[list[int]] = []
    for place, instruction in enumerate(instructions):
        base, target = instruction.base, places.get(-1 if instruction.target is None else instruction.target)
        barrier = instruction.operands.partition(",")[0]
        after = [place + 1] if place + 1 < len(instructions) else []
        if base in _BRANCHES:
            conditional = instruction.guarded or _PREDICATE.search(instruction.operands) is not None
            edges.append(([] if target is None else [target]) + (after if conditional else []))
        elif base == "CALL" and target is not None:
            edges.append([target] + (after if instruction.guarded else []))
        elif base in _ENDS:
            edges.append((returns if base == "RET" else []) + (after if instruction.guarded else []))
        elif base == "BSYNC" and barrier in rejoin:
            edges.append([rejoin[barrier], *(after if instruction.guarded else [])])
        else:
            edges.append(after)
        if base == "BSSY" and target is not None:
            rejoin[barrier] = target
    return edges


def analyse(build: Build, cache: Cache | None = None) -> SassReport:
    """Disassemble a build and count; raises MachineError as :func:`disassemble`, or if the SASS lacks the entry."""
    text = disassemble(build, cache)
    functions = parse(text)
    if build.entry not in functions:
        raise MachineError(f"nvdisasm's output has no function {build.entry}: the disassembler does not fit the cubin")
    others = set(_ENTRY.findall(text)) - {build.entry}
    code = without_padding(functions[build.entry])
    loop = main_loop(code)
    in_loop = _mix(loop)
    tensor = sum(count for name, count in in_loop.items() if name in TENSOR_CLASSES)
    return SassReport(
        sass=_mix(code),
        main_loop=in_loop,
        tensor_share=tensor / len(loop) if loop else None,
        local_bytes=sum(_local_bytes(one) for name, code in functions.items() if name not in others for one in code),
    )


def without_padding(code: tuple[SassInstruction, ...]) -> tuple[SassInstruction, ...]:
    """Remove the padding of the function: a branch to itself, and the NOPs after it."""
    end = len(code)
    while end and (code[end - 1].base == "NOP" or code[end - 1].target == code[end - 1].address):
        end -= 1
    return code[:end]


def _mix(code: Sequence[SassInstruction]) -> dict[str, int]:
    return dict(Counter(classify(instruction.opcode) for instruction in code).most_common())


def _local_bytes(instruction: SassInstruction) -> int:
    if instruction.base not in ("STL", "LDL"):
        return 0
    width = _WIDTH.search(instruction.opcode)
    return _BYTES[width[1]] if width else 4
