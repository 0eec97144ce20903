"""Bugs of barriers, waits and fences that are missing from the Ampere and Ada kernels, or misplaced in them."""

from __future__ import annotations

from functools import partial

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.source import SEVERAL_TILES, in_source
from sdpalab.problem import Problem

__all__ = ["BUGS"]

_LOADED = "no barrier between the loads and the products"
_REUSED = "no barrier before the next tile's loads"
_WMMA_LOADED = "__syncthreads();  // this tile has come, for all\n"
_WMMA_READ = "__syncthreads();  // everyone has read"
_WAITS_FOR_EMPTY = "ptx::bar_sync(empty(loading), THREADS);"
_GIVES_BACK_Q = "release(Position{STAGES - 1}, STAGES - 1);"
_COMPUTES = "            Attention::attend("

_bug = partial(in_source, problem=SEVERAL_TILES, family=Family.SYNCHRONISATION)
_ring = partial(_bug, "warp_specialized", problem=Problem(1, 1, 64, 32, seq_kv=400))

BUGS: tuple[Bug, ...] = (
    *_bug("scalar", _LOADED, ("tile_sync();\n\n        // S = Q K^T", "// S = Q K^T"), hazard="race"),
    *_bug("scalar", _REUSED, ("tile_sync();  // everyone has read", "// everyone has read"), hazard="race"),
    *_bug("wmma", _LOADED, (_WMMA_LOADED, ""), hazard="race"),
    *_bug("wmma", _REUSED, (_WMMA_READ, "// everyone has read"), hazard="race"),
    *_bug("wmma", "a barrier of warps after the loads", (_WMMA_LOADED, "__syncwarp();\n"), hazard="race"),
    *_bug(
        "wmma",
        "a barrier of warps before the next tile",
        (_WMMA_READ, "__syncwarp();  // everyone has read"),
        hazard="race",
    ),
    *_bug("flash", "no wait for the copy of Q", ("ptx::cp_async_wait_group<STAGES - 1>();", ""), hazard="async"),
    *_bug(
        "flash",
        "no barrier after the copy of Q",
        ("__syncthreads();\n            Products products", "Products products"),
        hazard="race",
    ),
    *_bug("flash", "no wait for a tile", ("ptx::cp_async_wait_group<STAGES - 2>();", ""), hazard="async"),
    *_bug(
        "flash",
        "a group too few waited for",
        ("wait_group<STAGES - 2>", "wait_group<STAGES - 1>"),
        hazard="async",
    ),
    *_bug(
        "flash", "no barrier after a tile's copy", ("__syncthreads();\n                load(", "load("), hazard="race"
    ),
    *_bug(
        "flash",
        "no barrier before the output overwrites keys",
        ("__syncthreads();  // the output", "// the output"),
        problem=Problem(1, 1, 40, 64, seq_kv=150),
        hazard="race",
    ),
    *_bug(
        "flash",
        "the tiles' copies are not committed",
        ("ptx::cp_async_commit_group();\n            };", "};"),
        hazard="async",
    ),
    *_bug(
        "flash",
        "the copy is a stage ahead of its place",
        ("load(STAGES - 1, stage_before(stage));", "load(STAGES - 1, stage);"),
        hazard="async",
    ),
    *_bug(
        "flash",
        "the ring is a stage too long",
        ("stage == RING_BYTES - STAGE_BYTES ? 0", "stage == RING_BYTES ? 0"),
        hazard="out-of-bounds",
        knobs={"NUM_STAGES": 3},
    ),
    *_ring("a tile is not waited for", ("wait_group<IN_FLIGHT>", "wait_group<IN_FLIGHT + 1>"), hazard="async"),
    *_ring("nobody waits for an empty stage", (_WAITS_FOR_EMPTY, ""), hazard="barrier"),
    *_ring(
        "a stage is given back before it is read",
        (_COMPUTES, "            release(at, STAGES);\n" + _COMPUTES),
        hazard="race",
    ),
    *_ring("the output does not wait for the last readers", ("ptx::bar_sync(ALL_READ, CONSUMERS);", ""), hazard="race"),
    *_ring(
        "consumers leave producers out",
        ("THREADS);\n        Products products", "CONSUMERS);\n        Products products"),
        ("THREADS);\n            }\n        } while", "CONSUMERS);\n            }\n        } while"),
        hazard="barrier",
    ),
    *_ring("Q is never given back", (_GIVES_BACK_Q, ""), hazard="deadlock"),
)
