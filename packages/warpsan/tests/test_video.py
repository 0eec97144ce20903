"""SIMD video instructions, against the same operation on their lanes as Python integers."""

import pytest

import warpsan
from ptx_snippets import run, signed, triples


def parts(word, bits, is_signed):
    pieces = [word >> shift & (1 << bits) - 1 for shift in range(0, 32, bits)]
    return [signed(piece, bits) if is_signed else piece for piece in pieces]


OPERATIONS = {
    "vadd": lambda u, v: u + v,
    "vsub": lambda u, v: u - v,
    "vavrg": lambda u, v: (u + v + 1) // 2 if u + v >= 0 else (u + v) // 2,
    "vabsdiff": lambda u, v: abs(u - v),
    "vmin": min,
    "vmax": max,
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("many", [2, 4])
@pytest.mark.parametrize("types", ["u32.u32.u32", "u32.s32.s32", "s32.s32.u32", "s32.u32.s32"])
@pytest.mark.parametrize("form", ["", ".sat", ".add"])
def test_lanes(operation, many, types, form):
    a, b, c = triples(32)
    to, first, second = (name[0] == "s" for name in types.split("."))
    bits = 32 // many
    (d,) = run(
        f"{operation}{many}.{types}{form} %d, %a, %b, %c;", {"d": "u32"}, a=("u32", a), b=("u32", b), c=("u32", c)
    )
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if to else (0, 2**bits - 1)
    for x, y, z, got in zip(a, b, c, d.tolist(), strict=True):
        lanes = zip(parts(x, bits, first), parts(y, bits, second), strict=True)
        results = [OPERATIONS[operation](u, v) for u, v in lanes]
        if form == ".add":
            want = (z + sum(results)) % 2**32
        else:
            if form == ".sat":
                results = [min(max(value, low), high) for value in results]
            want = sum((value % 2**bits) << bits * place for place, value in enumerate(results))
        assert got == want


@pytest.mark.parametrize(
    "line",
    [
        "vabsdiff4.u32.u32.u32.sat.add %d, %a, %a, %a;",
        "vabsdiff4.u16.u32.u32 %d, %a, %a, %a;",
        "vabsdiff4.u32 %d, %a, %a;",
    ],
)
def test_other_forms_are_refused(line):
    with pytest.raises(warpsan.UnsupportedInstruction, match="vabsdiff4"):
        run(line, {"d": "u32"}, a=("u32", [1]))
