"""Grammars of instructions that compute in each lane or exchange values of a warp (PTX ISA, "Integer Arithmetic
Instructions", "Floating-Point Instructions", "Comparison and Selection Instructions", "Logic and Shift Instructions",
"Data Movement and Conversion Instructions", "Control Flow Instructions", "vote.sync" and others).
"""

from __future__ import annotations

from itertools import product

from warpsan.numerics.float_formats import ROUNDINGS
from warpsan.ptx.forms import FP8_PAIRS, PRMT_MODES
from warpsan.ptx.grammar import Form, Opcode, compute, element, flag, form, opcodes, space
from warpsan.ptx.types import TYPES, PtxType

__all__ = ["COMBINATIONS", "HALVES", "WHOLE", "SpaceTest", "ToSpace"]

_UNSIGNED, _SIGNED = ("u16", "u32", "u64"), ("s16", "s32", "s64")
_PLAIN, _PACKED = (*_UNSIGNED, *_SIGNED), ("u16x2", "s16x2")
_WORDS, _BITS, _LONG = ("b32", "b64"), ("b16", "b32", "b64"), ("u32", "u64", "s32", "s64")
HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_SELECTED = (*_BITS, *_PLAIN, "f32", "f64")
_ROUNDED = ("", *ROUNDINGS)

_INTEGER, _ARITHMETIC = "Integer Arithmetic Instructions", "Integer Arithmetic and Floating-Point Instructions"
_EXTENDED, _SIMD = "Extended-Precision Integer Arithmetic Instructions", "Video Instructions: SIMD"
_FLOAT, _COMPARE = "Floating-Point Instructions", "Comparison and Selection Instructions"
_LOGIC, _MOVE = "Logic and Shift Instructions", "Data Movement and Conversion Instructions"
_CONTROL, _OTHERS = "Control Flow Instructions", "Miscellaneous Instructions"
_COMMUNICATE, _MATRIX = "Parallel Synchronization and Communication Instructions", "Warp-Level Matrix Instructions"

# ---- integers and bits -----------------------------------------------------------------------------------------------

opcodes("abs div max min mul neg", Opcode(_ARITHMETIC))
opcodes("add sub mad", Opcode(_ARITHMETIC, passes_pointers=True))
opcodes("bfe bfi bfind bmsk brev clz dp2a dp4a fns mad24 mul24 popc rem sad szext", Opcode(_INTEGER))
opcodes("addc madc subc", Opcode(_EXTENDED))
opcodes("and cnot lop3 not or shf xor", Opcode(_LOGIC))
opcodes("shl shr", Opcode(_LOGIC, moves=1))
opcodes("prmt", Opcode(_MOVE, pipe="move", moves=2))

compute("add sub", _PLAIN, sources=2)
compute("add sub", "s32", sources=2, flags="sat")
compute("add", _PACKED, sources=2)
compute("mul", "u16 u32 s16 s32", sources=2, modes=["lo hi wide"])
compute("mul", "u64 s64", sources=2, modes=["lo hi"])
compute("mad", "u16 u32 s16 s32", sources=3, modes=["lo hi wide"])
compute("mad", "u64 s64", sources=3, modes=["lo hi"])
compute("mad", "s32", sources=3, modes=["hi"], words="sat")
compute("mul24", "u32 s32", sources=2, modes=["hi lo"])
compute("mad24", "u32 s32", sources=3, modes=["hi lo"])
compute("mad24", "s32", sources=3, modes=["hi"], words="sat")
compute("div rem", _PLAIN, sources=2)
compute("sad", _PLAIN, sources=3)
compute("min max", (*_PLAIN, *_PACKED), sources=2)
compute("min max", "s32 s16x2", sources=2, flags="relu")
compute("abs neg", _SIGNED, sources=1)
compute("add.cc sub.cc", _LONG, sources=2)
compute("addc subc", _LONG, sources=2, flags="cc")
compute("mad.lo.cc mad.hi.cc", _LONG, sources=3)
compute("madc.lo madc.hi", _LONG, sources=3, flags="cc")
compute("dp4a", "u32 s32", "u32 s32", sources=3)
compute("dp2a", "u32 s32", "u32 s32", sources=3, modes=["lo hi"])
for _name, _lanes in product(("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"), (2, 4)):
    opcodes(f"{_name}{_lanes}", Opcode(_SIMD))
    compute(f"{_name}{_lanes}", *["u32 s32"] * 3, sources=3, flags="sat add")

compute("and or xor", ("pred", *_BITS), sources=2)
compute("not", ("pred", *_BITS), sources=1)
compute("cnot", _BITS, sources=1)
compute("shl", _BITS, sources=2)
compute("shr", (*_BITS, *_PLAIN), sources=2)
compute("shf", "b32", sources=3, modes=["l r", "wrap clamp"])
compute("lop3", "b32", modes=[("", "or", "and")])
compute("prmt", "b32", sources=3, modes=[("", *PRMT_MODES)])
compute("popc clz brev", _WORDS, sources=1)
compute("bfind", _LONG, sources=1, flags="shiftamt")
compute("bfe", _LONG, sources=3)
compute("bfi", _WORDS, sources=4)
compute("bmsk", "b32", sources=2, modes=["clamp wrap"])
compute("szext", "u32 s32", sources=2, modes=["clamp wrap"])
compute("fns", "b32", sources=3)

# ---- floating point --------------------------------------------------------------------------------------------------

opcodes("copysign fma testp", Opcode(_FLOAT))
opcodes("cos ex2 lg2 rcp rsqrt sin sqrt tanh", Opcode(_FLOAT, pipe="special"))

compute("add sub mul", "f32", sources=2, modes=[_ROUNDED], flags="ftz sat")
compute("add sub mul", "f32x2", sources=2, modes=[_ROUNDED], flags="ftz")
compute("add sub mul", HALVES, sources=2, modes=[("", "rn")], flags="ftz sat")
compute("add sub mul div", "f64", sources=2, modes=[("", "rn")])
compute("div", "f32", sources=2, modes=[("", "approx", "full", *ROUNDINGS)], flags="ftz sat")
compute("fma mad", "f32", sources=3, modes=[_ROUNDED], flags="ftz sat")
compute("fma", "f32x2", sources=3, modes=[_ROUNDED], flags="ftz")
compute("fma mad", "f64", sources=3, modes=[("", "rn")])
compute("fma", HALVES, sources=3, modes=[("", "rn")], flags="ftz sat relu")
compute("abs neg", (*HALVES, "f32"), sources=1, flags="ftz")
compute("abs neg", "f64", sources=1)
compute("min max", HALVES, sources=2, flags="ftz NaN xorsign abs")
compute("min max", "f32", flags="ftz NaN xorsign abs")
compute("min max", "f64", sources=2, flags="NaN xorsign abs")
compute("copysign", "f32 f64", sources=2)
compute("ex2", (*HALVES, "f32"), sources=1, words="approx", flags="ftz")
compute("tanh", (*HALVES, "f32"), sources=1, words="approx")
compute("lg2 sin cos", "f32", sources=1, words="approx", flags="ftz")
compute("rcp sqrt", "f32", sources=1, modes=[("approx", *ROUNDINGS)], flags="ftz")
compute("rcp sqrt", "f64", sources=1, modes=["rn"])
compute("rcp", "f64", sources=1, modes=["approx"], words="ftz")
compute("rsqrt", "f32 f64", sources=1, modes=["approx"], flags="ftz")
compute("testp", "f32 f64", sources=1, modes=["finite infinite number notanumber normal subnormal"])

# ---- comparison and selection ----------------------------------------------------------------------------------------

opcodes("set setp slct", Opcode(_COMPARE))
opcodes("selp", Opcode(_COMPARE, pipe="move", moves=2, passes_pointers=True))

COMBINATIONS = ("and", "or", "xor")
_EQUAL, _ORDERED = ("eq", "ne"), ("eq", "ne", "lt", "le", "gt", "ge")
_FLOATING = (*_ORDERED, *(f"{name}u" for name in _ORDERED), "num", "nan")
_NUMBERS = ("u32", "s32", "f32", "f16", "bf16")

for _types, _names, _flags in (
    (_SIGNED, _ORDERED, ""),
    (_UNSIGNED, (*_ORDERED, "lo", "ls", "hi", "hs"), ""),
    (_BITS, _EQUAL, ""),
    (("f32",), _FLOATING, "ftz"),
    (("f64",), _FLOATING, ""),
    (("f16",), _FLOATING, "ftz"),
    (("bf16",), _FLOATING, ""),
    (("f16x2",), _FLOATING, "ftz"),
    (("bf16x2",), _FLOATING, ""),
):
    _result = (_types[0], "u32", "s32") if "x2" in _types[0] else _NUMBERS
    _small = ("u16", "s16") if _types[0] in ("f16", "bf16") else ()
    compute("setp", _types, modes=[_names, ("", *COMBINATIONS)], flags=_flags)
    compute("set", (*_result, *_small), _types, modes=[_names, ("", *COMBINATIONS)], flags=_flags)
compute("selp", _SELECTED, sources=3)
compute("slct", _SELECTED, "s32", sources=3)
compute("slct", _SELECTED, "f32", sources=3, flags="ftz")

# ---- conversion ------------------------------------------------------------------------------------------------------

opcodes("cvt", Opcode(_MOVE, pipe="convert", moves=1))

WHOLE = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}
"""Roundings to integers, by modifier."""


def _conversion(target: PtxType, source: PtxType) -> tuple[tuple[str, ...], str]:
    """The roundings and flags of a conversion; from floating point to integers, ``.sat`` is implied."""
    ftz = " ftz" * ("f32" in (target.name, source.name))
    if not target.is_float:
        return (tuple(WHOLE), f"sat{ftz}") if source.is_float else (("",), "sat")
    flags = f"sat{ftz}{' relu' * (target.name in HALVES)}"
    if not source.is_float:
        return ("rn",) if target.bits == 64 and source.bits == 64 else ROUNDINGS, flags
    if source is target:
        return ("", *WHOLE), flags
    return ("",) if target.bits > source.bits else ROUNDINGS, flags


_SCALARS = [each for each in TYPES.values() if each.lanes == 1 and each.kind not in ("b", "pred")]
for _target, _source in product(_SCALARS, _SCALARS):
    _roundings, _flags = _conversion(_target, _source)
    compute("cvt", _target.name, _source.name, sources=1, modes=[_roundings], flags=_flags)
compute("cvt", "f16x2 bf16x2", "f32", sources=2, modes=["rn rz"], flags="ftz sat relu")
compute("cvt", "f32", sources=1, modes=["rn rz"], words="tf32", flags="relu")
compute("cvt", "f32", sources=1, words="tf32 rna")
for _name in sorted(FP8_PAIRS):
    compute("cvt", "f16x2", sources=1, words=f"rn {_name}", flags="relu")
    compute("cvt", "f16x2", sources=1, words=f"rn satfinite {_name}", flags="relu")
    compute("cvt", "f32", sources=2, words=f"rn satfinite {_name}", flags="relu")
compute("cvt.pack", "u16 s16", "s32", sources=2, words="sat")
compute("cvt.pack", sources=3, words="sat s32 b32", modes=["u2 s2 u4 s4 u8 s8"])

# ---- moves and addresses ---------------------------------------------------------------------------------------------

opcodes("mov", Opcode(_MOVE, pipe="move", moves=1, passes_pointers=True))
opcodes("cvta", Opcode(_MOVE, pipe="move", passes_pointers=True))
opcodes("getctarank isspacep mapa", Opcode(_MOVE))
opcodes("nanosleep", Opcode(_OTHERS, writes=False, effects=True))
opcodes("pmevent", Opcode(_OTHERS))

compute("mov", tuple(TYPES), sources=1)
compute("mapa", "u32 u64", sources=2, flags="shared::cluster")
compute("getctarank", "u32 u64", sources=1, flags="shared::cluster")
compute("nanosleep", "u32", sources=0)
compute("pmevent", sources=0, flags="mask")


@form("cvta", sources=1)
class ToSpace(Form):
    """An address from a state space as a generic one, or to it with ``to``."""

    to: bool = flag("to")
    space: str = space()
    type: PtxType = element()


@form("isspacep", sources=1)
class SpaceTest(Form):
    """Whether a generic address lies in a state space."""

    space: str = space()


# ---- lanes and control -----------------------------------------------------------------------------------------------

opcodes("shfl", Opcode(_MOVE, pipe="warp", lanes="members", moves=1))
opcodes("elect match redux vote", Opcode(_COMMUNICATE, pipe="warp", lanes="members", undefined="used"))
opcodes("activemask", Opcode(_COMMUNICATE, pipe="warp", lanes="warp", undefined="used"))
opcodes("movmatrix", Opcode(_MATRIX, lanes="warp", undefined="followed", moves=1))
opcodes("bra", Opcode(_CONTROL, pipe="control", goes_on=False, writes=False))
opcodes("brx ret", Opcode(_CONTROL, pipe="control", goes_on=False, writes=False, effects=True))
opcodes("exit", Opcode(_CONTROL, pipe="control", goes_on=False, effects=True))
# A call's results are written when the function returns: no register of the function may reuse their rows.
opcodes("call", Opcode(_CONTROL, pipe="control", writes=False, effects=True))
opcodes("brkpt trap", Opcode(_OTHERS, pipe="control", goes_on=False, effects=True))

compute("shfl", "b32", sources=4, words="sync", modes=["idx up down bfly"])
compute("vote", "pred", sources=2, words="sync", modes=["all any uni"])
compute("vote", "b32", sources=2, words="sync", modes=["ballot"])
compute("match", _WORDS, sources=2, words="sync", modes=["any all"])
compute("redux", "u32 s32", sources=2, words="sync", modes=["add min max"])
compute("redux", "b32", sources=2, words="sync", modes=[COMBINATIONS])
compute("elect", sources=1, words="sync")
compute("activemask", "b32", sources=0)
compute("movmatrix", sources=1, words="sync aligned m8n8 trans b16")
compute("bra call ret", flags="uni", ends=True)
compute("brx", words="idx", flags="uni", ends=True)
compute("exit trap brkpt", ends=True)
