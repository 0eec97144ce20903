"""Orders weaker by one step, which the simulator detects."""

import numpy as np
import pytest

import warpsan
from lab.weakening import weaker, with_text
from warpsan.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
COUNT = """.entry k(.param .u64 p, .param .u64 f)
{
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<5>;
ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [f]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x;
mul.wide.u32 %rd3, %r1, 4; add.u64 %rd4, %rd1, %rd3;
setp.ne.u32 %p1, %r2, 0; @%p1 bra END;
st.global.u32 [%rd4+4], %r1;
atom.acq_rel.gpu.global.add.u32 %r3, [%rd2], 1;
setp.ne.u32 %p2, %r3, 1; @%p2 bra END;
ld.global.u32 %r4, [%rd1+4]; ld.global.u32 %r5, [%rd1+8]; add.u32 %r6, %r4, %r5; st.global.u32 [%rd1], %r6;
END: ret;
}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "atom.acq_rel.gpu.global.inc.u32 %r1, [%rd1], 3;",
            {f"atom.{each}.global.inc.u32" for each in ("acquire.gpu", "release.gpu", "acq_rel.cluster")},
        ),
        ("atom.global.add.u32 %r1, [%rd1], 3;", {"atom.relaxed.cta.global.add.u32"}),
        ("red.async.relaxed.cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [%r3];", set()),
        ("ld.acquire.sys.global.u32 %r1, [%rd1];", {"ld.relaxed.sys.global.u32", "ld.acquire.gpu.global.u32"}),
        ("ld.relaxed.gpu.global.u32 %r1, [%rd1];", {"ld.relaxed.cluster.global.u32", "ld.global.u32"}),
        ("ld.global.u32 %r1, [%rd1];", set()),
        ("st.release.cta.global.u32 [%rd1], %r1;", {"st.relaxed.cta.global.u32"}),
        ("st.volatile.shared.u32 [%rd1], %r1;", {"st.shared.u32"}),
        ("fence.sc.gpu;", {"fence.acq_rel.gpu", "fence.sc.cluster"}),
        ("fence.acq_rel.cta;", {"fence.acquire.cta", "fence.release.cta"}),
        ("fence.proxy.async;", set()),
        ("fence.mbarrier_init.release.cluster;", set()),
        ("membar.gl;", {"membar.cta", "fence.acq_rel.gpu"}),
        ("membar.cta;", {"fence.acq_rel.cta"}),
        ("barrier.cluster.arrive.aligned;", {"barrier.cluster.arrive.relaxed.aligned"}),
        ("barrier.cluster.arrive.release.aligned;", {"barrier.cluster.arrive.relaxed.aligned"}),
        ("barrier.cluster.wait.acquire.aligned;", set()),
        ("mbarrier.arrive.shared::cta.b64 _, [%r1];", {"mbarrier.arrive.relaxed.cta.shared::cta.b64"}),
        (
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r2;",
            {"mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64"},
        ),
        (
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];",
            {"mbarrier.arrive.relaxed.cluster.shared::cluster.b64", "mbarrier.arrive.release.cta.shared::cluster.b64"},
        ),
        ("mbarrier.arrive.noComplete.shared.b64 %rd1, [%r1], 2;", set()),
        ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 2;", set()),
        (
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], 0;",
            {
                "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64",
                "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64",
            },
        ),
        ("mbarrier.test_wait.shared.b64 %p1, [%r1], %rd1;", {"mbarrier.test_wait.relaxed.cta.shared.b64"}),
    ],
)
def test_one_step(text, expected):
    registers = ".reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<2>;\n"
    module = parse(HEAD + ".entry k()\n{\n" + registers + text + "\nret;\n}\n")
    assert set(weaker(module.entries["k"].instructions[0])) == expected


def test_every_step_of_a_counter_is_noticed():
    """The merge of split keys: blocks count themselves in, and the last one reads what all have left."""
    ptx = HEAD + COUNT

    def kinds(text):
        arrays = [np.zeros(8, np.uint32), np.zeros(1, np.uint32)]
        return {hazard.kind for hazard in warpsan.launch(text, "k", 2, 32, arrays).hazards}

    assert kinds(ptx) == set()
    counter = next(each for each in parse(ptx).entries["k"].instructions if each.opcode == "atom")
    mutants = [with_text(ptx, counter, text) for text in weaker(counter)]
    assert len(mutants) == 3
    assert all(kinds(mutant) == {"race"} for mutant in mutants)
    assert all(len(mutant.split("\n")) == len(ptx.split("\n")) for mutant in mutants)
