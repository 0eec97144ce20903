"""The ``hopper`` kernel: its knobs, its shared memory and its launch. The idea is in ``hopper.cu``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, Knob
from sdpalab.kernels.ladder import ladder_supports, reject_oversized, reject_unlisted, window_macros
from sdpalab.kernels.plan import Launch
from sdpalab.kernels.warpgroups import (
    LIMITS,
    MAX_SHARED_BYTES,
    SMS,
    WARP_M,
    WARPGROUP_M,
    block_threads,
    blocks_per_sm,
    merged_bytes,
    reject_crowded,
    shared_bytes,
    tiled_map,
)
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = ["HOPPER", "modelled_clocks", "resolve", "smem_bytes"]

HEAD_DIMS = (64, 128, 256)
VALUES = {
    "BLOCK_M": (64, 128, 192),
    "BLOCK_N": (64, 80, 128, 176),
    "NUM_STAGES": (2, 3, 4),
    "SPLIT": (1, 2, 4, 8),
    "KEY_GROUPS": (1, 2),
    "PACK_GQA": (1, 2, 4, 8, 16),
}
SCHEDULES = ("tiles", "persistent")
EXP_ON_FMA = (0, 8, 13, 16)
"""Exponentials per 64 that run on the FMA units instead of the special function unit."""
MOST_CAPPED_KEYS, MOST_CAPPED_DIM = 64, 128
"""Largest BLOCK_N and head_dim with a soft cap; larger tiles make ptxas spill."""
MAX_CTAS = 2**16
SPILLING = (64, 128, 64)
"""BLOCK_M, BLOCK_N and head_dim of the persistent blocks for which ptxas of CUDA 13 spills 300 to 820 bytes; no other
size spills."""
MAX_TILES = 2**30
"""Largest number of query tiles of persistent blocks: tile numbers, one extra round included, then fit 32 bits."""

FLOPS_PER_CLOCK = 4096
"""FLOPs per clock of one SM's tensor cores in float16: 989 TFLOPS on 132 SMs at 1.83 GHz."""
EXPONENTIALS_PER_CLOCK = 16
CLUSTER_BYTES_PER_CLOCK = 14
"""Largest number of bytes per clock that an SM sends to another; an estimate, not yet measured."""
BLOCK_CLOCKS = 1500
"""Clocks of a block besides its tiles: launch, load of the first tile, store. An estimate, not yet measured."""
GROUP_CLOCKS = 2000
"""Clocks of a second group of consumers: its first K arrives later, both groups begin with exponentials, and they
merge. From the modelled critical path, not yet measured."""
L2_BYTES = 50 * 2**20
"""L2 of an H100 or an H200 in bytes; persistent blocks may use half of it for K and V."""
SHARERS = 4
"""Blocks that read the same K and V at a time if those of all heads exceed L2. DRAM then delivers K and V at no more
than 1.9 TB/s: 64 KiB per 2048 clocks of products of 128 rows."""


def modelled_clocks(
    problem: Problem,
    block_m: int,
    split: int,
    groups: int = 1,
    packed: int = 1,
    *,
    persistent: bool = False,
    sms: int = SMS,
    flops_per_clock: int = FLOPS_PER_CLOCK,
) -> float:
    """Modelled clocks on ``sms`` SMs: waves of blocks times the cost of a block. For ranking choices, not predictions.

    A lone consumer executes its exponentials and its products one after the other; several consumers overlap them.
    Groups of consumers with the same rows merge partial results, and blocks of a cluster exchange theirs. ``packed``
    heads in a tile fill it with few queries. Persistent blocks start and end once.
    """
    scores = block_m * -(-problem.seq_kv // split)
    products = 4 * scores * problem.head_dim / flops_per_clock
    exponentials = scores / EXPONENTIALS_PER_CLOCK
    work = products + exponentials if block_m * groups == WARPGROUP_M else max(products, exponentials)
    sent = block_m * (split - 1) / split * problem.head_dim * 4
    work += (groups - 1) * GROUP_CLOCKS + sent / CLUSTER_BYTES_PER_CLOCK
    waves = -(-_tiles(problem, block_m, packed) * split // sms)
    return (1 if persistent else waves) * BLOCK_CLOCKS + waves * work


def _tiles_per_head(problem: Problem, block_m: int, packed: int) -> int:
    """Query tiles of a head, or of ``packed`` heads that share tiles."""
    return -(-problem.seq_q * packed // block_m)


def _tiles(problem: Problem, block_m: int, packed: int) -> int:
    """Query tiles of all heads."""
    return _tiles_per_head(problem, block_m, packed) * (problem.heads // packed) * problem.batch


@lru_cache(maxsize=1024)
def resolve(problem: Problem, config: Config, sms: int = SMS) -> Config:
    """``config`` with a value for each knob that is 0 or ``auto``, for a GPU of ``sms`` SMs.

    Problems with a window, a soft cap or lengths get one block per tile of queries.

    BLOCK_M, SPLIT, KEY_GROUPS and SCHEDULE minimise :func:`modelled_clocks`. Blocks are persistent only if the GPU does
    not hold one block per tile of queries at once; NUM_CTAS is then the number that it holds. PACK_GQA is the least
    number of heads in a tile that no other number beats, either in clocks or, at equal clocks, in tiles (each tile
    reads K and V). BLOCK_N is the largest that the registers allow, up to the keys of a block, since each tile has a
    fixed cost; NUM_STAGES is the largest that shared memory allows, up to the tiles of a block. EXP_ON_FMA is 13 at
    head_dim 64, where the special function unit would take as long as the tensor cores, and 0 above, where it takes
    half as long.
    """
    if config["EXP_ON_FMA"] == "auto":
        config = config.but(EXP_ON_FMA=13 if problem.head_dim == min(HEAD_DIMS) else 0)
    if problem.features:
        config = config.but(SPLIT=1, KEY_GROUPS=1, SCHEDULE="tiles")
    if config.int("PACK_GQA"):
        best = _best(problem, config, sms)
    else:
        packs = [packed for packed in VALUES["PACK_GQA"] if problem.group % packed == 0]
        ways = [_best(problem, config.but(PACK_GQA=packed), sms) for packed in packs]
        suitable = [way for way in ways if _unsuitable(problem, way) is None]
        best = min(suitable or ways, key=lambda way: (_clocks(problem, way, sms), _tiles_of(problem, way)))
    return best if best.int("NUM_CTAS") or not _is_persistent(best) else best.but(NUM_CTAS=_held(problem, best, sms))


def _best(problem: Problem, config: Config, sms: int) -> Config:
    """The choice of least modelled clocks for the knobs that ``config`` leaves open, at its PACK_GQA."""
    rows, splits, groups = (
        (config.int(name),) if config.int(name) else VALUES[name] for name in ("BLOCK_M", "SPLIT", "KEY_GROUPS")
    )
    automatic = config["SCHEDULE"] == "auto"
    ways = [
        _sized(problem, config.but(BLOCK_M=block_m, SPLIT=split, KEY_GROUPS=sharing, SCHEDULE=schedule))
        for block_m, split, sharing, schedule in product(
            rows, splits, groups, SCHEDULES if automatic else (config["SCHEDULE"],)
        )
    ]
    suitable = [
        way
        for way in ways
        if _unsuitable(problem, way) is None
        and not (automatic and _is_persistent(way) and _tiles_of(problem, way) <= _held(problem, way, sms))
    ]
    return min(suitable or ways[:1], key=lambda way: _clocks(problem, way, sms))


def _clocks(problem: Problem, resolved: Config, sms: int) -> float:
    knobs = (resolved.int(name) for name in ("BLOCK_M", "SPLIT", "KEY_GROUPS", "PACK_GQA"))
    return modelled_clocks(problem, *knobs, persistent=_is_persistent(resolved), sms=sms)


def _tiles_of(problem: Problem, resolved: Config) -> int:
    return _tiles(problem, resolved.int("BLOCK_M"), resolved.int("PACK_GQA"))


def _sized(problem: Problem, config: Config) -> Config:
    """``config`` with values for BLOCK_N and NUM_STAGES; all other knobs must have values."""
    keys, groups = -(-problem.seq_kv // config.int("SPLIT")), config.int("KEY_GROUPS")
    few = keys <= 64 * groups or (groups > 1 and problem.head_dim > 64) or problem.softcap > 0.0
    block_n = config.int("BLOCK_N") or (64 if few else 80 if problem.head_dim == 256 else 128)
    sized = config.but(BLOCK_N=block_n)
    least = 2 * groups
    most = min(4, max(least, -(-keys // block_n)))
    stages = config.int("NUM_STAGES") or next(
        (
            many
            for many in range(most, least, -1)
            if smem_bytes(problem, sized.but(NUM_STAGES=many)) <= MAX_SHARED_BYTES
        ),
        least,
    )
    return sized.but(NUM_STAGES=stages)


def _is_persistent(config: Config) -> bool:
    return config["SCHEDULE"] == "persistent"


def _held(problem: Problem, resolved: Config, sms: int) -> int:
    """Number of blocks that a GPU of ``sms`` SMs holds at once."""
    return sms * blocks_per_sm(problem.head_dim, resolved.int("BLOCK_M"), smem_bytes(problem, resolved))


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: the common part, and partial results of groups and clusters.

    ``config`` must have a value for each knob.
    """
    block_m, block_n, stages, split, groups, _ = (config.int(name) for name in VALUES)
    own = shared_bytes(problem.head_dim, block_m, block_n, stages, o_apart=_is_persistent(config))
    return own + merged_bytes(problem.head_dim, block_m, split, groups)


def _unsuitable(problem: Problem, resolved: Config) -> str | None:
    """Reason why blocks of these knobs, which all have values, cannot compute ``problem``; None if they can."""
    block_m, block_n, stages, split, groups, _ = (resolved.int(name) for name in VALUES)
    if _is_persistent(resolved) and split > 1:
        return f"SCHEDULE=persistent has blocks that split no keys: SPLIT must be 0 or 1, not {split}"
    if _is_persistent(resolved) and _tiles_of(problem, resolved) > MAX_TILES:
        return f"SCHEDULE=persistent numbers tiles of queries with 32 bits, and {problem.label} has more"
    if _is_persistent(resolved) and (block_m, block_n, problem.head_dim) == SPILLING:
        return (
            f"persistent blocks of {block_m} rows and tiles of {block_n} keys spill registers at head_dim "
            f"{problem.head_dim}: take another BLOCK_M or BLOCK_N, or SCHEDULE=tiles"
        )
    if groups > 1 and (block_m != WARPGROUP_M or _is_persistent(resolved)):
        return (
            f"KEY_GROUPS={groups} has consumers that share the {WARPGROUP_M} rows of a block: BLOCK_M must be 0 or "
            f"{WARPGROUP_M}, and SCHEDULE auto or tiles"
        )
    if groups > 1 and stages != 2 * groups:
        return f"KEY_GROUPS={groups} has two stages for each group: NUM_STAGES must be 0 or {2 * groups}, not {stages}"
    if problem.softcap and block_n > MOST_CAPPED_KEYS:
        return f"a soft cap needs registers of its own: with it BLOCK_N is at most {MOST_CAPPED_KEYS}, not {block_n}"
    accumulators = problem.head_dim // 2 + block_n // 2  # O and S
    crowded = reject_crowded(accumulators + block_n // 4, problem.head_dim, block_m, block_n, groups)
    return crowded or reject_oversized(smem_bytes(problem, resolved), MAX_SHARED_BYTES, resolved)


def _supports(problem: Problem) -> str | None:
    if problem.softcap and problem.head_dim > MOST_CAPPED_DIM:
        return f"kernel hopper has a soft cap up to head_dim {MOST_CAPPED_DIM}, and would spill at {problem.head_dim}"
    return ladder_supports(problem, HALF_DTYPES, "hopper", HEAD_DIMS)


def _reject(problem: Problem, config: Config) -> str | None:
    listed: dict[str, tuple[int | str, ...]] = {name: (0, *values) for name, values in VALUES.items()}
    listed |= {"SCHEDULE": ("auto", *SCHEDULES), "EXP_ON_FMA": ("auto", *EXP_ON_FMA)}
    unlisted = reject_unlisted(config, listed)
    if unlisted is not None:
        return unlisted
    ctas, packed, schedule = config.int("NUM_CTAS"), config.int("PACK_GQA"), config["SCHEDULE"]
    if problem.features and (schedule == "persistent" or max(config.int("SPLIT"), config.int("KEY_GROUPS")) > 1):
        features = " and ".join(problem.features)
        return (
            f"a block has a tile of queries to itself for {features}: SPLIT is 0 or 1, KEY_GROUPS 0 or 1, and SCHEDULE "
            f"auto or tiles"
        )
    if not 0 <= ctas <= MAX_CTAS:
        return f"NUM_CTAS must be 0 to {MAX_CTAS}, not {ctas}"
    if problem.group % (packed or 1):
        return (
            f"PACK_GQA must be 0, or divide the {problem.group} query heads that share K and V, which {packed} does not"
        )
    if ctas and schedule != "persistent":
        return f"NUM_CTAS is the number of persistent blocks: with SCHEDULE={schedule} it must be 0, not {ctas}"
    return _unsuitable(problem, resolve(problem, config))


def _macros(problem: Problem, resolved: Config) -> Mapping[str, Knob]:
    knobs = {name: resolved[name] for name in (*VALUES, "EXP_ON_FMA")}
    return {**window_macros(problem), **knobs, "PERSISTENT": int(_is_persistent(resolved))}


def _heads_at_once(problem: Problem, tiles: int, ctas: int, packed: int) -> int:
    """Query heads whose ``tiles`` each are mixed by persistent blocks: all heads, split as evenly as possible.

    The number is such that K and V of all fit half of L2, or that SHARERS blocks read each of them, and allows at
    least two rounds. ``packed`` heads count as one.
    """
    fitting = L2_BYTES // 2 // (2 * problem.seq_kv * problem.head_dim * 2) * problem.group // packed
    most = max(fitting, ctas // SHARERS, -(-2 * ctas // tiles))
    heads = problem.batch * problem.heads // packed
    return -(-heads // -(-heads // most))


def _plan(problem: Problem, resolved: Config) -> Launch:
    block_m, split, packed = (resolved.int(name) for name in ("BLOCK_M", "SPLIT", "PACK_GQA"))
    heads, kv_heads = problem.heads // packed, problem.batch * problem.kv_heads
    q_heads = problem.batch * heads
    of_queries = (q_heads * packed, problem.seq_q, problem.head_dim)
    of_keys = (kv_heads, problem.seq_kv, problem.head_dim, resolved.int("BLOCK_N"))
    maps = (
        tiled_map("q", *of_queries, WARPGROUP_M, packed),
        tiled_map("k", *of_keys),
        tiled_map("v", *of_keys),
        tiled_map("o", *of_queries, WARP_M, packed),
    )
    tiles = _tiles_per_head(problem, block_m, packed)
    sizes = (problem.seq_q, problem.seq_kv, problem.group // packed)
    grid, order = (split * tiles, heads, problem.batch), (q_heads, 0, 0)
    if _is_persistent(resolved):
        ctas = min(resolved.int("NUM_CTAS"), tiles * q_heads)
        at_once = _heads_at_once(problem, tiles, ctas, packed)
        grid, order = (ctas, 1, 1), (q_heads, at_once, -(-at_once * tiles // ctas))
    return Launch(
        grid=grid,
        block=(block_threads(block_m, resolved.int("KEY_GROUPS")), 1, 1),
        args=(*maps, *sizes, problem.scale, "lse", *(["kv_lengths"] if problem.features else order)),
        dynamic_smem=smem_bytes(problem, resolved),
        cluster=(split, 1, 1),
        programmatic=True,
    )


_AUTO = Config(
    BLOCK_M=0,
    BLOCK_N=0,
    NUM_STAGES=0,
    SPLIT=0,
    KEY_GROUPS=0,
    PACK_GQA=0,
    EXP_ON_FMA="auto",
    SCHEDULE="auto",
    NUM_CTAS=0,
)
_TILES = _AUTO.but(BLOCK_N=64, NUM_STAGES=2, KEY_GROUPS=1, PACK_GQA=1, EXP_ON_FMA=13, SCHEDULE="tiles")

HOPPER = CudaKernel(
    name="hopper",
    source=Path("hopper.cu"),
    entry="hopper_attention",
    plan=_plan,
    configs=(
        _AUTO,
        _TILES.but(BLOCK_M=128, SPLIT=1),
        _TILES.but(BLOCK_M=64, SPLIT=2),
        _TILES.but(BLOCK_M=64, SPLIT=2, KEY_GROUPS=2, NUM_STAGES=4),
        _TILES.but(BLOCK_M=128, SPLIT=1, SCHEDULE="persistent", NUM_CTAS=1),
        _TILES.but(BLOCK_M=64, SPLIT=2, PACK_GQA=4),
    ),
    supports=_supports,
    reject=_reject,
    limits=LIMITS,
    min_arch=90,
    only_arch="sm_90a",
    knobs={**VALUES, "SCHEDULE": SCHEDULES, "EXP_ON_FMA": EXP_ON_FMA},
    lse=True,
    features=("window_size", "softcap", "kv_lengths"),
    variant=Path("hopper_masked.cu"),
    resolve=resolve,
    macros=_macros,
    algebraic={"EXP_ON_FMA": 0},
    idea="FlashAttention-3: TMA feeds warpgroups that overlap softmax and products; clusters split keys of few rows",
)
