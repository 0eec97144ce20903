"""cp.async: data become visible only after a wait."""

import numpy as np
import pytest

import warpsan

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"


def kernel(body: str) -> str:
    return (
        HEAD
        + ".entry k(.param .u64 a, .param .u64 b, .param .u32 n)\n{\n.reg .b32 %r<9>;\n"
        + ".reg .b64 %rd<9>; .reg .pred %p;\n"
        + ".shared .align 16 .b8 buf[2048];\nld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u32 %r8, [n];\n"
        + "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mul.wide.u32 %rd3, %r1, 16;\n"
        + "add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;\n"
        + body
        + "\nld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r2];\nst.global.v4.u32 [%rd5], {%r3, %r4, %r5, %r6};\nret;\n}\n"
    )


def run(body, n=0, **options):
    a, b = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    report = warpsan.launch(kernel(body), "k", 1, 32, [a, b, n], **options)
    return report, b


COPY = "cp.async.cg.shared.global [%r2], [%rd4], 16;"
MORE = "cp.async.cg.shared.global [%r2+512], [%rd4], 16;"


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("wait", ["cp.async.commit_group; cp.async.wait_group 0;", "cp.async.wait_all;"])
def test_data_are_there_after_the_wait(wait, mode):
    report, b = run(COPY + wait, async_mode=mode)
    assert report.hazards == []
    assert (b == np.arange(128)).all()


@pytest.mark.parametrize(
    "wait",
    [
        "",
        "cp.async.commit_group;",
        "cp.async.wait_group 0;",  # not committed, so not in an awaited group
        f"cp.async.commit_group; {MORE} cp.async.commit_group; cp.async.wait_group 2;",
    ],
)
def test_without_the_right_wait_the_data_are_poison_and_reported(wait):
    report, b = run(COPY + wait)
    assert {hazard.kind for hazard in report.hazards} == {"async"}
    assert (b == 0xFFFFFFFF).all()
    assert (run(COPY + wait, async_mode="early")[1] == np.arange(128)).all()


def test_waiting_for_all_but_the_last_group():
    report, b = run(f"{COPY} cp.async.commit_group; {MORE} cp.async.commit_group; cp.async.wait_group 1;")
    assert report.hazards == []
    assert (b == np.arange(128)).all()


def test_lanes_that_commit_differently_are_kept_apart():
    body = (
        "setp.lt.u32 %p, %r1, 16;\n"
        f"{COPY} cp.async.commit_group;\n@%p bra SKIP;\n{MORE} cp.async.commit_group;\nSKIP: cp.async.wait_group 1;"
    )
    _, b = run(body)
    assert (b[:64] == 0xFFFFFFFF).all()
    assert (b[64:] == np.arange(64, 128)).all()


def test_source_size_fills_with_zeros_and_reads_no_further():
    body = "mov.u32 %r7, %r8;\ncp.async.cg.shared.global [%r2], [%rd4], 16, %r7;\ncp.async.wait_all;"
    assert (run(body, n=0)[1] == 0).all()
    half = run(body, n=8)[1].reshape(-1, 4)
    assert (half[:, :2] == np.arange(128).reshape(-1, 4)[:, :2]).all()
    assert (half[:, 2:] == 0).all()
    far = "add.u64 %rd4, %rd4, 100000;\ncp.async.cg.shared.global [%r2], [%rd4], 16, %r8;\ncp.async.wait_all;"
    assert run(far, n=0)[0].hazards == []
    assert run(far, n=4)[0].hazards[0].kind == "out-of-bounds"


def test_a_source_beyond_the_end_is_reported():
    report, _ = run("cp.async.cg.shared.global [%r2], [%rd4+16], 16; cp.async.wait_all;")
    assert report.hazards[0].kind == "out-of-bounds"
    assert report.hazards[0].thread == (31, 0, 0)


@pytest.mark.parametrize("before", [60, 100])
@pytest.mark.parametrize("left", [0, 40])
def test_many_copies_in_flight(before, left):
    """A warp has at most 255 copies in flight; awaited copies do not count."""
    after = 255 - left
    copy = "cp.async.ca.shared.global [%r1+{0}], [%rd1+{0}], 16; cp.async.commit_group;"
    copies = [copy.format(16 * k) for k in range(before + after)]
    wait = f"cp.async.wait_group {left};"
    words = [f"ld.shared.u32 %r2, [%r1+{16 * k}]; st.global.u32 [%rd2+{4 * k}], %r2;" for k in range(before + after)]

    def launch(copies, wait):
        lines = "\n".join((*copies[:before], wait, *copies[before:], "cp.async.wait_all;", *words))
        ptx = f"""{HEAD}.entry k(.param .u64 a, .param .u64 b) {{ .reg .b32 %r<3>; .reg .b64 %rd<3>;
        .shared .align 16 .b8 s[{16 * len(copies)}]; mov.u32 %r1, s; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
        {lines} ret; }}"""
        a, b = np.arange(4 * len(copies), dtype=np.uint32), np.zeros(len(copies), np.uint32)
        assert warpsan.launch(ptx, "k", 1, 1, [a, b]).hazards == []
        assert (b == a[::4]).all()

    launch(copies, wait)
    with pytest.raises(warpsan.SimError, match="too many in flight"):
        launch(copies, "")
