"""Exchange between lanes, against the manual's pseudo-code: whole warps, partial warps, and mixed masks."""

import random

import numpy as np
import pytest

import warpsan

FULL = 0xFFFFFFFF
POISON = 0xFFFFFFFF
WARPS = 3


def launch(body, results, *, inputs=(), block=32 * WARPS, checks=("memory",)):
    """Run a body in one block; thread t reads ``%a`` (and ``%b``...) at t, and writes the 32-bit results at t.

    ``%mine`` is the lane, ``%even`` whether it is even, ``%low`` whether it is below 16.
    """
    names = "abcd"[: len(inputs)]
    lines = [
        ".reg .b64 %addr, %wide; .reg .b32 %t, %mine, %bit, %x<8>; .reg .pred %even, %low, %p<8>;",
        "mov.u32 %t, %tid.x; mul.wide.u32 %wide, %t, 4; and.b32 %mine, %t, 31; and.b32 %bit, %t, 1;",
        "setp.eq.u32 %even, %bit, 0; setp.lt.u32 %low, %mine, 16;",
        *(f".reg .b32 %{name};" for name in (*names, *results)),
    ]
    for name in names:
        lines += [f"ld.param.u64 %addr, [{name}]; add.u64 %addr, %addr, %wide; ld.global.b32 %{name}, [%addr];"]
    lines += [f"mov.b32 %{name}, 0x7777;" for name in results]
    lines += [body]
    for name in results:
        lines += [f"ld.param.u64 %addr, [{name}]; add.u64 %addr, %addr, %wide; st.global.b32 [%addr], %{name};"]
    parameters = ", ".join(f".param .u64 {name}" for name in (*names, *results))
    text = "\n".join([*lines, "ret;"])
    ptx = f".version 8.7\n.target sm_90\n.address_size 64\n.visible .entry k({parameters})\n{{\n{text}\n}}\n"
    out = [np.zeros(block, np.uint32) for _ in results]
    arrays = [np.array([int(v) & FULL for v in values], np.uint32) for values in inputs]
    report = warpsan.launch(ptx, "k", 1, block, [*arrays, *out], checks=checks)
    return [array.tolist() for array in out], report.hazards


def draw(count=32 * WARPS, bits=32, seed=1):
    source = random.Random(seed)
    return [source.getrandbits(bits) for _ in range(count)]


def shuffled(mode, lane, b, c):
    """The lane read and the predicate (PTX ISA, "shfl.sync", semantics)."""
    bval, cval, mask = b & 31, c & 31, c >> 8 & 31
    max_lane = (lane & mask) | (cval & ~mask & 31)
    min_lane = lane & mask
    if mode == "up":
        j = lane - bval
        valid = j >= max_lane
    else:
        j = {"down": lane + bval, "bfly": lane ^ bval, "idx": min_lane | (bval & ~mask & 31)}[mode]
        valid = j <= max_lane
    return (j if valid else lane), valid


CLAMPS = {"up": (0, 0x1800), "down": (31, 0x1807), "bfly": (31, 0x101F), "idx": (31, 0x1C1F)}


@pytest.mark.parametrize(("mode", "c"), [(mode, c) for mode, clamps in CLAMPS.items() for c in clamps])
def test_shfl_of_whole_warps(mode, c):
    a = draw()
    for b in (0, 1, 3, 8, 16, 31):
        body = f"""shfl.sync.{mode}.b32 %d|%p1, %a, {b}, {c}, -1; selp.u32 %e, 1, 0, %p1;
            shfl.sync.{mode}.b32 %f, %a, {b}, {c}, 0xffffffff;
            mov.b32 %x1, {b}; mov.b32 %x2, {c}; mov.b32 %x3, -1; shfl.sync.{mode}.b32 %h, %a, %x1, %x2, %x3;
            shfl.sync.{mode}.b32 %a, %a, {b}, {c}, -1; mov.b32 %g, %a;"""
        (d, e, f, g, h), hazards = launch(body, "defgh", inputs=[a])
        picks = [shuffled(mode, t % 32, b, c) for t in range(len(a))]
        expected = [a[t - t % 32 + j] for t, (j, _) in enumerate(picks)]
        assert d == f == g == h == expected
        assert e == [int(valid) for _, valid in picks]
        assert hazards == []


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl_with_operands_in_registers(mode):
    a, b = draw(), draw(seed=2)
    c = [x & 0x1F1F for x in draw(seed=3)]
    body = f"shfl.sync.{mode}.b32 %d|%p1, %a, %b, %c, -1; selp.u32 %e, 1, 0, %p1;"
    (d, e), hazards = launch(body, "de", inputs=[a, b, c])
    picks = [shuffled(mode, t % 32, b[t], c[t]) for t in range(len(a))]
    # Sources beyond the warp do not exist; the manual's j is a lane of it.
    assert d == [a[t - t % 32 + j] for t, (j, _) in enumerate(picks)]
    assert e == [int(valid) for _, valid in picks]
    assert hazards == []


def test_shfl_among_half_a_warp():
    a = draw()
    body = "@!%low bra AROUND; shfl.sync.bfly.b32 %d, %a, 5, 31, 0xffff; AROUND:"
    (d,), hazards = launch(body, "d", inputs=[a])
    assert d == [a[t ^ 5] if t % 32 < 16 else 0x7777 for t in range(len(a))]
    assert hazards == []


def test_halves_of_a_warp_exchange_at_one_instruction_under_their_own_masks():
    a = draw()
    body = """selp.b32 %x1, 0x0000ffff, 0xffff0000, %low; shfl.sync.down.b32 %d, %a, 1, 0x101f, %x1;
        redux.sync.add.u32 %e, %a, %x1; setp.lt.s32 %p1, %a, 0; vote.sync.ballot.b32 %f, %p1, %x1;"""
    (d, e, f), hazards = launch(body, "def", inputs=[a])
    assert hazards == []
    for t in range(len(a)):
        half = range(t - t % 16, t - t % 16 + 16)
        assert d[t] == (a[t + 1] if t + 1 in half else a[t])
        assert e[t] == sum(a[s] for s in half) % 2**32
        assert f[t] == sum((a[s] >> 31) << s % 32 for s in half)


def test_a_read_from_a_lane_that_did_not_come_is_reported_and_poison():
    body = "@!%low bra AROUND; shfl.sync.bfly.b32 %d, %a, 16, 31, -1; AROUND: bar.sync 0;"
    (d,), hazards = launch(body, "d", inputs=[draw()])
    assert d[:16] == [POISON] * 16
    assert [hazard.kind for hazard in hazards] == ["divergent"]
    assert "names threads 0xffff0000 too" in hazards[0].message


def test_a_read_from_outside_the_mask_is_poison():
    body = "@!%low bra AROUND; shfl.sync.idx.b32 %d, %a, 20, 31, 0xffff; AROUND:"
    (d,), hazards = launch(body, "d", inputs=[draw()])
    assert d[:16] == [POISON] * 16
    assert hazards == []


def test_a_thread_outside_its_own_mask_is_reported():
    _, hazards = launch("shfl.sync.idx.b32 %d, %a, 0, 31, 0x7fffffff;", "d", inputs=[draw()])
    assert [hazard.kind for hazard in hazards] == ["divergent"]
    assert "leaves out a thread" in hazards[0].message
    assert hazards[0].thread == (31, 0, 0)


def test_threads_that_have_exited_are_not_waited_for():
    body = """setp.gt.u32 %p1, %t, 39; @%p1 exit; redux.sync.max.u32 %d, %a, -1;
        vote.sync.all.pred %p2, %even, -1; selp.u32 %e, 1, 0, %p2;"""
    a = draw(bits=20)
    (d, e), hazards = launch(body, "de", inputs=[a])
    assert hazards == []
    assert d[:40] == [max(a[:32])] * 32 + [max(a[32:40])] * 8
    assert e[:40] == [0] * 40
    assert d[40:] == [0] * (len(a) - 40)


def test_a_block_that_does_not_fill_its_last_warp():
    a = draw(40)
    body = "shfl.sync.bfly.b32 %d, %a, 1, 31, -1; vote.sync.ballot.b32 %e, %even, -1; activemask.b32 %f;"
    (d, e, f), hazards = launch(body, "def", inputs=[a], block=40)
    assert d == [a[t ^ 1] for t in range(40)]
    assert e == [0x55555555] * 32 + [0x55] * 8
    assert f == [FULL] * 32 + [0xFF] * 8
    assert hazards == []


@pytest.mark.parametrize("mask", [FULL, 0x0000FFFF])
def test_votes(mask):
    columns = {"none": [0] * 96, "all": [1] * 96, "one": [int(t % 32 == 3) for t in range(96)], "some": draw(96, 1)}
    for values in columns.values():
        body = f"""setp.ne.u32 %p1, %a, 0; setp.ge.u32 %p7, %mine, {mask.bit_length()}; @%p7 bra AROUND;
            vote.sync.all.pred %p2, %p1, {mask}; selp.u32 %d, 1, 0, %p2;
            vote.sync.any.pred %p3, %p1, {mask}; selp.u32 %e, 1, 0, %p3;
            vote.sync.uni.pred %p4, %p1, {mask}; selp.u32 %f, 1, 0, %p4;
            vote.sync.all.pred %p5, !%p1, {mask}; selp.u32 %g, 1, 0, %p5;
            vote.sync.ballot.b32 %h, %p1, {mask}; vote.sync.ballot.b32 %i, !%p1, {mask}; AROUND:"""
        results, hazards = launch(body, "defghi", inputs=[values])
        assert hazards == []
        for t in range(96):
            got = [column[t] for column in results]
            if not mask >> t % 32 & 1:
                assert got == [0x7777] * 6
                continue
            warp = [values[t - t % 32 + k] for k in range(32) if mask >> k & 1]
            ballot = sum(v << k for k, v in enumerate(warp))
            expected = [all(warp), any(warp), all(warp) or not any(warp), not any(warp), ballot, ~ballot & mask]
            assert got == [int(x) for x in expected]


@pytest.mark.parametrize("count", [32, 16])
def test_match(count):
    mask = (1 << count) - 1
    values = [x % 5 for x in draw()[:64]] + [9] * 32
    body = f"""setp.ge.u32 %p7, %mine, {count}; @%p7 bra AROUND; match.any.sync.b32 %d, %a, {mask};
        match.all.sync.b32 %e|%p1, %a, {mask}; selp.u32 %f, 1, 0, %p1; AROUND:"""
    (d, e, f), hazards = launch(body, "def", inputs=[values])
    assert hazards == []
    for t in (t for t in range(96) if t % 32 < count):
        warp = values[t - t % 32 :][:count]
        assert d[t] == sum(1 << k for k in range(count) if warp[k] == values[t])
        same = len(set(warp)) == 1
        assert (e[t], f[t]) == (mask * same, int(same))


def test_match_of_64_bits_sees_the_upper_half():
    body = ".reg .b64 %w; mov.b64 %w, {%bit, %a}; match.any.sync.b64 %d, %w, -1;"
    values = [t // 8 for t in range(96)]
    (d,), _ = launch(body, "d", inputs=[values])
    assert d == [(0x55 << t % 2) << (t % 32 // 8 * 8) for t in range(96)]


@pytest.mark.parametrize("count", [32, 16])
def test_redux(count):
    mask = (1 << count) - 1
    values = draw()
    operations = ["add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"]
    names = "defghijkl"
    steps = "".join(f"redux.sync.{op} %{name}, %a, {mask};" for op, name in zip(operations, names, strict=True))
    body = f"setp.ge.u32 %p7, %mine, {count}; @%p7 bra AROUND; {steps} AROUND:"
    results, hazards = launch(body, names, inputs=[values])
    assert hazards == []

    def sign(x):
        return x - 2**32 if x >> 31 else x

    for t in (t for t in range(96) if t % 32 < count):
        warp = values[t - t % 32 :][:count]
        total = sum(warp) % 2**32
        conjunction, disjunction, parity = FULL, 0, 0
        for x in warp:
            conjunction, disjunction, parity = conjunction & x, disjunction | x, parity ^ x
        least, most = min(warp, key=sign), max(warp, key=sign)
        expected = [total, total, min(warp), least, max(warp), most, conjunction, disjunction, parity]
        assert [column[t] for column in results] == expected


def test_elect_has_one_leader():
    body = """elect.sync %d|%p1, -1; selp.u32 %e, 1, 0, %p1; @%low bra AROUND;
        elect.sync %f|%p2, 0xffff0000; selp.u32 %g, 1, 0, %p2;
        elect.sync _|%p3, 0xffff0000; selp.u32 %h, 1, 0, %p3; AROUND:"""
    (d, e, f, g, h), hazards = launch(body, "defgh")
    assert hazards == []
    assert d == [0] * 96
    assert e == ([1] + [0] * 31) * 3
    assert f == ([0x7777] * 16 + [16] * 16) * 3
    assert g == h == ([0x7777] * 16 + [1] + [0] * 15) * 3


def test_bar_warp_sync_brings_divergent_threads_together():
    body = """@%low bra THEN; mov.u32 %d, 1; bra JOIN; THEN: mov.u32 %d, 2; JOIN:
        bar.warp.sync -1; activemask.b32 %e;"""
    (d, e), hazards = launch(body, "de")
    assert hazards == []
    assert d == ([2] * 16 + [1] * 16) * 3
    assert e == [FULL] * 96


def test_bar_warp_sync_in_one_branch_only_is_reported():
    _, hazards = launch("@%low bra AROUND; bar.warp.sync -1; AROUND: bar.sync 0;", "d")
    assert [hazard.kind for hazard in hazards] == ["divergent"]
    assert "names threads 0x0000ffff too" in hazards[0].message


def test_what_only_orders_or_delays_changes_nothing():
    body = """fence.sc.gpu; fence.acq_rel.cta; fence.acq_rel.sys; membar.gl; membar.cta; membar.sys; nanosleep.u32 20;
        griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 %d, %a;"""
    a = draw()
    assert launch(body, "d", inputs=[a]) == ([a], [])


@pytest.mark.parametrize(
    "instruction",
    [
        "shfl.idx.b32 %d, %a, 0, 31;",
        "shfl.sync.b32 %d, %a, 0, 31, -1;",
        "shfl.sync.idx.f32 %d, %a, 0, 31, -1;",
        "vote.all.pred %p1, %even;",
        "vote.sync.ballot.pred %p1, %even, -1;",
        "match.any.sync.b32 %d|%p1, %a, -1;",
        "redux.sync.and.u32 %d, %a, -1;",
        "redux.sync.min.f32 %d, %a, -1;",
        "fence.proxy.generic;",
        "membar.gpu;",
        "elect.sync %d, -1;",
    ],
)
def test_forms_that_are_not_modelled_are_refused_with_their_line(instruction):
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"PTX line \d+: " + instruction.split()[0].strip(";")):
        launch(instruction, "d", inputs=[draw()])
