"""Bugs to plant in the ``cluster`` kernel, each an edit of its source, and what each is found by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster_attention import CLUSTER_ATTENTION

from sdpalab.kernels.kernel import CudaKernel
from sdpalab.problem import Problem

__all__ = ["BUGS", "Bug", "planted"]

RAGGED = Problem(1, 1, 40, 64, seq_kv=313)
"""With two stages, rank 0 comes back to its first stage, and rank 1 to a ragged tile."""
ONE_KEY = Problem(1, 1, 33, 64, seq_kv=1)


@dataclass(frozen=True)
class Bug:
    """One bug.

    Attributes
    ----------
    name : str
    edits : sequence of (str, str)
        What is replaced in the source, which has it once, and by what.
    kind : str
        What it is found by: a kind of hazard, ``deadlock``, or ``wrong`` for the numbers alone.
    problem : Problem
        Where it shows.
    """

    name: str
    edits: Sequence[tuple[str, str]]
    kind: str
    problem: Problem = RAGGED


_START_BARRIER = "    ptx::barrier_cluster_arrive_relaxed();\n    ptx::barrier_cluster_wait_acquire();\n"
_MERGE_BARRIER = "    ptx::barrier_cluster_arrive_release();\n    ptx::barrier_cluster_wait_acquire();\n"
_O_THERE = "ptx::smem_address(&partial.o[0][lane]), rank"
_SOFTMAX_THERE = "ptx::smem_address(&partial.softmax[lane]), rank"

BUGS = (
    Bug("no barrier before the partial results are read", [(_MERGE_BARRIER, "")], "race"),
    Bug("a relaxed arrival there", [("arrive_release()", "arrive_relaxed()")], "race"),
    Bug(
        "partial results fetched from a block that may have exited",  # and right otherwise: each keeps its own
        [
            (f"{_O_THERE} ^ 1", _O_THERE),
            (f"{_SOFTMAX_THERE} ^ 1", _SOFTMAX_THERE),
            (
                "const float4 other = partial.",
                "const Partial& there = *static_cast<Partial*>(__cluster_map_shared_rank(&partial, rank ^ 1));\n"
                "    const float4 other = there.",
            ),
            ("const float4 more = partial.", "const float4 more = there."),
        ],
        "cluster",
    ),
    Bug("mbarriers without a fence", [("        ptx::fence_mbarrier_init_release_cluster();\n", "")], "race"),
    Bug("no barrier before the multicast", [(_START_BARRIER, "    __syncthreads();\n")], "race"),
    Bug("a multicast to oneself", [(", ALL_CTAS);", ", 1 << rank);")], "deadlock"),
    Bug("both shares of Q in one place", [("smem_address(smem.q[share])", "smem_address(smem.q[0])")], "race"),
    Bug("the same share of Q from both", [("first_row + share, head", "first_row, head")], "wrong"),
    Bug("the bytes of one share of Q", [("q_full, Q_BYTES)", "q_full, Q_BYTES / CLUSTER)")], "mbarrier"),
    Bug("sent to oneself", [(f"{_O_THERE} ^ 1", _O_THERE)], "wrong"),
    Bug("one place for both warps", [("smem.partial[warp % KEPT_WARPS]", "smem.partial[0]")], "race"),
    Bug(
        "the other half under its own maximum",
        [("softmax_weight(other_max[half], softmax[half].max", "softmax_weight(other_max[half], other_max[half]")],
        "wrong",
    ),
    Bug(
        "no wait for Q without keys",
        [("    mbarrier_wait(smem.q_full, 0);", "    if (tiles > 0) mbarrier_wait(smem.q_full, 0);")],
        "cluster",
        ONE_KEY,
    ),
    Bug(
        "gone without keys",
        [("    const bool kept", "    if (tiles == 0) return;\n    const bool kept")],
        "cluster",
        ONE_KEY,
    ),
    Bug(
        "a parity that never changes",
        [("            mbarrier_wait(smem.k_full[at.stage], at.parity", "mbarrier_wait(smem.k_full[at.stage], 0")],
        "async",
    ),
    Bug(
        "a stage filled before it is free",
        [("wgmma_wait_group<0>();\n            hold(o_frag)", "wgmma_wait_group<1>();\n            hold(o_frag)")],
        "wgmma",
    ),
    Bug("output over what other lanes still read", [("    __syncwarp();", "    ")], "lane-race"),
)


def planted(bug: Bug) -> CudaKernel:
    """The kernel with the bug.

    Raises
    ------
    AssertionError
        If the text that the bug replaces is not there exactly once.
    """
    assert isinstance(CLUSTER_ATTENTION.source, Path)
    source = CLUSTER_ATTENTION.source.read_text()
    for old, new in bug.edits:
        assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times, and a bug needs it once"
        source = source.replace(old, new)
    return replace(CLUSTER_ATTENTION, source=source)
