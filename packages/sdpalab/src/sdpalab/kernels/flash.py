"""The ``flash`` kernel: its knobs, its shared memory and its launch. The idea is in ``flash.cu``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from sdpalab.kernels.kernel import MISSION_LIMITS, Config, CudaKernel, Knob, StaticLimits
from sdpalab.kernels.ladder import (
    HEAD_DIMS,
    ladder_launch,
    ladder_supports,
    reject_oversized,
    reject_unlisted,
    window_macros,
)
from sdpalab.kernels.plan import Buffer, LaunchPlan
from sdpalab.kernels.stream_k import Shares, Units, reciprocal, time_of_shares, time_of_tiles
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = [
    "FLASH",
    "dense_supports",
    "ragged_macros",
    "resolve",
    "rows_per_warp",
    "shares_of",
    "smem_bytes",
    "tile_n",
    "units_of",
]

KNOBS = {
    "BLOCK_M": (32, 64, 128),
    "BLOCK_N": (0, 32, 64, 128),
    "ROWS_PER_WARP": (16, 32),
    "NUM_STAGES": (2, 3, 4),
    "EXP_ON_FMA": (0, 1, 2),
    "SCHEDULE": ("auto", "tiles", "split_kv", "stream_k"),
}
MAX_SHARED_BYTES = 99 * 1024
MAX_REGISTERS = 255
"""Registers of a thread, of every architecture."""
MAX_Q_IN_REGISTERS = 16 * 128
"""Largest number of elements of Q that a warp has in registers."""
MAX_CTAS = 2**16
MAX_UNITS = 2**31 - 1
MAX_ELEMENTS = 2**34
"""Largest number of elements of a tensor, 32 GiB: the number of a 16-byte chunk then has 31 bits."""
NOT_SHARED = (0,) * 10
"""Arguments that blocks with a whole tile of queries do not read."""
SEARCHED_CTAS = (0, 58, 116, 232, 132, 264)
"""Block counts to search: one, two and four blocks an SM of an L4, one and two of an H200."""
MANY_WAVES = 16
"""Number of tiles per resident block above which the last wave leaves little of the GPU idle."""
LEAST_GAIN = 1.1
"""Least modelled speed-up for which blocks share tiles of queries."""

SM_REGISTERS, SM_SHARED_BYTES, RESERVED_BYTES = 64 * 1024, 100 * 1024, 1024
"""Registers and shared memory of an SM, and shared memory that the system reserves per block. Every SM from sm_80 on
has these registers and at least this shared memory (sm_86 and sm_89 have the least)."""


def tile_n(problem: Problem, config: Config) -> int:
    """Keys of a tile: BLOCK_N, or a value by head_dim if that is 0.

    Above head_dim 64 the accumulator of O takes the registers of 64 keys of scores.
    """
    return config.int("BLOCK_N") or (32 if problem.head_dim > 64 else 64)


def rows_per_warp(config: Config) -> int:
    """Rows of Q of a warp; 16 for a kernel without the knob."""
    return config.int("ROWS_PER_WARP") if "ROWS_PER_WARP" in config else 16


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: one tile of K and one of V per stage, and Q.

    Q passes through the stage that is filled last, or has a place behind the stages where its fragments do not fit
    into registers.
    """
    q_bytes = config.int("BLOCK_M") * problem.head_dim * 2
    stage = tile_n(problem, config) * (problem.head_dim + problem.dim_v) * 2
    ring = config.int("NUM_STAGES") * stage
    stays = rows_per_warp(config) * problem.head_dim > MAX_Q_IN_REGISTERS
    return max(ring, (ring if stays else ring - stage) + q_bytes)


def dense_supports(problem: Problem, kernel: str, head_dims: tuple[int, ...] = HEAD_DIMS) -> str | None:
    """None if a kernel with the dense tiles of ``include/mainloop/dense_rows.cuh`` supports ``problem``, otherwise the
    reason."""
    rows = problem.batch * max(problem.heads * problem.seq_q, problem.kv_heads * problem.seq_kv)
    if rows * problem.head_dim > MAX_ELEMENTS:
        return f"kernel {kernel} numbers the 16-byte chunks of a tensor with 32 bits, and {problem.label} has more"
    return ladder_supports(problem, HALF_DTYPES, kernel, head_dims)


def ragged_macros(problem: Problem, config: Config) -> dict[str, int]:
    """Macros RAGGED_Q and RAGGED_KV: whether the rows of Q, or of K and V, end within a tile."""
    sizes = {"RAGGED_Q": (problem.seq_q, config.int("BLOCK_M")), "RAGGED_KV": (problem.seq_kv, tile_n(problem, config))}
    return {name: int(rows % tile > 0) for name, (rows, tile) in sizes.items()}


def _threads(config: Config) -> int:
    return config.int("BLOCK_M") // config.int("ROWS_PER_WARP") * 32


def units_of(problem: Problem, config: Config) -> Units:
    """The units of work to distribute over blocks."""
    return Units.of(problem, config.int("BLOCK_M"), tile_n(problem, config))


@lru_cache(maxsize=1024)
def resolve(problem: Problem, config: Config, sms: int) -> Config:
    """``config`` with a schedule for ``auto``, and for NUM_CTAS=0 the number of blocks that ``sms`` SMs hold.

    Problems with a window, a soft cap or lengths support ``tiles`` only.

    ``auto`` is ``stream_k`` if its modelled time is below that of ``tiles`` and the tiles do not fill the GPU many
    times over. With ``tiles`` NUM_CTAS is 0: it has no meaning.
    """
    schedule, ctas = config["SCHEDULE"], config.int("NUM_CTAS") or sms * _blocks_per_sm(problem, config)
    if schedule == "auto" and problem.features:
        return config.but(SCHEDULE="tiles", NUM_CTAS=0)
    if schedule == "auto":
        units = units_of(problem, config)
        gains = (
            units.tiles < MANY_WAVES * ctas
            and time_of_tiles(units, sms) / time_of_shares(units, Shares.of(units, ctas), sms) > LEAST_GAIN
        )
        schedule = "stream_k" if gains else "tiles"
    return config.but(SCHEDULE=schedule, NUM_CTAS=0 if schedule == "tiles" else ctas)


def shares_of(problem: Problem, config: Config) -> Shares | None:
    """Equal shares of the work, or None for one block per tile of queries.

    ``config`` must have a value for every knob (:func:`resolve`). ``stream_k`` uses NUM_CTAS blocks. ``split_kv`` uses
    as many blocks per tile of queries as NUM_CTAS allows; if all tiles see equally many keys, a divisor of that number.
    """
    schedule, ctas = config["SCHEDULE"], config.int("NUM_CTAS")
    if schedule == "tiles":
        return None
    units = units_of(problem, config)
    if schedule == "stream_k":
        return Shares.of(units, ctas)
    splits = max(1, ctas // units.tiles)
    if len(set(units.of_tile)) == 1:
        splits = max(split for split in range(1, splits + 1) if units.of_tile[0] % split == 0)
    return Shares.of(units, splits * units.tiles)


def _blocks_per_sm(problem: Problem, config: Config) -> int:
    """Number of blocks that an SM holds with the registers that the source declares (MAX_REGISTERS)."""
    wide = problem.head_dim > 128 or config["ROWS_PER_WARP"] != 16 or tile_n(problem, config) * problem.head_dim > 64**2
    narrow = 184 if problem.head_dim > 64 else 160 if problem.head_dim > 32 else 128
    registers = (MAX_REGISTERS if wide else narrow) * _threads(config)
    shared = smem_bytes(problem, config) + RESERVED_BYTES
    return min(SM_REGISTERS // registers, SM_SHARED_BYTES // shared)


def _macros(problem: Problem, config: Config) -> Mapping[str, Knob]:
    """Macros of the source: the knobs, and values derived from the schedule and the problem."""
    return {
        **window_macros(problem),
        **{name: config[name] for name in ("BLOCK_M", "BLOCK_N", "ROWS_PER_WARP", "NUM_STAGES", "EXP_ON_FMA")},
        "STREAM_K": int(config["SCHEDULE"] != "tiles"),
        **ragged_macros(problem, config),
    }


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, KNOBS)
    if unlisted is not None:
        return unlisted
    ctas, schedule = config.int("NUM_CTAS"), config["SCHEDULE"]
    if not 0 <= ctas <= MAX_CTAS:
        return f"NUM_CTAS must be 0 to {MAX_CTAS}, not {ctas}"
    if schedule in ("split_kv", "stream_k") and problem.features:
        return f"SCHEDULE={schedule} is not for {' and '.join(problem.features)}: tiles and auto are"
    if ctas and schedule == "tiles":
        return f"SCHEDULE=tiles has a block for each tile of queries: NUM_CTAS={ctas} means nothing"
    if schedule in ("split_kv", "stream_k") and units_of(problem, config).total > MAX_UNITS:
        return f"SCHEDULE={schedule} numbers tiles of keys with 32 bits, and {problem.label} has more"
    keys, head_dim = tile_n(problem, config), max(problem.head_dim, problem.dim_v)
    if config["ROWS_PER_WARP"] == 32 and (head_dim > 128 or keys * head_dim > 64**2 or config["EXP_ON_FMA"]):
        return (
            f"ROWS_PER_WARP=32 has registers for BLOCK_N={64**2 // head_dim} at head_dim {head_dim}, not for {config}"
        )
    if config["EXP_ON_FMA"] and keys * head_dim > 64**2:
        return f"EXP_ON_FMA is for tiles of at most {64**2} numbers, not {keys} x {head_dim}"
    if keys > 64**2 * 2 // head_dim:
        return f"BLOCK_N={keys} has no registers at head_dim {head_dim}"
    rows = 8 * _threads(config) // (head_dim & -head_dim)
    if rows > keys:
        return f"a block of {_threads(config)} threads copies {rows} rows at a time, and a tile has {keys} keys"
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _limits(problem: Problem) -> StaticLimits:
    reason = "the fragments of 32 rows a warp, or of Q and O above head_dim 128, alone are 160 to 224 registers"
    return MISSION_LIMITS.but(registers=MAX_REGISTERS, shared_bytes=MAX_SHARED_BYTES, reason=reason)


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    threads, shared_bytes = _threads(config), smem_bytes(problem, config)
    whole = ladder_launch(problem, config.int("BLOCK_M"), threads, shared_bytes)
    by_kv_head = reciprocal(whole.grid[0] * problem.group)
    if problem.features:
        return LaunchPlan((), (replace(whole, args=(*whole.args, by_kv_head, "q_lengths", "kv_lengths")),))
    shares = shares_of(problem, config)
    if shares is None:
        return LaunchPlan((), (replace(whole, args=(*whole.args, *NOT_SHARED, by_kv_head)),))
    units = units_of(problem, config)
    dealt = replace(
        whole,
        grid=(shares.blocks, 1, 1),
        args=(
            *(*whole.args, "partials", "semaphores", len(units.of_tile)),
            *(*shares.arguments(units), by_kv_head),
        ),
    )
    # Per thread and 16 rows of a warp: 2 rows of O between 4 lanes, and their statistics.
    floats = threads * config.int("ROWS_PER_WARP") // 16 * (problem.head_dim // 2 + 4)
    partials = Buffer("partials", (shares.blocks, 2, floats), "float32", "workspace")
    semaphores = Buffer("semaphores", (units.tiles,), "int32", "semaphore")
    return LaunchPlan((partials, semaphores), (dealt,))


_DEFAULT = Config(BLOCK_M=64, BLOCK_N=0, ROWS_PER_WARP=16, NUM_STAGES=2, EXP_ON_FMA=0, SCHEDULE="auto", NUM_CTAS=0)
_TILES = _DEFAULT.but(SCHEDULE="tiles")

FLASH = CudaKernel(
    name="flash",
    source=Path("flash.cu"),
    entry="flash_attention",
    plan=_plan,
    configs=(
        _DEFAULT,
        _TILES.but(NUM_STAGES=3),
        _TILES.but(BLOCK_M=32),
        _TILES.but(BLOCK_N=32),
        _TILES.but(EXP_ON_FMA=1),
        _TILES.but(BLOCK_M=128, ROWS_PER_WARP=32),
        _DEFAULT.but(SCHEDULE="stream_k", NUM_CTAS=3),
        _DEFAULT.but(SCHEDULE="split_kv"),
    ),
    supports=partial(dense_supports, kernel="flash", head_dims=(32, 64, 96, 128, 192, 256)),
    reject=_reject,
    limits=_limits,
    knobs={**KNOBS, "SCHEDULE": ("tiles", "split_kv", "stream_k"), "NUM_CTAS": SEARCHED_CTAS},
    lse=True,
    features=("window_size", "softcap", "kv_lengths", "q_lengths", "bottom_right", "head_dim_v"),
    variant=Path("flash_masked.cu"),
    resolve=resolve,
    macros=_macros,
    algebraic={"EXP_ON_FMA": 0},
    idea="FlashAttention-2 on mma.sync: weights stay in registers; equal shares of key tiles for each CTA (stream-K)",
)
