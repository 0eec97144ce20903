"""Cache instructions: values stay, operands are checked, and discard leaves poison."""

import numpy as np
import pytest

import warpsan
from ptx_snippets import run

VALUES = list(range(100))
REGISTERS = ".reg .b64 %policy, %at; .reg .b32 %w<4>;"
CREATE = "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %policy, 0.5;"


@pytest.mark.parametrize(
    "body",
    [
        f"{CREATE} ld.global.L1::no_allocate.L2::cache_hint.L2::128B.u32 %d, [%addr], %policy;",
        f"{CREATE} ld.global.nc.L2::cache_hint.v2.u32 {{%d, %w1}}, [%addr], %policy;",
        f"{CREATE} atom.global.add.L2::cache_hint.u32 %d, [%addr], 0, %policy;",
        f"{CREATE} st.global.L2::cache_hint.u32 [%addr], %a, %policy; ld.global.u32 %d, [%addr];",
        f"{CREATE} red.global.or.L2::cache_hint.b32 [%addr], 0, %policy; ld.global.u32 %d, [%addr];",
        "createpolicy.range.global.L2::evict_first.b64 %policy, [%addr], 4096, 8192; ld.global.u32 %d, [%addr];",
        "mov.b64 %at, 7; createpolicy.cvt.L2.b64 %policy, %at; ld.global.u32 %d, [%addr];",
        "createpolicy.fractional.L2::evict_normal.b64 %policy; ld.global.u32 %d, [%addr];",
        "prefetch.global.L2 [%addr]; prefetch.L1 [%addr]; prefetchu.L1 [%addr]; ld.global.u32 %d, [%addr];",
        "prefetch.global.L2::evict_last [%addr]; prefetch.tensormap [%addr]; pmevent 3; ld.global.u32 %d, [%addr];",
    ],
)
def test_no_value_changes(body):
    """``%addr`` is the address of an input value, independent of the snippet's own use of it."""
    load = (
        "ld.param.u64 %addr, [p_a]; mul.wide.u32 %wide, %i, 8; add.u64 %addr, %addr, %wide; ld.global.u32 %w0, [%addr];"
    )
    (d,) = run(
        f"{load} cvt.u32.u64 %a32, %a; {body.replace('%a,', '%a32,')}",
        {"d": "u32"},
        registers=REGISTERS + ".reg .b32 %a32;",
        a=("u64", VALUES),
    )
    assert d.tolist() == VALUES


def kernel(body):
    return (
        ".version 8.7\n.target sm_90\n.address_size 64\n.entry k(.param .u64 p)\n"
        "{ .reg .b64 %a, %q, %w; .reg .b32 %t, %r;\n"
        "mov.u32 %t, %tid.x; ld.param.u64 %a, [p]; mul.wide.u32 %w, %t, 128; add.u64 %w, %w, %a;\n"
        f"{body}\nret; }}\n"
    )


def test_discarded_lines_hold_nothing_to_rely_on():
    """Two of four 128-byte lines are discarded; the second is rewritten."""
    data = np.arange(128, dtype=np.uint32)
    body = (
        "add.u64 %w, %w, 128; discard.global.L2 [%w], 128; add.u64 %q, %a, 256; st.global.u32 [%q], 5;\n"
        "applypriority.global.L2::evict_normal [%a], 128;"
    )
    assert warpsan.launch(kernel(body), "k", 1, 2, [data]).hazards == []
    want = np.arange(128, dtype=np.uint32)
    want[32:96] = 0xFFFFFFFF
    want[64] = 5
    np.testing.assert_array_equal(data, want)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("discard.global.L2 [%a+64], 128;", "misaligned"),
        ("discard.L2 [%a+512], 128;", "out-of-bounds"),
        ("applypriority.L2::evict_normal [%a+8], 128;", "misaligned"),
        ("applypriority.global.L2::evict_normal [%a+512], 128;", "out-of-bounds"),
    ],
)
def test_lines_that_are_not_there_are_reported(line, kind):
    report = warpsan.launch(kernel(line), "k", 1, 1, [np.zeros(128, np.uint32)])
    assert [hazard.kind for hazard in report.hazards] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        "discard.global.L2 [%a], 64;",
        "discard.global.L1 [%a], 128;",
        "applypriority.global.L2::evict_last [%a], 128;",
        "prefetch.shared.L1 [%a];",
        "prefetch.global.L3 [%a];",
        "prefetchu.L2 [%a];",
        "prefetch.global.L1 %a;",
        "createpolicy.fractional.b64 %q, 1.0;",
        "createpolicy.range.L2::evict_last.b64 %q, [%a], 16;",
        "createpolicy.cvt.L2.b64 %q;",
        "createpolicy.fractional.L2::evict_last.b64 %r;",
        "ld.global.L2::cache_hint.u32 %r, [%a], %t;",
        "ld.global.L2::cache_hint.u32 %r, [%a];",
        "ld.global.u32 %r, [%a], %q;",
        "st.global.u32 [%a], %r, %q;",
        "pmevent %r;",
        "mov.u32 %r, %clock64;",
        "add.u32 %r, %clock, 1;",
        "mov.u64 %q, %globaltimer_lo;",
        "mov.u32 %r, %smid;",
    ],
)
def test_other_forms_are_refused_with_their_line(line):
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"PTX line 7: "):
        warpsan.launch(kernel(line), "k", 1, 32, [np.zeros(128, np.uint32)])


def test_registers_without_a_value_say_why():
    for name, why in (("%pm0", "no time"), ("%smid", "SMs")):
        with pytest.raises(warpsan.UnsupportedInstruction, match=f"register {name} is not modelled: .*{why}"):
            warpsan.launch(kernel(f"mov.u64 %q, {name};"), "k", 1, 32, [np.zeros(128, np.uint32)])
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"%nsmid is not modelled: .*SMs"):
        warpsan.launch(kernel("mov.u32 %r, %nsmid;"), "k", 1, 32, [np.zeros(128, np.uint32)])
