"""PTX text to instructions: syntax, scopes, errors with their line."""

import pytest

from warpsan import PtxSyntaxError, UnsupportedInstruction
from warpsan.ptx.ir import Address, Immediate, Register, Symbol, Vector
from warpsan.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"


def body(text: str):
    return parse(HEAD + ".visible .entry k(.param .u64 p)\n{\n" + text + "\n}\n").entries["k"]


def test_header_params_and_directives():
    module = parse(
        HEAD
        + ".weak .entry f(.param .u64 .ptr .global .align 16 a, .param .align 8 .b8 s[20], .param .f32 x)\n"
        + ".maxntid 128, 1, 1\n.minnctapersm 2\n{ ret; }"
    )
    entry = module.entries["f"]
    assert module.target == "sm_89"
    assert [(param.name, param.size, param.offset) for param in entry.params] == [
        ("a", 8, 0),
        ("s", 20, 8),
        ("x", 4, 28),
    ]
    assert entry.directives == {"maxntid": (128, 1, 1), "minnctapersm": (2,)}


def test_operands():
    entry = body(
        ".reg .b32 %r<4>; .reg .b64 %rd<2>; .reg .pred %p;\n"
        "mov.b32 {%r1, %r2}, 0f3F800000;\n@!%p ld.global.v2.u32 {%r1, %r2}, [%rd1+-16];\nadd.s32 %r1, %r2, -0x10;\n"
        "mov.u32 %r3, %tid.x; mov.u32 %r3, WARP_SZ;"
    )
    mov, load, add, special, constant = entry.instructions
    assert mov.operands == (Vector((Register("%r1"), Register("%r2"))), Immediate(1.0, 32))
    assert load.guard is not None
    assert load.guard.negated
    assert load.operands[1] == Address(Register("%rd1"), -16)
    assert add.operands[2] == Immediate(-16)
    assert special.operands[1] == Register("%tid.x")
    assert constant.operands[1] == Immediate(32)


def test_names_in_braces_are_their_own():
    entry = body(
        ".reg .b32 %r<2>;\n{ .reg .pred p; setp.eq.s32 p, %r1, 0; @p bra DONE; DONE: }\n"
        "{ .reg .pred p; setp.ne.s32 p, %r1, 0; @p bra DONE; DONE: }\nret;"
    )
    guards = [instruction.guard.register.name for instruction in entry.instructions if instruction.guard]
    assert len(set(guards)) == 2
    targets = [i.operands[0] for i in entry.instructions if i.opcode == "bra"]
    assert [entry.labels[target.name] for target in targets if isinstance(target, Symbol)] == [2, 4]


def test_a_label_may_be_declared_after_the_inner_scope_that_branches_to_it():
    entry = body("{ .reg .pred p; bra END; }\nEND: ret;")
    assert entry.labels[entry.instructions[0].operands[0].name] == 1


def test_line_information_and_comments_keep_lines():
    text = (
        HEAD
        + '.file 1 "a/b.cu"\n.entry k()\n{\n/* two\nlines */ .loc 1 7 3\n'
        + "mov.u32 %r1, 1; // one\n.reg .u32 %r1;\nret;\n}\n"
    )
    entry = parse(text).entries["k"]
    assert entry.instructions[0].loc == (1, 7, 3, None)
    assert entry.instructions[0].line == 9
    assert parse(text).files == {1: "a/b.cu"}


def test_inlined_code_leads_to_the_calls_around_it():
    lines = ".loc 1 7 3", ".loc 1 30 5, function_name $info, inlined_at 1 7 3", ".loc 2 9 1, inlined_at 1 30 5"
    entry = parse(HEAD + ".entry k()\n{\n" + "\n".join(lines) + "\nret;\n}\n").entries["k"]
    loc = entry.instructions[0].loc
    assert [place[:3] for place in loc.chain] == [(2, 9, 1), (1, 30, 5), (1, 7, 3)]


def test_a_chain_of_calls_that_goes_round_has_an_end():
    lines = [".loc 1 7 3, inlined_at 1 8 3", ".loc 1 8 3, inlined_at 1 7 3"] * 100
    entry = parse(HEAD + ".entry k()\n{\n" + "\n".join(lines) + "\nret;\n}\n").entries["k"]
    assert len(entry.instructions[0].loc.chain) <= 17


def test_variables():
    module = parse(
        HEAD + ".extern .shared .align 128 .b8 dyn[];\n.const .align 4 .u16 table[3] = {1, 2, 0xFFFF};\n"
        ".global .f32 low = 0fFF800000;\n.entry k() { .shared .align 8 .b32 tile[4][8];\n"
        ".local .align 8 .b8 depot[40]; ret; }"
    )
    assert module.variables["dyn"].size == 0
    assert module.variables["dyn"].align == 128
    assert module.variables["table"].data == b"\1\0\2\0\xff\xff"
    assert module.variables["low"].data == b"\0\0\x80\xff"
    assert module.entries["k"].variables["tile"].size == 128
    assert module.entries["k"].variables["depot"].space == "local"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("not ptx", 1, "expected a directive"),
        ("", 1, ".version"),
        (HEAD + ".entry k()\n{\n add.u32 %r1, %r2", 6, "expected ';'"),
        (HEAD + ".entry k()\n{\n ret;\n", 7, "expected '}'"),
        (HEAD + ".entry k()\n{\n add.u32 %r1, 12z, %r2;\n}", 6, "expected an integer"),
        (HEAD + ".entry k()\n{\n bra NOWHERE;\n}", 6, "NOWHERE"),
        (HEAD + ".entry k()\n{\nA: ret;\nA: ret;\n}", 7, "declared twice"),
        (HEAD + ".entry k(.param .u32)\n{ ret; }", 4, "expected a parameter"),
    ],
)
def test_malformed_text_says_where_and_what_was_expected(text, line, words):
    with pytest.raises(PtxSyntaxError, match=words) as caught:
        parse(text)
    assert caught.value.line == line
    assert f"line {line}" in str(caught.value)


def test_functions_have_names_of_their_own():
    module = parse(
        HEAD + ".visible .func (.param .align 8 .b8 r[12]) f (.reg .b32 %r1, .param .b64 p)\n{\n.reg .b32 %r2;\n"
        "L: mov.u32 %r2, %r1;\n}\n.entry k() { .reg .b32 %r1; L: mov.u32 %r1, 1; ret; }\n.alias g, f;"
    )
    function = module.functions["f"]
    assert (function.params, function.results) == ((Register("%r1@f"), Symbol("p@f")), (Symbol("r@f"),))
    assert (function.variables["r@f"].size, function.variables["r@f"].align) == (12, 8)
    assert [(i.opcode, i.line) for i in function.instructions] == [("mov", 7), ("ret", 8)]
    assert set(function.registers) | set(function.labels) == {"%r1@f", "%r2@f", "L@f"}
    assert set(module.entries["k"].labels) == {"L"}
    assert module.aliases == {"g": "f"}


def test_calls_have_results_a_function_and_arguments():
    entry = body(
        ".reg .b32 %r<4>;\ncall.uni (%r1, %r2), f, (%r3, 4);\ncall f;\ncall f, ();\ncall (%r1),\n%r2, (%r3), proto;"
    )
    assert [i.operands for i in entry.instructions] == [
        (Vector((Register("%r1"), Register("%r2"))), Symbol("f"), Vector((Register("%r3"), Immediate(4)))),
        (Vector(()), Symbol("f"), Vector(())),
        (Vector(()), Symbol("f"), Vector(())),
        (Vector((Register("%r1"),)), Register("%r2"), Vector((Register("%r3"),)), Symbol("proto")),
    ]


def test_compilers_may_leave_out_the_space_after_reg():
    entry = body(".reg.b32 lo, hi;\n.reg .v2 .b32 pair;\nmov.b32 lo, hi;")
    assert entry.instructions[0].operands == (Register("lo"), Register("hi"))


def test_initial_values_that_are_addresses():
    module = parse(
        HEAD
        + ".global .u32 a;\n.const .align 8 .u64 table[4] = {generic(a), 7, generic(a)+12, a};\n.entry k() { ret; }"
    )
    table = module.variables["table"]
    assert table.data == bytes(8) + b"\7".ljust(24, b"\0")
    relocations = [
        (each.offset, each.size, each.name, each.addend, each.generic, each.line) for each in table.relocations
    ]
    assert relocations == [(0, 8, "a", 0, True, 5), (16, 8, "a", 12, True, 5), (24, 8, "a", 0, False, 5)]
    with pytest.raises(UnsupportedInstruction, match=r"line 4: the initial value mask\(a\) is not modelled"):
        parse(HEAD + ".global .u32 a;.global .u8 low = mask(a);")


def test_sizes_in_octal_and_sizes_that_are_none():
    entry = body(".shared .align 4 .b8 octal[064];\nret;")
    assert entry.variables["octal"].size == 52
    with pytest.raises(PtxSyntaxError, match="expected an integer"):
        body(".shared .align 4 .b8 broken[6q];\nret;")
