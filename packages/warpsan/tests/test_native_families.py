"""Families of instructions: each table row runs in whole and in diverged warps, and must match the recorded bits."""

from __future__ import annotations

import random

import numpy as np
import pytest

import ptx_snippets
import warpsan

INTEGERS = ("u32", "s32")
VIDEO = ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax")
LANES: dict[str, tuple[str, ...]] = {
    "dot products": (
        *(f"dp4a.{x}.{y} %d, %a, %b, %c;" for x in INTEGERS for y in INTEGERS),
        *(f"dp2a.{half}.{x}.{y} %d, %a, %b, %c;" for half in ("lo", "hi") for x in INTEGERS for y in INTEGERS),
    ),
    "24 bits": (
        *(f"mul24.{part}.{type_} %d, %a, %b;" for part in ("lo", "hi") for type_ in INTEGERS),
        *(f"mad24.{part}.{type_} %d, %a, %b, %c;" for part in ("lo", "hi") for type_ in INTEGERS),
        "mad24.hi.sat.s32 %d, %a, %b, %c;",
    ),
    "carries": (
        "add.cc.u32 %x, %a, %b; addc.u32 %d, %x, %c;",
        "addc.u32 %d, %a, %b;",
        "sub.cc.s32 %x, %a, %b; subc.cc.u32 %x, %x, %c; subc.u32 %d, %x, %a;",
        "mad.lo.cc.u32 %x, %a, %b, %c; madc.hi.u32 %d, %a, %b, %x;",
        "mad.hi.cc.s32 %x, %a, %b, %c; madc.lo.cc.u32 %x, %a, %x, %c; addc.u32 %d, %x, 0;",
        "mov.b64 %w, {%a, %b}; mov.b64 %v, {%c, %a}; add.cc.u64 %v, %v, %w; addc.u64 %v, %w, %w; mov.b64 {%x, %d}, %v;",
    ),
    "bits": (
        *(f"bmsk.{mode}.b32 %d, %e, %f;" for mode in ("clamp", "wrap")),
        *(f"szext.{mode}.{type_} %d, %a, %f;" for mode in ("clamp", "wrap") for type_ in INTEGERS),
        "and.b32 %x, %b, 31; shr.s32 %y, %c, 27; fns.b32 %d, %a, %x, %y;",
        "fns.b32 %d, %a, %f, -1;",
        "and.b32 %x, %b, 31; fns.b32 %d, %a, %x, 0;",
        *(f"prmt.b32.{mode} %d, %a, %b, %c;" for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")),
    ),
    **{
        f"video {form or 'plain'} {lanes}": tuple(
            f"{name}{lanes}.{types}{form} %d, %a, %b, %c;"
            for name in VIDEO
            for types in ("u32.u32.u32", "s32.s32.u32", "u32.u32.s32")
        )
        for lanes in (2, 4)
        for form in ("", ".sat", ".add")
    },
    "comparisons of halves": tuple(
        f"{row}"
        for type_ in ("f16", "bf16")
        for row in (
            f"set.gt.{type_}x2.{type_}x2 %d, %a, %b;",
            f"set.neu.u32.{type_}x2 %d, %a, %b;",
            f"setp.ltu.{type_}x2 %p|%q, %a, %b; selp.b32 %x, 1, 0, %p; selp.b32 %y, 2, 0, %q; or.b32 %d, %x, %y;",
            f"setp.lt.u32 %p, %a, %b; set.le.and.{type_}x2.{type_}x2 %d, %a, %b, %p;",
            f"mov.b32 {{%h, %l}}, %a; set.lt.{type_}.{type_} %h, %h, %l; mov.b32 %d, {{%h, %l}};",
            f"mov.b32 {{%h, %l}}, %a; set.geu.s16.{type_} %h, %h, %l; mov.b32 %d, {{%l, %h}};",
        )
    ),
    "packing": (
        *(f"cvt.pack.sat.{type_}.s32.b32 %d, %a, %b, %c;" for type_ in ("u8", "s8", "u4", "s4", "u2", "s2")),
        *(f"cvt.pack.sat.{type_}.s32 %d, %a, %b;" for type_ in ("u16", "s16")),
    ),
    "double precision": tuple(
        f"mov.b64 %w, {{%a, %b}}; mov.b64 %g, %w; {name}.f64 %g, %g; mov.b64 %w, %g; mov.b64 {{%x, %y}}, %w;"
        " xor.b32 %d, %x, %y;"
        for name in ("rcp.approx.ftz", "rsqrt.approx.ftz", "rsqrt.approx", "rcp.rn", "sqrt.rn")
    ),
    "caches": (
        "createpolicy.fractional.L2::evict_last.b64 %w, 0f3F000000; mov.b64 {%x, %d}, %w;",
        "createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %w; mov.b64 {%d, %x}, %w;",
        "prefetchu.L1 [%w]; pmevent 3; mov.b32 %d, %a;",
    ),
    "addresses in a cluster": (
        "mapa.shared::cluster.u32 %x, %f, 2; getctarank.shared::cluster.u32 %d, %x;",
        "getctarank.shared::cluster.u32 %d, %f;",
    ),
}
"""Function of each lane in ``%d``, from ``%a``, ``%b``, ``%c`` with arbitrary bits, and ``%e``, ``%f`` up to about the
bits of a word.
"""


REGISTERS = ".reg .b16 %h, %l; .reg .b32 %x, %y; .reg .b64 %v, %w; .reg .f64 %g; .reg .pred %p, %q;"


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("family", LANES)
def test_lanes_compute_what_is_recorded(family: str) -> None:
    rows, draw = LANES[family], random.Random(family)
    a, b, c = ptx_snippets.triples(32, 192)
    small = [[draw.randrange(40) for _ in a] for _ in range(2)]
    body = "\n".join(row.replace("%d", f"%d{k}") for k, row in enumerate(rows))
    inputs = {name: ("u32", values) for name, values in zip("abcef", (a, b, c, *small), strict=True)}
    results = {f"d{k}": "u32" for k in range(len(rows))}
    ptx_snippets.run(body, results, registers=REGISTERS, **inputs)


WARPS = (
    "match.any.sync.b32 %d, %a, -1;",
    "match.any.sync.b64 %d, %w, -1;",
    "match.all.sync.b32 %d|%p, %a, -1; @%p add.u32 %d, %d, 7;",
    "match.all.sync.b32 %d, %c, -1;",
)
"""Functions of whole warps."""


@pytest.mark.usefixtures("recorded_launches")
def test_lanes_of_a_warp_match() -> None:
    rng = np.random.default_rng(1)
    few = rng.integers(0, 3, 128)
    body = "mov.b64 %w, {%a, %b};" + "\n".join(row.replace("%d", f"%d{k}") for k, row in enumerate(WARPS))
    ptx = ptx_snippets.kernel(
        body,
        {f"d{k}": "u32" for k in range(len(WARPS))},
        dict.fromkeys("abc", "u32"),
        registers=".reg .b64 %w; .reg .pred %p;",
    )
    out = [np.zeros(128, np.uint32) for _ in WARPS]
    inputs = [each.astype(np.uint32) for each in (few, rng.integers(0, 2, 128), np.repeat([4, 5], 64))]
    assert warpsan.launch(ptx, "snippet", 2, 64, [128, 0, *inputs, *out]).hazards == []
    assert out[0].tolist() == [
        sum(1 << k for k in range(32) if few[warp * 32 + k] == few[warp * 32 + lane])
        for warp in range(4)
        for lane in range(32)
    ]


MMA = [
    *((f"m16n8k{depth}", f"s32.{x}8.{y}8.s32", sat) for depth in (16, 32) for x in "su" for y in "su" for sat in ("",)),
    *((f"m16n8k{depth}", f"s32.{x}4.{y}4.s32", "") for depth in (32, 64) for x, y in ("ss", "us")),
    ("m16n8k32", "s32.s8.s8.s32", ".satfinite"),
    ("m16n8k64", "s32.u4.s4.s32", ".satfinite"),
]


@pytest.mark.usefixtures("recorded_launches")
def test_integer_products() -> None:
    """Chains of products, so that sums wrap and saturate."""
    body, rng = [], np.random.default_rng(2)
    for shape, kinds, sat in MMA:
        blocks = int(shape[6:]) * int(kinds[5]) // 128
        a = ", ".join(f"%r{k}" for k in range(2 * blocks))
        b = ", ".join(f"%r{4 + k}" for k in range(blocks))
        product = f"mma.sync.aligned.{shape}.row.col{sat}.{kinds} {{%d0, %d1, %d2, %d3}}, {{{a}}}, {{{b}}}"
        body.append(f"{product}, {{%r6, %r7, %r8, %r9}};\n" + f"{product}, {{%d0, %d1, %d2, %d3}};\n" * 2)
        body.append("".join(f"xor.b32 %s{k}, %s{k}, %d{k};" for k in range(4)))
    words = rng.integers(0, 1 << 32, (10, 32), dtype=np.uint32)
    words[6:] = rng.choice(np.array([0, 5, 0x7FFFFFF0, 0x80000010], np.uint32), (4, 32))
    results, inputs = {f"s{k}": "u32" for k in range(4)}, {f"r{k}": "u32" for k in range(10)}
    zero = "".join(f"mov.b32 %s{k}, 0;" for k in range(4))
    ptx = ptx_snippets.kernel(zero + "\n".join(body), results, inputs, registers=".reg .b32 %d<4>;", target="sm_90a")
    out = [np.zeros(32, np.uint32) for _ in results]
    assert warpsan.launch(ptx, "snippet", 1, 32, [32, 0, *words, *out]).hazards == []


@pytest.mark.usefixtures("recorded_launches")
def test_products_of_f64() -> None:
    product = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d, %e}, {%a}, {%b}, {%c, %f};"
    rng = np.random.default_rng(3)
    values = rng.normal(size=(4, 32)) * 2.0 ** rng.integers(-40, 40, (4, 32))
    values[0, 3], values[1, 5] = np.inf, np.nan
    ptx = ptx_snippets.kernel(product, {"d": "f64", "e": "f64"}, dict.fromkeys("abcf", "f64"))
    out = np.zeros((2, 32))
    assert warpsan.launch(ptx, "snippet", 1, 32, [32, 0, *values, *out]).hazards == []
    assert np.isfinite(out).any()


@pytest.mark.usefixtures("recorded_launches")
def test_a_line_that_is_discarded_is_poison() -> None:
    ptx = """.version 8.0\n.target sm_90\n.address_size 64
    .entry k(.param .u64 a) { .reg .b32 %r<4>; .reg .b64 %rd<4>; mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [a];
    mul.wide.u32 %rd2, %r1, 256; add.u64 %rd3, %rd1, %rd2; applypriority.global.L2::evict_normal [%rd3], 128;
    discard.global.L2 [%rd3], 128; ret; }"""
    data = np.zeros((32, 64), np.uint32)
    assert warpsan.launch(ptx, "k", 1, 32, [data], counters=True).hazards == []
    assert (data[:, :32] == 0xFFFFFFFF).all()
    assert (data[:, 32:] == 0).all()


def test_clocks_go_on_with_the_steps_of_a_cluster() -> None:
    """Clock values do not depend on the number of threads."""
    body = "mov.u64 %v, %clock64; mov.u32 %x, %clock; mov.u64 %w, %globaltimer; sub.u64 %d, %w, %v; cvt.u32.u64 %e, %v;"
    outs = []
    for workers in (1, 2):
        ptx = ptx_snippets.kernel(
            body + "sub.u32 %f, %x, %e; mov.u32 %g, %clock_hi;",
            {"d": "u64", "e": "u32", "f": "u32", "g": "u32"},
            {"a": "u32"},
            registers=".reg .b64 %v, %w; .reg .b32 %x;",
        )
        out = [np.zeros(256, dtype) for dtype in (np.uint64, np.uint32, np.uint32, np.uint32)]
        warpsan.launch(ptx, "snippet", 4, 64, [256, 0, np.zeros(256, np.uint32), *out], workers=workers)
        outs.append(out)
    for one, two in zip(*outs, strict=True):
        np.testing.assert_array_equal(one, two)
    assert (outs[0][0] == 2).all()
    assert (outs[0][2] == 1).all()
    assert (outs[0][3] == 0).all()
    assert set(outs[0][1].tolist()) == set(outs[0][1][:64].tolist())
