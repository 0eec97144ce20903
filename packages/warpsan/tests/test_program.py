"""Blocks, fused products and register rows: sharing must have no observable effect."""

import numpy as np

import warpsan
from warpsan.analysis.fusion import MmaGroup
from warpsan.analysis.program import build_program
from warpsan.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"


def program(body: str):
    text = (
        HEAD + ".entry k(.param .u64 p)\n{\n.reg .b32 %r<200>; .reg .b64 %rd<9>; .reg .pred %p<9>;\n" + body + "\n}\n"
    )
    return build_program(parse(text).entries["k"])


def run(body: str, threads=32, size=256):
    out = np.zeros(size, np.uint32)
    text = (
        HEAD
        + ".entry k(.param .u64 p)\n{\n.reg .b32 %r<60>; .reg .b64 %rd<9>; .reg .pred %p<9>;\nld.param.u64 %rd1, [p];\n"
        + "mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd3, %rd1, %rd2;\n"
        + body
        + "\nret;\n}\n"
    )
    warpsan.launch(text, "k", 1, threads, [out], checks=())
    return out[:threads], build_program(parse(text).entries["k"])


def test_registers_that_do_not_live_together_share_a_row():
    chain = "".join(f"add.u32 %r{i + 1}, %r{i}, 1;\n" for i in range(1, 50))
    out, program = run("mov.u32 %r1, 5;\n" + chain + "st.global.u32 [%rd3], %r50;")
    assert (out == 54).all()
    assert program.files[32] < 6


def test_what_a_loop_carries_keeps_its_row():
    """%r2 is written before the loop and read at its end: no register inside may use its row."""
    body = (
        "mov.u32 %r1, 0; mov.u32 %r2, 100; mov.u32 %r3, 0;\nLOOP:\n"
        "add.u32 %r4, %r3, %r1; mov.u32 %r5, %r4; mov.u32 %r6, %r5;\n"
        "mov.u32 %r3, %r6; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 10;\n@%p1 bra LOOP;\n"
        "add.u32 %r7, %r3, %r2; st.global.u32 [%rd3], %r7;"
    )
    out, _ = run(body)
    assert (out == 145).all()


def test_lanes_that_skip_a_guarded_write_keep_the_old_value():
    body = (
        "mov.u32 %r1, 1; setp.lt.u32 %p1, %r0, 10; mov.u32 %r2, 7; mov.u32 %r3, %r2;\n@%p1 mov.u32 %r1, 2;\n"
        "add.u32 %r4, %r1, %r3; st.global.u32 [%rd3], %r4;"
    )
    out, _ = run(body)
    assert (out == np.where(np.arange(32) < 10, 9, 8)).all()


def test_a_branch_that_only_some_lanes_take_does_not_clobber_the_others():
    body = (
        "mov.u32 %r1, 11; setp.lt.u32 %p1, %r0, 16;\n@%p1 bra ELSE;\n"
        "mov.u32 %r2, 3; mul.lo.u32 %r3, %r2, %r2; add.u32 %r1, %r3, %r1;\nbra JOIN;\n"
        "ELSE: mov.u32 %r4, 5; add.u32 %r1, %r4, %r1;\nJOIN: st.global.u32 [%rd3], %r1;"
    )
    out, _ = run(body)
    assert (out == np.where(np.arange(32) < 16, 16, 20)).all()


def test_an_undefined_register_reads_poison_even_where_rows_are_reused():
    chain = "".join(f"add.u32 %r{i + 1}, %r{i}, 1;\n" for i in range(1, 20))
    out, _ = run("mov.u32 %r1, 5;\n" + chain + "st.global.u32 [%rd3+512], %r20;\nst.global.u32 [%rd3], %r55;")
    assert (out == 0xFFFFFFFF).all()


MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"


def mma(d, a, b, c):
    def vector(first, count):
        return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"

    return f"{MMA} {vector(d, 4)}, {vector(a, 4)}, {vector(b, 2)}, {vector(c, 4)};\n"


def products(body: str):
    """Products of straight-line code, as (chains, depth), in order with the other opcodes."""
    return [
        (len(item.chains), len(item.chains[0].instructions)) if isinstance(item, MmaGroup) else item.opcode
        for block in program(body).blocks
        for item in block.items
    ]


def test_tiles_along_n_and_k_become_one_product():
    body = "".join(mma(100 + 4 * n, 0, 10 + 2 * n, 50) for n in range(4))
    body += "".join(mma(120 + 4 * n, 4, 20 + 2 * n, 100 + 4 * n) for n in range(4))
    assert products(body) == [(4, 2)]


def test_loads_of_later_factors_may_come_in_between():
    load = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r20, %r21}, [%r40];\n"
    assert products(mma(100, 0, 10, 50) + load + mma(104, 0, 20, 50)) == ["ldmatrix", (2, 1)]


def test_a_reader_of_a_result_ends_the_group():
    assert products(mma(100, 0, 10, 50) + "mov.b32 %r60, %r101;\n" + mma(104, 0, 20, 50)) == [(1, 1), "mov", (1, 1)]


def test_overwriting_a_factor_ends_the_group():
    assert products(mma(100, 0, 10, 50) + "mov.b32 %r10, 0;\n" + mma(104, 0, 10, 50)) == [(1, 1), "mov", (1, 1)]


def test_a_sum_that_is_used_elsewhere_does_not_vanish_in_a_chain():
    body = mma(100, 0, 10, 50) + mma(104, 4, 12, 100) + "mov.b32 %r60, %r100;\n"
    assert products(body) == [(1, 1), "mov", (1, 1)]


def test_a_result_used_as_a_factor_ends_the_group():
    assert products(mma(100, 0, 10, 50) + mma(104, 100, 12, 50)) == [(1, 1), (1, 1)]
