"""Bugs that people make in small CUDA kernels, as edits of the sources in ``source_programs``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BUGS", "Bug"]


@dataclass(frozen=True)
class Bug:
    """An edit of a program, and what it must lead to.

    Attributes
    ----------
    kind : str
        A kind of hazard, ``deadlock``, ``endless``, or ``wrong``: a wrong result without any hazard.
    strict : bool
        Whether it takes the strict check.
    some_orders_only : bool
        Whether there are orders of the warps in which it does not show.
    """

    name: str
    program: str
    edits: Sequence[tuple[str, str]]
    kind: str
    strict: bool = False
    dynamic_smem: int | None = None
    some_orders_only: bool = False


_TAIL = "        } else {\n            ptx::cp_async_wait_group<0>();\n        }\n"

BUGS: tuple[Bug, ...] = (
    Bug("missing __syncthreads", "reverse", [("__syncthreads();", "")], "race"),
    Bug(
        "__syncthreads for half of the block", "reverse", [("__syncthreads();", "if (t < 64) __syncthreads();")], "race"
    ),
    Bug(
        "reads one element too many",
        "reverse",
        [("if (t < n) {\n        tile", "if (t <= n) {\n        tile")],
        "out-of-bounds",
    ),
    Bug(
        "writes one element too many",
        "reverse",
        [("if (t < n) {\n        out", "if (t <= n) {\n        out")],
        "out-of-bounds",
    ),
    Bug("tile too short by a row", "reverse", [("tile[128]", "tile[99]")], "out-of-bounds"),
    Bug(
        "part of the tile not filled",
        "reverse",
        [("if (t < n) {\n        tile", "if (t < n - 1) {\n        tile")],
        "uninitialised",
    ),
    Bug("misaligned vector load", "vector", [("(in + i)", "(in + i + 1)")], "misaligned"),
    Bug("misaligned vector store", "vector", [("(out + i)", "(out + i + 2)")], "misaligned"),
    Bug("missing zero fill", "vector", [("rows[t] = i < n ?", "if (i < n) rows[t] = i < n ?")], "uninitialised"),
    Bug("off by one row in the bound", "vector", [("rows[t] = i < n", "rows[t] = i < n + 4")], "out-of-bounds"),
    Bug("wrong size in the launch", "vector", [], "out-of-bounds", dynamic_smem=63 * 16),
    Bug("off-by-one wait_group", "pipeline", [(_TAIL, _TAIL.replace("<0>", "<1>"))], "async"),
    Bug("missing wait", "pipeline", [("ptx::cp_async_wait_group<1>();", "")], "async"),
    Bug("wait for two tiles ahead", "pipeline", [("wait_group<1>", "wait_group<2>")], "async"),
    Bug("missing commit", "pipeline", [("        ptx::cp_async_commit_group();\n", "")], "async"),
    Bug("missing barrier after the wait", "pipeline", [("__syncthreads();  // arrived", "")], "race"),
    Bug("early release of the stage", "pipeline", [("__syncthreads();  // read", "")], "race"),
    Bug(
        "one stage instead of two",
        "pipeline",
        [("&stages[tile % 2]", "&stages[0]"), ("stages[tile % 2][(", "stages[0][(")],
        "async",
    ),
    Bug(
        "copy skips instead of filling",
        "pipeline",
        [("        ptx::cp_async_cg_16(", "        if (i < n) ptx::cp_async_cg_16(")],
        "wrong",  # the stage still holds the tile before the last
    ),
    Bug("copies one row too many", "pipeline", [("i < n ? i : 0), i < n", "i <= n ? i : 0), i <= n")], "out-of-bounds"),
    Bug("copies from a misaligned place", "pipeline", [("i < n ? i : 0)", "i < n ? i + 1 : 0)")], "misaligned"),
    Bug("missing __syncwarp before a read", "warp", [("__syncwarp();  // written", "")], "lane-race", strict=True),
    Bug("missing __syncwarp before a write", "warp", [("__syncwarp();  // read", "")], "lane-race", strict=True),
    Bug(
        "__syncwarp where a block barrier is due",
        "warp",
        [("tile[t ^ 31];\n    __syncwarp();  // read", "tile[t ^ 63];\n    __syncwarp();  // read")],
        "race",
    ),
    Bug("divergent shuffle", "shuffle", [("sum += __shfl", "if (t % 32 < 20) sum += __shfl")], "divergent"),
    Bug(
        "shuffle mask without its own lane",
        "shuffle",
        [("__shfl_xor_sync(0xffffffffu", "__shfl_xor_sync(0xffffu")],
        "divergent",
    ),
    Bug(
        "missing named barrier of the consumer",
        "named",
        [("sync(1, 128);  // consumer waits", "arrive(1, 128);")],
        "race",
    ),
    Bug(
        "missing named barrier of the producer",
        "named",
        [("sync(2, 128);  // producer waits", "arrive(2, 128);")],
        "deadlock",  # two rounds of the producer alone complete barrier 1
    ),
    Bug("wrong barrier number", "named", [("arrive(1, 128);  // producer says", "arrive(3, 128);")], "deadlock"),
    Bug(
        "barrier counts more than come",
        "named",
        [("sync(1, 128);  // consumer waits", "sync(1, 160);"), ("arrive(1, 128);", "arrive(1, 160);")],
        "deadlock",
    ),
    Bug(
        "barrier counts too few",
        "named",
        [("sync(1, 128);  // consumer waits", "sync(1, 64);"), ("arrive(1, 128);", "arrive(1, 64);")],
        "race",
    ),
    Bug("missing arrival", "named", [("arrive(2, 128);  // consumer says", "")], "deadlock"),
    Bug(
        "addition without an atomic",
        "histogram",
        [("atomicAdd(&count[in[i] % 16], 1u)", "count[in[i] % 16] += 1")],
        "race",
    ),
    Bug("counters not zeroed", "histogram", [("        count[t] = 0;\n", "")], "uninitialised"),
    Bug(
        "counting before all are zeroed",
        "histogram",
        [("__syncthreads();  // zeroed", "")],
        "race",
    ),
    Bug(
        "reading before all have counted",
        "histogram",
        [("__syncthreads();  // counted", "")],
        "race",
        some_orders_only=True,
    ),
    Bug("swizzle on one side only", "swizzle", [("(chunk ^ row % 8)", "chunk")], "wrong"),
    Bug("swizzle by another row", "swizzle", [("(chunk ^ row % 8)", "(chunk ^ (row + 1) % 8)")], "wrong"),
    Bug(
        "ldmatrix of a misaligned row",
        "swizzle",
        [("row * 8 + (chunk ^ row % 8)])", "row * 8 + (chunk ^ row % 8)]) + 8")],
        "misaligned",
    ),
    Bug("index beyond a local array", "search", [("table[in[t] % 8]", "table[in[t] % 8 + 1]")], "out-of-bounds"),
    Bug("loop that does not end", "search", [("        ++place;\n", "")], "endless"),
    Bug("result of other blocks without an atomic", "grid", [("atomicAdd(&arrived, 1u)", "arrived++")], "race"),
)
