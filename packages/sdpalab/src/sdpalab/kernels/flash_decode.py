"""The kernel ``flash_decode``: its knobs, its parts of the keys and its launch. The idea is in ``flash_decode.cu``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, Knob
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan
from sdpalab.kernels.sequences import (
    FEATURES,
    KNOBS,
    block_threads,
    heads_of_tile,
    limits,
    query_tiles,
    reject_blocks,
    sequence_macros,
    shared_bytes,
    supports,
    tile_keys,
)
from sdpalab.kernels.stream_k import reciprocal
from sdpalab.packing import Packing
from sdpalab.problem import Problem

__all__ = ["FLASH_DECODE", "FLASH_DECODE_E4M3"]

DECODE_KNOBS = {"BLOCK_M": (16, 32, 64), "BLOCK_N": (16, 32, 64), "KEY_WARPS": (2, 4), **KNOBS}
SPLITS = {"NUM_SPLITS": (0, 1, 2, 4, 8, 16, 32, 64, 128), "SPLIT_KEYS": (0, 256, 512, 1024, 2048)}
MAX_SPLITS = 256
BLOCKS_PER_SM = 2
"""Blocks of an SM that a decode step with NUM_SPLITS=0 has, where the keys suffice."""
ROWS_PER_TILE = 8
"""Rows for which a part has a tile of keys: the merge reads a partial result of all rows for each part."""


def _supports(problem: Problem, kernel: str) -> str | None:
    if not problem.paged or problem.e4m3_cache != (kernel == "flash_decode_e4m3"):
        pages = "pages of a cache in e4m3" if kernel == "flash_decode_e4m3" else "pages of a cache"
        return f"kernel {kernel} takes {pages}, not layout {problem.layout}"
    return supports(problem, kernel)


def _blocks(problem: Problem, config: Config) -> Config:
    """``config`` with a value for each knob of a block. The bits of a row depend on KEY_WARPS and BLOCK_N, which follow
    from the head dimensions alone."""
    small = all(columns in (64, 128) for columns in (problem.head_dim, problem.dim_v))
    key_warps = config.int("KEY_WARPS") or (4 if small else 2)
    rows = problem.seq_q * heads_of_tile(problem, config)
    block_m = config.int("BLOCK_M") or (16 if rows <= 16 else 32)
    rows_per_warp = config.int("ROWS_PER_WARP") or 16  # 32 have no registers for three blocks an SM
    keys = config.int("BLOCK_N") or 16
    return config.but(BLOCK_M=block_m, BLOCK_N=keys, KEY_WARPS=key_warps, ROWS_PER_WARP=rows_per_warp)


def _reject(problem: Problem, config: Config) -> str | None:
    config = _blocks(problem, config)
    reason = reject_blocks(problem, config, DECODE_KNOBS)
    if reason is not None:
        return reason
    splits, size, keys = config.int("NUM_SPLITS"), config.int("SPLIT_KEYS"), tile_keys(config)
    if not 0 <= splits <= MAX_SPLITS:
        return f"NUM_SPLITS must be 0 to {MAX_SPLITS}, not {splits}"
    if size < 0 or size % keys:
        return f"SPLIT_KEYS={size} must be a multiple of the {keys} keys of a tile"
    if size and -(-problem.seq_kv // size) > MAX_SPLITS:
        return f"SPLIT_KEYS={size} divides {problem.seq_kv} keys into more than {MAX_SPLITS} parts"
    return None


def _resolve(problem: Problem, config: Config, sms: int) -> Config:
    """``config`` with a value for each knob. NUM_SPLITS=0: as many parts of the keys as fill ``sms`` SMs."""
    config = _blocks(problem, config)
    keys, size = tile_keys(config), config.int("SPLIT_KEYS")
    if size:
        return config.but(NUM_SPLITS=max(1, -(-problem.seq_kv // size)))
    blocks = query_tiles(problem, config) * problem.heads // heads_of_tile(problem, config)
    splits = config.int("NUM_SPLITS") or max(1, BLOCKS_PER_SM * sms // blocks)
    rows = min(config.int("BLOCK_M"), problem.seq_q * heads_of_tile(problem, config))
    least = keys * -(-rows // ROWS_PER_TILE) if config.int("NUM_SPLITS") == 0 else keys
    return config.but(NUM_SPLITS=max(1, min(splits, MAX_SPLITS, -(-problem.seq_kv // least))))


def _macros(problem: Problem, config: Config) -> dict[str, Knob]:
    names = ("BLOCK_M", "BLOCK_N", "ROWS_PER_WARP", "KEY_WARPS", "NUM_STAGES", "SPLIT_KEYS")
    return {**sequence_macros(problem, config, names), "E4M3_CACHE": int(problem.e4m3_cache)}


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    tiles, splits, threads = query_tiles(problem, config), config.int("NUM_SPLITS"), block_threads(config)
    heads = problem.heads // heads_of_tile(problem, config)
    shapes = Packing(problem).inputs
    total_q, max_pages = shapes["q"][0][0], shapes["block_table"][0][1]
    launch = Launch(
        grid=(heads, tiles, splits),
        block=(threads, 1, 1),
        args=(
            *("q", "k", "v", "o", "lse", "cu_seqlens_q" if problem.varlen else 0, "kv_lengths", "block_table"),
            *(("k_scale", "v_scale") if problem.e4m3_cache else (0, 0)),
            *(problem.batch, problem.seq_q, total_q, problem.heads, problem.kv_heads, max_pages, splits),
            *(reciprocal(splits), "partials", "semaphores", problem.scale),
        ),
        dynamic_smem=shared_bytes(problem, config),
    )
    # Rows of O in float32, a maximum and a sum for each.
    part = config.int("BLOCK_M") * (problem.dim_v + 2)
    partials = Buffer("partials", (tiles * heads * splits, part), "float32", "workspace")
    return LaunchPlan((partials, Buffer("semaphores", (tiles * heads,), "int32", "semaphore")), (launch,))


_DECODE = Config(
    BLOCK_M=0, BLOCK_N=0, ROWS_PER_WARP=0, KEY_WARPS=0, NUM_STAGES=2, PACK_GQA=0, NUM_SPLITS=0, SPLIT_KEYS=0
)

_FIXED = _DECODE.but(BLOCK_M=32, BLOCK_N=16, ROWS_PER_WARP=16, KEY_WARPS=4, NUM_STAGES=3, PACK_GQA=1, NUM_SPLITS=2)

KNOB_VALUES = {
    **DECODE_KNOBS,
    "BLOCK_M": (0, 16, 32, 64),
    "BLOCK_N": (0, 16, 32, 64),
    "KEY_WARPS": (0, 2, 4),
    "ROWS_PER_WARP": (0,),
    **SPLITS,
}

FLASH_DECODE = CudaKernel(
    name="flash_decode",
    source=Path("flash_decode.cu"),
    entry="flash_decode",
    plan=_plan,
    configs=(
        _DECODE,
        _DECODE.but(SPLIT_KEYS=256),
        _DECODE.but(NUM_STAGES=3, NUM_SPLITS=1, BLOCK_M=64, KEY_WARPS=2),
        _FIXED,
    ),
    supports=partial(_supports, kernel="flash_decode"),
    reject=_reject,
    limits=limits,
    knobs=KNOB_VALUES,
    macros=_macros,
    resolve=_resolve,
    lse=True,
    features=(*FEATURES, "paged"),
    idea="few queries against a paged cache: split keys, merged by the last block; a group of heads shares a tile",
)
FLASH_DECODE_E4M3 = replace(
    FLASH_DECODE,
    name="flash_decode_e4m3",
    configs=(_DECODE.but(NUM_STAGES=4), _DECODE.but(SPLIT_KEYS=256), _FIXED),
    supports=partial(_supports, kernel="flash_decode_e4m3"),
    min_arch=89,
    features=(*FEATURES, "paged", "e4m3_cache"),
    idea="flash_decode for a cache in e4m3 with a scale for each head: numbers widened in registers, without an error",
)
