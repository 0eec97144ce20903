"""Failures that fuzzing found (``python -m lab fuzz``), and the scalar evaluator itself."""

from __future__ import annotations

import numpy as np
import pytest

import warpsan
from scalar_evaluator import If, Loop, Op, Program, evaluate, expected_bits, random_program, render


def test_programs_have_branches_loops_guards_and_every_class_of_register() -> None:
    texts = [render(random_program(seed)) for seed in range(40)]
    together = "\n".join(texts)
    for part in ("@!%p", "bra ELSE", "bra LOOP", "fma.rz.f32", "div.s64", "bfe.u32", "lop3.b32", "add.rn.f16", ".f64"):
        assert part in together, part
    assert render(random_program(3)) == render(random_program(3))
    assert len(set(texts)) == len(texts)


def test_the_evaluator_on_a_program_worked_out_by_hand() -> None:
    add = Op("add.u32 {0}, {1}, {2};", "r0", ("r0", "r1"), lambda x, y: x + y)
    double = Op("add.u32 {0}, {1}, {2};", "r1", ("r1", "r1"), lambda x, y: x + y, guard=("p0", True))
    less = Op("setp.lt.u32 {0}, {1}, {2};", "p0", ("r0", "r2"), lambda x, y: int(x < y))
    program = Program((less, Loop("r3", (add, double)), If("p0", False, (double, add), (add,))))
    # r0 = 1 is below r2, so p0 holds: the doubling, guarded by its negation, is skipped.
    assert evaluate(program, {"r0": 1, "r1": 5, "r2": 9, "r3": 6})["r0"] == 1 + 3 * 5 + 5
    # r0 = 9 is not: three rounds add 5, 10, 20, and then 40.
    assert evaluate(program, {"r0": 9, "r1": 5, "r2": 9, "r3": 2})["r0"] == 9 + 5 + 10 + 20 + 40
    assert evaluate(Program((add,)), {"r0": 0xFFFFFFFF, "r1": 2})["r0"] == 1
    assert expected_bits({"f0": 0x7FFFFFFF}, "f0", 0x7FC00001)
    assert not expected_bits({"f0": 0x80000000}, "f0", 0)


HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"


def entry(body: str) -> str:
    return f"{HEAD}.entry k(.param .u64 p)\n{{\n.reg .b32 %r<4>; .reg .b64 %rd<4>;\n{body}\nret;\n}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (entry("mov.u32 %r1, ;"), "PTX line 7: expected an operand"),
        (entry("add.u32 %r1, , %r2;"), "PTX line 7: expected an operand"),
        (entry(".loc 1"), "PTX line 7: expected .loc FILE LINE COLUMN, found '.loc 1'"),
        (entry(".loc 1 x 3"), "PTX line 7: expected .loc FILE LINE COLUMN"),
        (entry("").rstrip() + '\n.file x "a.cu"\n', 'expected .file NUMBER "NAME"'),
        (entry(".shared .align 0 .b8 tile[64];"), "PTX line 7: expected an alignment that is a power of two, found 0"),
        (entry("mov.u32 %r1, 089;"), "PTX line 7: expected an integer, found '089'"),
        (entry("mov.u32 %r1, %r2, %r3;"), "PTX line 7: .*expected one source operand"),
        (entry("mov.u32 %r1;"), "PTX line 7: .*expected one source operand"),
    ],
)
def test_damage_that_fuzzing_found(text: str, message: str) -> None:
    with pytest.raises((warpsan.PtxSyntaxError, warpsan.UnsupportedInstruction), match=message):
        warpsan.launch(text, "k", 1, 32, [np.zeros(4, np.uint32)])


@pytest.mark.parametrize("operation", ["min", "max"])
@pytest.mark.parametrize("threads", [7, 64])
def test_a_number_wins_against_a_signalling_nan(operation: str, threads: int) -> None:
    # Found by fuzzing: NumPy's fmin and fmax return the NaN only in the remainder of whole vectors.
    words = np.full(threads, 0x7F974D55, np.uint32)
    words[1::2] = 0x3F800000
    body = (
        "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd1, %rd1, %rd2;\n"
        ".reg .f32 %f<3>;\nld.global.f32 %f1, [%rd1];\nmov.f32 %f2, 0f40000000;\n"
        f"{operation}.f32 %f1, %f1, %f2;\nst.global.f32 [%rd1], %f1;"
    )
    warpsan.launch(entry(body), "k", 1, threads, [words])
    values = words.view(np.float32)
    assert (values[::2] == 2.0).all()
    assert (values[1::2] == (1.0 if operation == "min" else 2.0)).all()


def test_a_literal_with_a_leading_zero_is_octal() -> None:
    out = np.zeros(4, np.uint32)
    warpsan.launch(entry("ld.param.u64 %rd1, [p];\nmov.u32 %r1, 0755;\nst.global.u32 [%rd1], %r1;"), "k", 1, 1, [out])
    assert out[0] == 0o755
