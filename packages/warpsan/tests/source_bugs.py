"""Common bugs in small CUDA kernels, as edits of the sources in ``source_programs``.

They are not in the catalogue (``sdpalab.bugs``): the programs compute no attention, so the judge cannot reject them.
Each tests one check of the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BUGS", "Edit"]


@dataclass(frozen=True)
class Edit:
    """An edit of a program, and its expected effect.

    Attributes
    ----------
    kind : str
        A hazard kind, ``deadlock``, ``endless``, or ``wrong``: an incorrect result without a hazard.
    strict : bool
        Whether the strict check is needed.
    some_orders_only : bool
        Whether some orders of the warps hide it.
    """

    name: str
    program: str
    edits: Sequence[tuple[str, str]]
    kind: str
    strict: bool = False
    dynamic_smem: int | None = None
    some_orders_only: bool = False


_TAIL = "        } else {\n            ptx::cp_async_wait_group<0>();\n        }\n"

BUGS: tuple[Edit, ...] = (
    Edit("missing __syncthreads", "reverse", [("__syncthreads();", "")], "race"),
    Edit(
        "__syncthreads for half of the block", "reverse", [("__syncthreads();", "if (t < 64) __syncthreads();")], "race"
    ),
    Edit(
        "reads one element too many",
        "reverse",
        [("if (t < n) {\n        tile", "if (t <= n) {\n        tile")],
        "out-of-bounds",
    ),
    Edit(
        "writes one element too many",
        "reverse",
        [("if (t < n) {\n        out", "if (t <= n) {\n        out")],
        "out-of-bounds",
    ),
    Edit("tile too short by a row", "reverse", [("tile[128]", "tile[99]")], "out-of-bounds"),
    Edit(
        "part of the tile not filled",
        "reverse",
        [("if (t < n) {\n        tile", "if (t < n - 1) {\n        tile")],
        "uninitialised",
    ),
    Edit("misaligned vector load", "vector", [("(in + i)", "(in + i + 1)")], "misaligned"),
    Edit("misaligned vector store", "vector", [("(out + i)", "(out + i + 2)")], "misaligned"),
    Edit("missing zero fill", "vector", [("rows[t] = i < n ?", "if (i < n) rows[t] = i < n ?")], "uninitialised"),
    Edit("off by one row in the bound", "vector", [("rows[t] = i < n", "rows[t] = i < n + 4")], "out-of-bounds"),
    Edit("wrong size in the launch", "vector", [], "out-of-bounds", dynamic_smem=63 * 16),
    Edit("off-by-one wait_group", "pipeline", [(_TAIL, _TAIL.replace("<0>", "<1>"))], "async"),
    Edit("missing wait", "pipeline", [("ptx::cp_async_wait_group<1>();", "")], "async"),
    Edit("wait for two tiles ahead", "pipeline", [("wait_group<1>", "wait_group<2>")], "async"),
    Edit("missing commit", "pipeline", [("        ptx::cp_async_commit_group();\n", "")], "async"),
    Edit("missing barrier after the wait", "pipeline", [("__syncthreads();  // arrived", "")], "race"),
    Edit("early release of the stage", "pipeline", [("__syncthreads();  // read", "")], "race"),
    Edit(
        "one stage instead of two",
        "pipeline",
        [("&stages[tile % 2]", "&stages[0]"), ("stages[tile % 2][(", "stages[0][(")],
        "async",
    ),
    Edit(
        "copy skips instead of filling",
        "pipeline",
        [("        ptx::cp_async_cg_16(", "        if (i < n) ptx::cp_async_cg_16(")],
        "wrong",  # the stage still holds the second to last tile
    ),
    Edit(
        "copies one row too many", "pipeline", [("i < n ? i : 0), i < n", "i <= n ? i : 0), i <= n")], "out-of-bounds"
    ),
    Edit("copies from a misaligned place", "pipeline", [("i < n ? i : 0)", "i < n ? i + 1 : 0)")], "misaligned"),
    Edit("missing __syncwarp before a read", "warp", [("__syncwarp();  // written", "")], "lane-race", strict=True),
    Edit("missing __syncwarp before a write", "warp", [("__syncwarp();  // read", "")], "lane-race", strict=True),
    Edit(
        "__syncwarp where a block barrier is due",
        "warp",
        [("tile[t ^ 31];\n    __syncwarp();  // read", "tile[t ^ 63];\n    __syncwarp();  // read")],
        "race",
    ),
    Edit("divergent shuffle", "shuffle", [("sum += __shfl", "if (t % 32 < 20) sum += __shfl")], "divergent"),
    Edit(
        "shuffle mask without its own lane",
        "shuffle",
        [("__shfl_xor_sync(0xffffffffu", "__shfl_xor_sync(0xffffu")],
        "divergent",
    ),
    Edit(
        "missing named barrier of the consumer",
        "named",
        [("sync(1, 128);  // consumer waits", "arrive(1, 128);")],
        "race",
    ),
    Edit(
        "missing named barrier of the producer",
        "named",
        [("sync(2, 128);  // producer waits", "arrive(2, 128);")],
        "deadlock",  # two arrivals of the producer alone complete barrier 1
    ),
    Edit("wrong barrier number", "named", [("arrive(1, 128);  // producer says", "arrive(3, 128);")], "deadlock"),
    Edit(
        "barrier counts more than come",
        "named",
        [("sync(1, 128);  // consumer waits", "sync(1, 160);"), ("arrive(1, 128);", "arrive(1, 160);")],
        "deadlock",
    ),
    Edit(
        "barrier counts too few",
        "named",
        [("sync(1, 128);  // consumer waits", "sync(1, 64);"), ("arrive(1, 128);", "arrive(1, 64);")],
        "race",
    ),
    Edit("missing arrival", "named", [("arrive(2, 128);  // consumer says", "")], "deadlock"),
    Edit(
        "addition without an atomic",
        "histogram",
        [("atomicAdd(&count[in[i] % 16], 1u)", "count[in[i] % 16] += 1")],
        "race",
    ),
    Edit("counters not zeroed", "histogram", [("        count[t] = 0;\n", "")], "uninitialised"),
    Edit(
        "counting before all are zeroed",
        "histogram",
        [("__syncthreads();  // zeroed", "")],
        "race",
    ),
    Edit(
        "reading before all have counted",
        "histogram",
        [("__syncthreads();  // counted", "")],
        "race",
        some_orders_only=True,
    ),
    Edit("swizzle on one side only", "swizzle", [("(chunk ^ row % 8)", "chunk")], "wrong"),
    Edit("swizzle by another row", "swizzle", [("(chunk ^ row % 8)", "(chunk ^ (row + 1) % 8)")], "wrong"),
    Edit(
        "ldmatrix of a misaligned row",
        "swizzle",
        [("row * 8 + (chunk ^ row % 8)])", "row * 8 + (chunk ^ row % 8)]) + 8")],
        "misaligned",
    ),
    Edit("index beyond a local array", "search", [("table[in[t] % 8]", "table[in[t] % 8 + 1]")], "out-of-bounds"),
    Edit("loop that does not end", "search", [("        ++place;\n", "")], "endless"),
    Edit("result of other blocks without an atomic", "grid", [("atomicAdd(&arrived, 1u)", "arrived++")], "race"),
)
