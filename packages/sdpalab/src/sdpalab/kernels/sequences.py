"""The kernels ``flash_varlen`` and ``flash_decode``: their knobs and launches (ideas: ``flash_varlen.cu`` and
``flash_decode.cu``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from sdpalab.kernels.flash import MAX_SHARED_BYTES, rows_per_warp, smem_bytes, tile_n
from sdpalab.kernels.kernel import MISSION_LIMITS, Config, CudaKernel, Knob, StaticLimits
from sdpalab.kernels.ladder import ladder_supports, reject_oversized, reject_unlisted, window_macros
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan
from sdpalab.packing import Packing
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = ["FLASH_DECODE", "FLASH_VARLEN"]

HEAD_DIMS = (32, 64, 96, 128, 192, 256)
SHARED = {"BLOCK_N": (0, 32, 64), "NUM_STAGES": (2, 3, 4), "PACK_GQA": (0, 1, 2, 4, 8, 16)}
VARLEN_KNOBS = {"BLOCK_M": (32, 64, 128), "ROWS_PER_WARP": (16, 32), **SHARED}
DECODE_KNOBS = {"BLOCK_M": (16, 32, 64), **SHARED}
SPLITS = {"NUM_SPLITS": (0, 1, 2, 4, 8, 16, 32, 64, 128), "SPLIT_KEYS": (0, 256, 512, 1024, 2048)}
MAX_SPLITS = 256
BLOCKS_PER_SM = 2
"""Blocks of an SM that a decode step with NUM_SPLITS=0 has, where the keys suffice."""
FEATURES = ("window_size", "softcap", "bottom_right", "head_dim_v", "varlen")


def _supports(problem: Problem, kernel: str, *, paged: bool) -> str | None:
    if not (problem.paged if paged else problem.varlen):
        return (
            f"kernel {kernel} takes {'pages of a cache' if paged else 'packed sequences'}, not layout {problem.layout}"
        )
    head_dims = HEAD_DIMS[:-1] if paged else HEAD_DIMS  # D=256 beside the merge has no registers
    if problem.dim_v not in head_dims:
        return f"kernel {kernel} supports head_dim_v {', '.join(map(str, head_dims))}, not {problem.dim_v}"
    return ladder_supports(problem, HALF_DTYPES, kernel, head_dims)


def _heads_of_tile(problem: Problem, config: Config) -> int:
    """Query heads of a K/V head that share a tile: PACK_GQA, or for 0 the most that divide the group."""
    packed = config.int("PACK_GQA")
    return packed or max(heads for heads in (1, 2, 4, 8, 16) if problem.group % heads == 0)


def _reject(problem: Problem, config: Config, knobs: Mapping[str, tuple[int, ...]]) -> str | None:
    unlisted = reject_unlisted(config, knobs)
    if unlisted is not None:
        return unlisted
    heads, keys = _heads_of_tile(problem, config), tile_n(problem, config)
    head_dim = max(problem.head_dim, problem.dim_v)
    if problem.group % heads:
        return f"PACK_GQA={heads} must divide the {problem.group} query heads of a K/V head"
    rows = rows_per_warp(config)
    if keys * head_dim > 64 * 128 or (rows == 32 and keys * head_dim > 64**2):
        return f"BLOCK_N={keys} with {rows} rows a warp has no registers at head_dim {head_dim}"
    copied = max(8 * _threads(config) // (columns & -columns) for columns in (problem.head_dim, problem.dim_v))
    if copied > min(keys, config.int("BLOCK_M")):
        return f"a block of {_threads(config)} threads copies {copied} rows at a time, more than a tile has"
    splits, size = (config.int(name) if name in config else 0 for name in ("NUM_SPLITS", "SPLIT_KEYS"))
    if not 0 <= splits <= MAX_SPLITS:
        return f"NUM_SPLITS must be 0 to {MAX_SPLITS}, not {splits}"
    if size < 0 or size % keys:
        return f"SPLIT_KEYS={size} must be a multiple of the {keys} keys of a tile"
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _threads(config: Config) -> int:
    return config.int("BLOCK_M") // rows_per_warp(config) * 32


def _macros(problem: Problem, config: Config) -> dict[str, Knob]:
    names = ("BLOCK_M", "BLOCK_N", "ROWS_PER_WARP", "NUM_STAGES")
    form = problem.layout_form
    return {
        **window_macros(problem),
        **{name: config[name] for name in names if name in config},
        "PACK_GQA": _heads_of_tile(problem, config),
        "LENGTHS": int(bool(form.page_size) or form.gaps),
        "KV_LENGTHS": 1,
    }


def _limits(problem: Problem) -> StaticLimits:
    reason = "Q, O and S have up to 224 registers of fragments; offsets of rows come on top"
    return MISSION_LIMITS.but(registers=255, shared_bytes=MAX_SHARED_BYTES, reason=reason)


def _tiles(problem: Problem, config: Config) -> int:
    """Tiles of the queries of all sequences for one K/V head, from the shapes alone."""
    block_m, heads = config.int("BLOCK_M"), _heads_of_tile(problem, config)
    if problem.varlen:
        return Packing(problem).inputs["q"][0][0] * heads // block_m + problem.batch
    return problem.batch * -(-problem.seq_q * heads // block_m)


def _varlen_plan(problem: Problem, config: Config) -> LaunchPlan:
    tiles, heads = _tiles(problem, config), _heads_of_tile(problem, config)
    total_q = Packing(problem).inputs["q"][0][0]
    lengths = "kv_lengths" if problem.layout_form.gaps else 0
    launch = Launch(
        grid=(tiles * (problem.heads // heads), 1, 1),
        block=(_threads(config), 1, 1),
        args=(
            *("q", "k", "v", "o", "lse", "cu_seqlens_q", "cu_seqlens_k", lengths),
            *(problem.batch, total_q, problem.heads, problem.kv_heads, tiles, problem.scale),
        ),
        dynamic_smem=smem_bytes(problem, config),
    )
    return LaunchPlan((), (launch,))


def _resolve(problem: Problem, config: Config, sms: int) -> Config:
    """Parts of the keys for NUM_SPLITS=0: as many as fill ``sms`` SMs, each with two tiles of keys at least."""
    keys, size = tile_n(problem, config), config.int("SPLIT_KEYS")
    most = min(MAX_SPLITS, -(-problem.seq_kv // (2 * keys)))
    if size:
        return config.but(NUM_SPLITS=max(1, -(-problem.seq_kv // size)))
    blocks = _tiles(problem, config) * problem.heads // _heads_of_tile(problem, config)
    splits = config.int("NUM_SPLITS") or max(1, BLOCKS_PER_SM * sms // blocks)
    return config.but(NUM_SPLITS=max(1, min(splits, most)))


def _decode_plan(problem: Problem, config: Config) -> LaunchPlan:
    tiles, heads, splits = _tiles(problem, config), _heads_of_tile(problem, config), config.int("NUM_SPLITS")
    shapes = Packing(problem).inputs
    total_q, max_pages = shapes["q"][0][0], shapes["block_table"][0][1]
    of_all, threads = tiles * (problem.heads // heads), _threads(config)
    split_tiles = config.int("SPLIT_KEYS") // tile_n(problem, config)
    launch = Launch(
        grid=(of_all * splits, 1, 1),
        block=(threads, 1, 1),
        args=(
            *("q", "k", "v", "o", "lse", "cu_seqlens_q" if problem.varlen else 0, "kv_lengths", "block_table"),
            *(problem.batch, problem.seq_q, total_q, problem.heads, problem.kv_heads, max_pages, tiles, splits),
            *(split_tiles, "partials", "semaphores", problem.scale),
        ),
        dynamic_smem=smem_bytes(problem, config),
    )
    # Per thread: 2 rows of O between 4 lanes, and their statistics; a slot for the first part, and one for any other.
    partials = Buffer("partials", (of_all * splits, 2, threads * (problem.dim_v // 2 + 4)), "float32", "workspace")
    return LaunchPlan((partials, Buffer("semaphores", (of_all,), "int32", "semaphore")), (launch,))


_VARLEN = Config(BLOCK_M=64, BLOCK_N=0, ROWS_PER_WARP=16, NUM_STAGES=2, PACK_GQA=1)
_DECODE = Config(BLOCK_M=64, BLOCK_N=0, NUM_STAGES=2, PACK_GQA=0, NUM_SPLITS=0, SPLIT_KEYS=0)

FLASH_VARLEN = CudaKernel(
    name="flash_varlen",
    source=Path("flash_varlen.cu"),
    entry="flash_varlen",
    plan=_varlen_plan,
    configs=(_VARLEN, _VARLEN.but(BLOCK_M=128, ROWS_PER_WARP=32), _VARLEN.but(PACK_GQA=0, NUM_STAGES=3)),
    supports=partial(_supports, kernel="flash_varlen", paged=False),
    reject=partial(_reject, knobs=VARLEN_KNOBS),
    limits=_limits,
    knobs=VARLEN_KNOBS,
    macros=_macros,
    lse=True,
    features=(*FEATURES, "kv_lengths"),
    idea="flash for packed sequences: a block finds its sequence by a binary search, no list of work",
)

FLASH_DECODE = CudaKernel(
    name="flash_decode",
    source=Path("flash_decode.cu"),
    entry="flash_decode",
    plan=_decode_plan,
    configs=(_DECODE, _DECODE.but(SPLIT_KEYS=256), _DECODE.but(NUM_STAGES=3, BLOCK_M=16), _DECODE.but(NUM_SPLITS=1)),
    supports=partial(_supports, kernel="flash_decode", paged=True),
    reject=partial(_reject, knobs=DECODE_KNOBS),
    limits=_limits,
    knobs={**DECODE_KNOBS, **SPLITS},
    macros=_macros,
    resolve=_resolve,
    lse=True,
    features=(*FEATURES, "paged"),
    idea="few queries against a paged cache: split keys, merged by the last block; a group of heads shares a tile",
)
