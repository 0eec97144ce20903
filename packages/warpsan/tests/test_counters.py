"""Counters against values derived from the addresses: sectors, wavefronts, mix, FLOPs, divergence."""

import json

import numpy as np
import pytest

import warpsan
from warpsan.profile.counters import wavefronts

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"


def counted(body: str, grid=1, threads=32):
    text = (
        HEAD
        + ".entry k(.param .u64 p)\n{\n.reg .b32 %r<60>; .reg .b64 %rd<9>; .reg .pred %p<9>; .reg .f32 %f<9>;\n"
        + ".shared .align 16 .b8 buf[32768];\nld.param.u64 %rd1, [p];\nmov.u32 %r0, %tid.x;\n"
        + body
        + "\nret;\n}\n"
    )
    data = np.zeros(1 << 16, np.uint32)
    counters = warpsan.launch(text, "k", grid, threads, [data], checks=(), counters=True).counters
    assert counters is not None
    return counters


def strided(bytes_apart: int, shape: str = "u32", register: str = "%r5") -> str:
    return f"mul.wide.u32 %rd2, %r0, {bytes_apart}; add.u64 %rd3, %rd1, %rd2;\nld.global.{shape} {register}, [%rd3];"


@pytest.mark.parametrize(("apart", "sectors"), [(4, 4), (8, 8), (32, 32), (64, 32), (0, 1)])
def test_sectors_of_a_strided_load(apart, sectors):
    counters = counted(strided(apart))
    assert counters.total("sectors") == sectors
    assert counters.total("ideal_sectors") == (4 if apart else 1)


def test_vector_loads_that_lie_together_are_ideal():
    counters = counted(strided(16, "v4.u32", "{%r5, %r6, %r7, %r8}"), threads=64, grid=3)
    assert counters.total("sectors") == counters.total("ideal_sectors") == 3 * 2 * 16
    assert counters.compulsory_read_bytes == 1024
    assert counters.compulsory_write_bytes == 0


@pytest.mark.parametrize(("apart", "passes"), [(4, 1), (8, 2), (16, 4), (128, 32), (132, 1), (0, 1)])
def test_bank_conflicts_of_a_strided_store(apart, passes):
    counters = counted(f"mul.lo.u32 %r1, %r0, {apart};\nst.shared.u32 [%r1], %r0;")
    assert counters.total("wavefronts") == passes
    assert counters.total("ideal_wavefronts") == 1


def test_wide_accesses_are_served_in_phases():
    lane = np.arange(32)
    zero = np.zeros(32, dtype=np.int64)
    assert wavefronts(zero, lane, lane * 8, 8) == 2
    assert wavefronts(zero, lane, lane * 16, 16) == 4
    assert wavefronts(zero, lane, lane * 128, 16) == 32
    assert wavefronts(zero, lane, lane * 144, 16) == 4  # a padded row


def test_rows_of_128_bytes_conflict_eight_times_in_ldmatrix_and_not_at_all_with_a_swizzle():
    rows = "and.b32 %r1, %r0, 31; shl.b32 %r2, %r1, 7;\n"
    load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5, %r6, %r7, %r8}, [%r2];"
    swizzle = "and.b32 %r3, %r0, 7; shl.b32 %r3, %r3, 4; xor.b32 %r2, %r2, %r3;\n"
    plain, swizzled = counted(rows + load), counted(rows + swizzle + load)
    assert plain.total("wavefronts", "shared") == 8 * plain.total("ideal_wavefronts", "shared")
    assert swizzled.total("wavefronts", "shared") == swizzled.total("ideal_wavefronts", "shared") == 4


def test_mix_flops_exponentials_and_barriers():
    vector = "{%r10, %r11, %r12, %r13}"
    body = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {vector}, {vector}, {{%r10, %r11}}, {vector};\n"
        "ex2.approx.ftz.f32 %f1, %f2;\nbar.sync 0;\nadd.f32 %f1, %f1, %f2;"
    )
    counters = counted(body, grid=5, threads=64)
    assert counters.tensor_flops == 10 * 2 * 16 * 8 * 16
    assert counters.exponentials == 5 * 64
    assert counters.barriers == 10
    mix = counters.mix()
    assert (mix["tensor"], mix["special"], mix["float"], mix["barrier"]) == (10, 10, 10, 10)


def test_divergence_is_the_share_of_lanes_switched_off():
    assert counted("add.u32 %r1, %r0, 1;").divergence == 0
    many = "add.u32 %r1, %r1, 1;\n" * 100
    half = counted(f"setp.lt.u32 %p1, %r0, 16;\n@%p1 bra OUT;\n{many}OUT:")
    assert 0.4 < half.divergence < 0.5


def test_the_work_of_each_cta_is_what_its_warps_issue():
    """Two warps per CTA; the first warp of each odd CTA issues 100 more, and the chunk's lanes diverge."""
    more = "add.u32 %r1, %r1, 1;\n" * 100
    body = "mov.u32 %r2, %ctaid.x; and.b32 %r2, %r2, 1; setp.gt.u32 %p1, %r2, 0; setp.lt.and.u32 %p2, %r0, 32, %p1;\n"
    counters = counted(body + f"@!%p2 bra OUT;\n{more}OUT:", grid=5, threads=64)
    even, odd = counters.by_cta[:2]
    assert odd == even + 100
    assert counters.by_cta == [even, odd, even, odd, even]
    assert sum(counters.by_cta) == counters.total("warps")


def test_half_a_warp_issues_as_a_whole_one():
    counters = counted("setp.lt.u32 %p1, %r0, 48;\n@!%p1 bra OUT;\nadd.u32 %r1, %r1, 1;\nOUT:", grid=2, threads=64)
    assert len(set(counters.by_cta)) == 1
    assert sum(counters.by_cta) == counters.total("warps")


def test_the_listing_names_source_lines_and_conflicts_and_the_dict_is_json():
    counters = counted(".loc 1 12 1\nshl.b32 %r1, %r0, 7;\n.loc 1 13 1\nst.shared.u32 [%r1], %r0;")
    text = counters.listing()
    assert "32.00x" in text
    assert json.loads(json.dumps(counters.to_dict()))["mix"]["shared"] == 1


def test_a_pattern_that_moves_by_less_than_a_sector_is_measured_again():
    """Earlier access patterns must not affect later ones: aligned, then shifted by 16 bytes, then descending."""
    loads = "mul.wide.u32 %rd2, %r0, 4; add.u64 %rd3, %rd1, %rd2;\n" + "".join(
        f"ld.global.u32 %r5, [%rd3+{shift}];\n" for shift in (256, 272, 512)
    )
    down = "mul.wide.s32 %rd4, %r0, -4; add.u64 %rd5, %rd1, %rd4;\nld.global.u32 %r6, [%rd5+1024];"
    counters = counted(loads + down, threads=64, grid=2)
    assert [each.sectors for each in counters.by_instruction if each.pipe == "global"] == [16, 20, 16, 20]
