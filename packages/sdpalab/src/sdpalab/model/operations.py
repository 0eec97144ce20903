"""Cost of machine instructions on an SM: unit, busy time, and latency of the result."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from sdpalab.compile.control import Control
from sdpalab.compile.sass import SassInstruction, classify
from sdpalab.model.pipes import Pipes
from sdpalab.model.tensor import is_tensor, sass_flops, sass_precision

__all__ = ["CLUSTER_CLOCKS", "Act", "Memory", "Operation", "lines_of", "operations"]

WAVEFRONT = 128
"""Bytes per clock of shared memory."""
CLUSTER_CLOCKS = 180.0
"""Clocks from a store to another SM's shared memory until its arrival; published: the latency of distributed shared
memory on an H800 (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv 2402.13499)."""
_WIDTH = re.compile(r"\.(U8|S8|U16|S16|64|128)\b")
_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_WGMMA_N = re.compile(r"GMMA\.64x(\d+)x")
_NUMBER = re.compile(r"0x[0-9a-f]+$|\d+$")
_BARRIER = re.compile(r"^(?:(0x[0-9a-f]+|\d+)|R\d+)(?:,\s*(?:(0x[0-9a-f]+)|R\d+))?")
_OF_CLUSTER = -1
"""Number of the cluster's barrier among the barriers of a CTA."""

_UNITS = {
    "FADD/FMUL": "float",
    "FFMA": "float",
    "half": "half",
    "float other": "alu",
    "convert": "convert",
    "predicate": "alu",
}
_INTEGER_MULTIPLY = ("IMAD", "IMUL", "IDP")
_SYSTEM = ("S2R", "S2UR", "R2UR", "VOTE", "VOTEU", "REDUX", "ELECT", "MATCH")
_ON_SPECIAL = ("F2I", "I2F", "FRND", "F2F", "POPC", "FLO", "BREV")


class Act(IntEnum):
    """Action of the replay for an instruction besides its issue."""

    PLAIN = 0
    QUEUED = 1  # goes to a unit with a queue; frees its scoreboards when done
    SHARED = 2  # shared memory, common to the sub-cores
    LOAD = 3  # global memory
    COPY = 4  # global to shared memory
    COPY_GROUP = 5
    COPY_WAIT = 6
    BARRIER = 7
    ARRIVE = 8
    WGMMA = 9
    WGMMA_WAIT = 10
    DATA_WAIT = 11  # an mbarrier, or a barrier with a number unknown from the code
    EXIT = 12


@dataclass(frozen=True)
class Memory:
    """Properties of a launch's memory accesses that the machine code does not show; unknown by default.

    Attributes
    ----------
    conflicts : float
        Wavefronts of shared memory over those without bank conflicts.
    scatter : float
        Sectors of global memory over the least number for the bytes.
    bulk_bytes : float
        Mean bytes of a bulk copy to shared memory.
    bulk_at : mapping of tuple of str to float
        The same by place of issue in the source, in the form of :func:`lines_of` of its frames.
    shared_bytes : float
        Shared memory of a CTA.
    """

    conflicts: float = 1.0
    scatter: float = 1.0
    bulk_bytes: float = 0.0
    bulk_at: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    shared_bytes: float = inf


@dataclass(frozen=True)
class Operation:
    """One instruction of the code, for the replay.

    Attributes
    ----------
    act : Act
    control : Control
    unit : str
        Unit of the sub-core; empty if the instruction takes an issue slot only.
    interval : float
        Clocks that the unit is busy; for LOAD, bytes of L2; for SHARED, clocks of shared memory.
    latency : float
        Clocks from its start until the result is available.
    group : int
        COPY_WAIT, WGMMA_WAIT: groups that may be in flight; BARRIER, ARRIVE: number of the barrier.
    scoreboard : int
        COPY_WAIT: scoreboard of the copies that it waits for.
    threads : int
        BARRIER, ARRIVE: threads of the barrier; 0 for all of the CTA. WGMMA: 1 if it ends a group.
    """

    act: Act
    control: Control
    unit: str = ""
    interval: float = 1.0
    latency: float = 0.0
    group: int = 0
    scoreboard: int = 0
    threads: int = 0


_PLAIN_CONTROL = Control(1, False, None, None, 0, 0)


def lines_of(frames: Sequence[str]) -> tuple[str, ...]:
    """``file:line`` of each frame; frames from PTX also have the column."""
    return tuple(frame.rpartition(":")[0] for frame in frames)


def operations(code: Sequence[SassInstruction], pipes: Pipes, memory: Memory) -> tuple[Operation, ...]:
    """The operations of a function's machine code, place by place."""
    return tuple(_operation(each, pipes, memory) for each in code)


def _operation(one: SassInstruction, pipes: Pipes, memory: Memory) -> Operation:
    control, base = one.control or _PLAIN_CONTROL, one.base
    late = pipes.latencies
    if is_tensor(one):
        return _tensor(one, control, pipes)
    if base in ("LDSM", "LDS", "STS", "STSM", "ATOMS") and not one.operands.startswith("RZ"):
        clocks = _bytes_of_warp(one) / WAVEFRONT * memory.conflicts
        return Operation(Act.SHARED, control, "shared", clocks, late["shared"])
    if base in ("LDL", "STL"):  # spills are in L1, the same memory
        return Operation(Act.SHARED, control, "shared", _bytes_of_warp(one) / WAVEFRONT, late["shared"])
    if base in ("SHFL", "MOVM"):
        return Operation(Act.SHARED, control, "shared", 1.0, late["shuffle"])
    if base in ("LDG", "LD", "ATOM", "ATOMG", "RED", "REDG", "STG", "ST"):
        moved = _bytes_of_warp(one) * memory.scatter
        done = 0.0 if base in ("STG", "ST", "RED", "REDG") else late["l2"]
        return Operation(Act.LOAD, control, "l2", moved, done)
    if base == "LDGSTS":
        return Operation(Act.COPY, control, "l2", _bytes_of_warp(one) * memory.scatter, late["l2"])
    if base in ("UTMALDG", "UBLKCP"):
        moved = memory.bulk_at.get(lines_of(one.frames), memory.bulk_bytes)
        return Operation(Act.COPY, control, "l2", moved, late["tma"])
    if base == "LDGDEPBAR":
        return Operation(Act.COPY_GROUP, control)
    if base == "DEPBAR" and one.operands.startswith("SB"):
        board, _, left = one.operands.partition(",")
        pending = int(left.strip().split(",")[0], 0) if left.strip() else 0
        return Operation(Act.COPY_WAIT, control, group=pending, scoreboard=int(board[2:]))
    if one.opcode.startswith("WARPGROUP.DEPBAR"):
        return Operation(Act.WGMMA_WAIT, control, group=int(one.operands.rpartition(",")[2], 0))
    if one.opcode.startswith(("BAR.SYNC", "BAR.ARV", "BAR.RED")):
        return _barrier(one, control, late["barrier"])
    if base == "UCGABAR_WAIT":  # assumed: the last CTA's arrival takes as long as a store to another SM
        return Operation(Act.BARRIER, control, latency=CLUSTER_CLOCKS, group=_OF_CLUSTER)
    if one.opcode.startswith("SYNCS.PHASECHK"):
        return Operation(Act.DATA_WAIT, control, "queue", 1.0, late["system"])
    if base == "EXIT" and not one.guarded:
        return Operation(Act.EXIT, control)
    if base == "MUFU" or base in _ON_SPECIAL:
        latency = late["special"] if base == "MUFU" else late["convert"]
        return Operation(Act.QUEUED, control, "special", pipes.intervals["special"], latency)
    if base in _SYSTEM or base == "SYNCS" or control.write_barrier is not None:
        return Operation(Act.QUEUED, control, "queue", 1.0, late["system"])
    return Operation(Act.PLAIN, control, *_unit(one, pipes.intervals))


def _unit(one: SassInstruction, intervals: Mapping[str, float]) -> tuple[str, float]:
    if one.base.startswith("U") or one.base in ("NOP", "BRA", "BSSY", "BSYNC", "EXIT", "CALL", "WARPSYNC", "WARPGROUP"):
        return "", 1.0
    group = classify(one.opcode)
    if group == "move":
        return ("float", intervals["float"]) if one.base == "IMAD" else ("alu", intervals["alu"])
    if group == "integer":
        name = "integer" if one.base in _INTEGER_MULTIPLY else "alu"
        return name, intervals[name]
    name = _UNITS.get(group, "")
    return (name, intervals[name]) if name else ("", 1.0)


def _tensor(one: SassInstruction, control: Control, pipes: Pipes) -> Operation:
    wide = _WGMMA_N.search(one.opcode)
    if wide is None:
        interval = pipes.mma_interval(sass_flops(one), sass_precision(one))
        return Operation(Act.PLAIN, control, "tensor", interval, pipes.latencies["mma"])
    operand = "shared" if re.match(r"R\d+, gdesc", one.operands) else "registers"
    interval = pipes.wgmma_interval(int(wide[1]), operand)
    return Operation(Act.WGMMA, control, "tensor", interval, pipes.latencies["shared"], threads="gsb0" in one.operands)


def _barrier(one: SassInstruction, control: Control, latency: float) -> Operation:
    act = Act.ARRIVE if one.opcode.startswith("BAR.ARV") else Act.BARRIER
    named = _BARRIER.match(one.operands)
    if named is None or named[1] is None:
        return Operation(Act.DATA_WAIT if act is Act.BARRIER else Act.PLAIN, control)
    threads = int(named[2], 16) if named[2] else 0
    return Operation(act, control, latency=latency, group=int(named[1], 0), threads=threads)


def _bytes_of_warp(one: SassInstruction) -> float:
    """Bytes that the lanes of a warp access together."""
    if one.base in ("LDSM", "STSM"):
        return 128.0 * (int(one.opcode[-1]) if one.opcode[-1] in "24" else 1)
    width = _WIDTH.search(one.opcode)
    return 32.0 * (_BYTES[width[1]] if width else 4)
