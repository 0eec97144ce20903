"""Reading SASS: functions, classes, the main loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdpalab.compile import Cache, build, disassemble, sass
from sdpalab.compile.sass import SassInstruction, analyse, classify, main_loop, parse
from sdpalab.kernels.plan import Module
from warpsan.build.tools import run_tool

LISTING = """
        .other          one,@"STO_CUDA_ENTRY STV_DEFAULT"
.text.one:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
.L_x_0:
.L_x_2:
        /*0020*/              @!P0 SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R3 ;
        /*0030*/               @P0 BRA `(.L_x_2) ;
        /*0040*/             @!UP1 FFMA R4, R8, R10, R4 ;
        /*0050*/              @!P1 BRA `(.L_x_1);
        /*0060*/                   STL.64 [R1+0x8], R2 ;
        /*0070*/                   EXIT ;
.L_x_3:
        /*0080*/                   BRA `(.L_x_3);
        /*0090*/                   NOP;
.L_x_4:
.text.two:
.L_x_5:
        /*0000*/                   LDL R1, [R1] ;
        /*0010*/                   BRA `(.L_x_5) ;
"""


def test_parse_functions_labels_and_predicates() -> None:
    functions = parse(LISTING)
    assert list(functions) == ["one", "two"]
    one = functions["one"]
    assert [instruction.base for instruction in one[:4]] == ["MOV", "HMMA", "SYNCS", "BRA"]
    assert one[1] == SassInstruction(0x10, "HMMA.16816.F32", operands="R4, R8, R10, R4")
    assert [instruction.guarded for instruction in one[2:6]] == [True, True, True, True]
    assert not one[8].guarded
    assert (one[3].target, one[5].target, one[8].target) == (0x20, 0x10, 0x80)
    assert functions["two"][1].target == 0


def test_an_inlined_instruction_has_the_lines_of_its_calls() -> None:
    place = '//## File "/include/ptx/sm80.cuh", line 35 inlined at "/include/tile/swizzle.cuh", line 83'
    call = '//## File "/include/tile/swizzle.cuh", line 83 inlined at "/flash.cu", line 106'
    text = f"""
.text.one:
\t{place}
\t{call}
\t//## File "/flash.cu", line 106
        /*0000*/                   LDGSTS.E.BYPASS.128 [R1], [R2.64] ;
\t//## File "/flash.cu", line 106
        /*0010*/                   MOV R1, R2 ;
        /*0020*/                   EXIT ;
"""
    copy, move, exit_ = parse(text)["one"]
    assert copy.frames == ("sm80.cuh:35:0", "swizzle.cuh:83:0", "flash.cu:106:0")
    assert copy.source == "sm80.cuh:35"
    assert move.frames == exit_.frames == ("flash.cu:106:0",)


def test_main_loop_is_the_smallest_with_the_tensor_work() -> None:
    loop = main_loop(parse(LISTING)["one"])
    assert [instruction.address for instruction in loop] == [0x10, 0x20, 0x30, 0x40, 0x50]


def test_main_loop_falls_back_to_ffma_and_to_none() -> None:
    def code(*opcodes: str) -> list[SassInstruction]:
        return [SassInstruction(16 * n, opcode) for n, opcode in enumerate(opcodes)]

    straight = code("FFMA", "FFMA", "EXIT")
    assert main_loop(straight) == ()
    two_loops = code("MOV", "MUFU", "BRA", "FFMA", "BRA", "EXIT")
    two_loops[2], two_loops[4] = (replace(two_loops[at], target=to, guarded=True) for at, to in ((2, 0), (4, 48)))
    assert [instruction.address for instruction in main_loop(two_loops)] == [48, 64]


MOVED_SPIN = """
.text.hopper:
        /*0000*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R3 ;
        /*0010*/              @!P0 BRA `(.L_spin_1) ;
.L_back_1:
        /*0020*/                   HGMMA.64x64x16.F32 R24, gdesc[UR8], RZ, !UPT ;
.L_loop:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R3 ;
        /*0040*/              @!P0 BRA `(.L_spin_2) ;
.L_back_2:
        /*0050*/                   HGMMA.64x64x16.F32 R24, gdesc[UR8], R24 ;
        /*0060*/                   BSSY B0, `(.L_join) ;
        /*0070*/               @P2 BRA `(.L_leave) ;
        /*0080*/                   MUFU.EX2 R4, R4 ;
        /*0090*/                   BSYNC B0 ;
.L_leave:
        /*00a0*/                   EXIT ;
.L_join:
        /*00b0*/                   BRA P1, `(.L_loop) ;
        /*00c0*/                   HGMMA.64x64x16.F32 R24, gdesc[UR8], R24 ;
        /*00d0*/                   EXIT ;
.L_spin_1:
        /*00e0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R3 ;
        /*00f0*/              @!P0 BRA `(.L_spin_1) ;
        /*0100*/                   BRA `(.L_back_1) ;
.L_spin_2:
        /*0110*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R3 ;
        /*0120*/              @!P0 BRA `(.L_spin_2) ;
        /*0130*/                   BRA `(.L_back_2) ;
"""


def test_a_spin_that_was_moved_behind_the_kernel_and_comes_back_makes_no_loop() -> None:
    text = MOVED_SPIN
    for number, name in enumerate(("spin_1", "spin_2", "back_1", "back_2", "loop", "leave", "join")):
        text = text.replace(f"L_{name}", f"L_x_{number}")
    loop = main_loop(parse(text)["hopper"])
    assert [instruction.address for instruction in loop] == [0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xB0]


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        ("HMMA.16816.F32", "HMMA"),
        ("HGMMA.64x64x16.F32", "HGMMA"),
        ("UTCHMMA.2CTA", "UTCMMA"),
        ("LDSM.16.MT88.4", "LDSM"),
        ("LDGSTS.E.BYPASS.128", "LDGSTS"),
        ("MUFU.EX2", "MUFU"),
        ("FFMA.FTZ", "FFMA"),
        ("FMUL", "FADD/FMUL"),
        ("IMAD.MOV.U32", "move"),
        ("IMAD.WIDE", "integer"),
        ("BAR.SYNC.DEFER_BLOCKING", "BAR"),
        ("BRA", "control"),
        ("XYZZY", "other"),
    ],
)
def test_classes(opcode: str, name: str) -> None:
    assert classify(opcode) == name


@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_a_tensor_kernel_on_each_generation(tensor: Module, arch: str) -> None:
    report = analyse(build(tensor, arch))
    assert "other" not in report.sass
    assert report.sass["HMMA"] >= report.main_loop["HMMA"] >= 2
    assert report.sass["STS"] >= 1
    assert report.sass["BAR"] >= 1
    assert report.tensor_share == report.main_loop["HMMA"] / sum(report.main_loop.values())
    assert sum(report.main_loop.values()) < sum(report.sass.values())
    assert report.local_bytes == 0


def test_disassembly_is_cached(scale: Module, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = build(scale, cache=cache)
    first = disassemble(compiled, cache)

    def refuse(*arguments: object) -> None:
        raise AssertionError("disassembled again")

    monkeypatch.setattr(sass, "run_tool", refuse)
    assert disassemble(compiled, cache) == first
    assert "EXIT" in first


DENSE_SWITCH = """
extern "C" __global__ void dense(float* out, int which) {
    float x = out[threadIdx.x];
    switch (which) {
        case 0: x *= x; out[1] = x; break;
        case 1: x = sqrtf(x); out[2] = x; break;
        case 2: x = __expf(x); out[3] = x; break;
        case 3: x -= 7; out[4] = x; break;
        case 4: x /= 3; out[5] = x; break;
        case 5: x = __sinf(x); out[6] = x; break;
        case 6: x += out[5]; out[7] = x; break;
        case 7: x = -x; out[8] = x; break;
    }
    out[threadIdx.x] = x;
}
"""
"""It becomes an indirect branch."""


@pytest.mark.parametrize("indirect", [False, True])
def test_the_text_is_that_of_nvdisasm_with_its_analysis(scale: Module, cache: Cache, indirect: bool) -> None:
    built = build(Module("dense.cu", DENSE_SWITCH, "dense") if indirect else scale, cache=cache)
    text = disassemble(built, cache)
    assert text == run_tool("nvdisasm", ("-c", "-hex", "-gi"), built.cubin)
    assert ("BRANCH_TARGETS" in text) is indirect
