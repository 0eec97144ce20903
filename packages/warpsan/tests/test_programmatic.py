"""Programmatic dependent launches: accesses before ``griddepcontrol.wait`` race with the kernel before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import warpsan
from warpsan import Device

WAIT = "griddepcontrol.wait;"
LOAD = "ld.global.u32 %r2, [%rd1];"
STORE = "st.global.u32 [%rd2], %r2;"
BY_ONE = "@%p bra ALL; griddepcontrol.wait; ALL:"
THREADS = 64


def ptx(*body: str) -> str:
    """A kernel with the addresses of a thread's elements of two arrays, and a predicate that is false in thread 0."""
    return "\n".join(
        [
            ".version 8.0\n.target sm_90\n.address_size 64",
            ".visible .entry k(.param .u64 x, .param .u64 y) {",
            ".reg .u64 %rd<4>; .reg .u32 %r<4>; .reg .pred %p;",
            "ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;",
            "add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3; setp.ne.u32 %p, %r1, 0; mov.u32 %r2, 7;",
            *body,
            "ret; }",
        ]
    )


def races(*body: str, programmatic: bool = True, checks: Sequence[str] = warpsan.CHECKS) -> list[str]:
    """Texts of the racing accesses in a launch of one block."""
    x, y = np.arange(THREADS, dtype=np.uint32), np.zeros(THREADS, np.uint32)
    report = warpsan.launch(ptx(*body), "k", 1, THREADS, [x, y], programmatic=programmatic, checks=checks)
    assert {hazard.kind for hazard in report.hazards} <= {"race"}
    return [hazard.what.split()[0] for hazard in report.hazards]


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((WAIT, LOAD, STORE), []),
        ((LOAD, STORE), ["reads", "writes"]),
        ((LOAD, WAIT, STORE), ["reads"]),
        (("griddepcontrol.launch_dependents;", LOAD, WAIT, STORE), ["reads"]),
        (("atom.global.add.u32 %r2, [%rd1], 1;", WAIT, STORE), ["updates"]),
        ((BY_ONE, LOAD, STORE), ["reads", "writes"]),  # in the other warp
        ((BY_ONE, "bar.sync 0;", LOAD, STORE), []),
        (("bar.sync 0;", BY_ONE, LOAD, "bar.sync 0;", STORE), ["reads"]),
    ],
    ids=["first", "none", "too late", "launch_dependents", "atomic", "one thread", "and a barrier", "barrier before"],
)
def test_accesses_come_after_the_wait(body: tuple[str, ...], expected: list[str]) -> None:
    assert races(*body) == races(*body, checks=warpsan.thorough_checks()) == expected
    assert races(*body, programmatic=False) == []


def test_the_message_says_what_is_missing() -> None:
    x, y = np.arange(THREADS, dtype=np.uint32), np.zeros(THREADS, np.uint32)
    (hazard,) = warpsan.launch(
        ptx(LOAD, WAIT, STORE), "k", 1, THREADS, [x, y], programmatic=True, names=("x", "y")
    ).hazards
    assert "reads what the kernel before it may still write, 4 bytes at byte 0 of x" in hazard.message
    assert "usually a missing griddepcontrol.wait (cudaGridDependencySynchronize()) before the access" in hazard.message


def test_clusters_and_chunks_of_blocks_wait_for_themselves() -> None:
    # Only block 0 waits.
    skip = "mov.u32 %r3, %ctaid.x; setp.ne.u32 %p, %r3, 0; @%p bra ALL; griddepcontrol.wait; ALL:"
    x, y = np.arange(THREADS, dtype=np.uint32), np.zeros(THREADS, np.uint32)
    report = warpsan.launch(ptx(skip, LOAD), "k", 3, THREADS, [x, y], programmatic=True)
    assert [hazard.block for hazard in report.hazards] == [(1, 0, 0)]


@pytest.mark.parametrize(
    ("body", "between", "clean"),
    [
        ((LOAD, WAIT, STORE), "", False),
        ((WAIT, LOAD, STORE), "", True),
        ((LOAD, WAIT, STORE), "copy", True),  # a copy completes before a kernel begins
        ((LOAD, WAIT, STORE), "launch", True),  # accesses other arrays, and follows all earlier operations
        (("st.global.u32 [%rd1], %r2;", WAIT), "", False),
    ],
    ids=["reads early", "waits", "a copy between", "a launch between", "writes early"],
)
def test_on_a_device_only_conflicts_with_the_launch_before_count(body: str, between: str, clean: bool) -> None:
    gpu = Device()
    gpu.overlaps = True
    x, y, other = (gpu.array(np.zeros(THREADS, np.uint32), name=name) for name in ("x", "y", "other"))
    second = gpu.module(ptx(*body))["k"]
    first = gpu.module(ptx(STORE))["k"]
    first.launch(1, THREADS, [other, x])
    if between == "copy":
        gpu.copy(other, np.arange(THREADS, dtype=np.uint32))
    elif between == "launch":
        first.launch(1, THREADS, [other, other])
    report = second.launch(1, THREADS, [x, y], programmatic=True)
    assert [hazard.kind for hazard in report.hazards] == ([] if clean else ["race"])
    assert second.launch(1, THREADS, [x, y]).hazards == []


def test_what_the_launch_before_only_reads_may_be_read_early() -> None:
    gpu = Device()
    gpu.overlaps = True
    x, y, z = (gpu.array(np.zeros(THREADS, np.uint32)) for _ in "xyz")
    early, plain = gpu.module(ptx(LOAD, WAIT, STORE))["k"], gpu.module(ptx(LOAD, STORE))["k"]
    plain.launch(1, THREADS, [x, y])
    assert early.launch(1, THREADS, [x, z], programmatic=True).hazards == []
