"""Rules that ``flash_varlen`` and ``flash_decode`` share: head dimensions, registers, packed heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sdpalab.kernels.flash import MAX_Q_IN_REGISTERS, MAX_SHARED_BYTES
from sdpalab.kernels.kernel import MISSION_LIMITS, Config, Knob, StaticLimits
from sdpalab.kernels.ladder import GRID_YZ_LIMIT, ladder_supports, reject_oversized, reject_unlisted, window_macros
from sdpalab.packing import Packing
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = [
    "FEATURES",
    "HEAD_DIMS",
    "KNOBS",
    "block_threads",
    "heads_of_tile",
    "limits",
    "query_tiles",
    "reject_blocks",
    "sequence_macros",
    "shared_bytes",
    "supports",
    "tile_keys",
]

HEAD_DIMS = (32, 64, 96, 128, 192, 256)
KNOBS = {"ROWS_PER_WARP": (16, 32), "NUM_STAGES": (2, 3, 4), "PACK_GQA": (0, 1, 2, 4, 8, 16)}
FEATURES = ("window_size", "softcap", "bottom_right", "head_dim_v", "varlen")


def kv_columns(problem: Problem) -> tuple[int, int]:
    """16-bit elements of a row of K and of V."""
    share = 2 if problem.e4m3_cache else 1
    return problem.head_dim // share, problem.dim_v // share


def supports(problem: Problem, kernel: str) -> str | None:
    """None if the kernel has builds for the type and head dimensions of ``problem``, otherwise the reason."""
    if problem.dim_v not in HEAD_DIMS:
        return f"kernel {kernel} supports head_dim_v {', '.join(map(str, HEAD_DIMS))}, not {problem.dim_v}"
    return ladder_supports(problem, HALF_DTYPES, kernel, HEAD_DIMS)


def heads_of_tile(problem: Problem, config: Config) -> int:
    """Query heads of a K/V head that share a tile: PACK_GQA, or for 0 the most that divide the group."""
    packed = config.int("PACK_GQA")
    return packed or max(heads for heads in (1, 2, 4, 8, 16) if problem.group % heads == 0)


def tile_keys(config: Config) -> int:
    """Keys of a tile: BLOCK_N of each of KEY_WARPS warps."""
    return config.int("BLOCK_N") * (config.int("KEY_WARPS") if "KEY_WARPS" in config else 1)


def block_threads(config: Config) -> int:
    """Threads of a block."""
    rows_of_keys = config.int("KEY_WARPS") if "KEY_WARPS" in config else 1
    return config.int("BLOCK_M") // config.int("ROWS_PER_WARP") * rows_of_keys * 32


def query_tiles(problem: Problem, config: Config) -> int:
    """Tiles of the queries of all sequences for one K/V head, from the shapes alone."""
    block_m, heads = config.int("BLOCK_M"), heads_of_tile(problem, config)
    if problem.varlen:
        return Packing(problem).inputs["q"][0][0] * heads // block_m + problem.batch
    return problem.batch * -(-problem.seq_q * heads // block_m)


def shared_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block: tiles of K and V in each stage, and Q, as in :mod:`sdpalab.kernels.flash`;
    or the rows of all warps, where they merge."""
    q_bytes = config.int("BLOCK_M") * problem.head_dim * 2
    stage = tile_keys(config) * sum(kv_columns(problem)) * 2
    ring = config.int("NUM_STAGES") * stage
    stays = config.int("ROWS_PER_WARP") * problem.head_dim > MAX_Q_IN_REGISTERS
    loop = max(ring, (ring if stays else ring - stage) + q_bytes)
    if "KEY_WARPS" not in config:
        return loop
    return max(loop, block_threads(config) // 32 * config.int("ROWS_PER_WARP") * (problem.dim_v + 10) * 4)


def reject_blocks(problem: Problem, config: Config, knobs: Mapping[str, Sequence[int | str]]) -> str | None:
    """None if the blocks of a configuration with a value for each knob fit ``problem``, otherwise the reason."""
    unlisted = reject_unlisted(config, knobs)
    if unlisted is not None:
        return unlisted
    heads, keys, rows = heads_of_tile(problem, config), config.int("BLOCK_N"), config.int("ROWS_PER_WARP")
    head_dim = max(problem.head_dim, problem.dim_v)
    if query_tiles(problem, config) > GRID_YZ_LIMIT:
        return f"a grid has at most {GRID_YZ_LIMIT} tiles of queries, not {query_tiles(problem, config)}"
    if problem.group % heads:
        return f"PACK_GQA={heads} must divide the {problem.group} query heads of a K/V head"
    if rows > config.int("BLOCK_M"):
        return f"ROWS_PER_WARP={rows} is more than the BLOCK_M={config['BLOCK_M']} rows of a tile"
    if keys * head_dim > 64 * 128 or (rows == 32 and (keys * head_dim > 64**2 or head_dim > 128)):
        return f"BLOCK_N={keys} with {rows} rows a warp has no registers at head_dim {head_dim}"
    threads = block_threads(config)
    of_keys = max(8 * threads // (columns & -columns) for columns in kv_columns(problem))
    of_queries = 8 * threads // (problem.head_dim & -problem.head_dim)
    for copied, name, size in ((of_keys, "keys", tile_keys(config)), (of_queries, "queries", config.int("BLOCK_M"))):
        if copied > size:
            return f"a block of {threads} threads copies {copied} rows at a time, and a tile has {size} {name}"
    return reject_oversized(shared_bytes(problem, config), MAX_SHARED_BYTES, config)


def sequence_macros(problem: Problem, config: Config, names: tuple[str, ...]) -> dict[str, Knob]:
    """Macros of the source: the knobs with these ``names``, and values of the problem."""
    form = problem.layout_form
    return {
        **window_macros(problem),
        **{name: config[name] for name in names},
        "PACK_GQA": heads_of_tile(problem, config),
        "GROUP_PARTS": problem.group // heads_of_tile(problem, config),
        "LENGTHS": int(bool(form.page_size) or form.gaps),
        "KV_LENGTHS": 1,
    }


def limits(problem: Problem) -> StaticLimits:
    """Declared limits: one block may fill an SM."""
    reason = "Q, O and S have up to 224 registers of fragments; offsets of rows come on top"
    return MISSION_LIMITS.but(registers=255, shared_bytes=MAX_SHARED_BYTES, reason=reason)
