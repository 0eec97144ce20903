"""The ``blackwell`` kernel: its knobs, its shared memory and its launch. The idea is in ``blackwell.cu``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, Knob
from sdpalab.kernels.ladder import ladder_supports, reject_oversized, reject_unlisted
from sdpalab.kernels.plan import Launch
from sdpalab.kernels.warpgroups import LIMITS, MAX_SHARED_BYTES, tiled_map
from sdpalab.problem import HALF_DTYPES, Problem
from warpsan.gpus import default_sms

__all__ = ["BLACKWELL", "modelled_clocks", "resolve", "smem_bytes"]

HEAD_DIMS = (64, 128)
VALUES = {"Q_TILES": (1, 2), "SPLIT": (1, 2, 4), "NUM_STAGES": (1, 2, 3, 4), "EXP_ON_FMA": (0, 8, 13, 16, 24)}
SMS = default_sms("sm_100a")
TENSOR_M, KEYS, STORED_ROWS = 128, 128, 32
"""Rows of a product, keys of a tile, and rows that a warp stores."""
FLOPS_PER_CLOCK = 8192
"""FLOPs per clock of one SM's tensor cores in float16: 2250 TFLOPS on 148 SMs at 1.86 GHz."""
EXPONENTIALS_PER_CLOCK = 16
CLUSTER_BYTES_PER_CLOCK = 14
"""Largest number of bytes per clock that an SM reads from another; an estimate, not yet measured."""
BLOCK_CLOCKS = 2500
"""Clocks of a block besides its tiles: launch, allocation, load of the first tile, store. An estimate, not yet
measured."""


def _keys_of(problem: Problem, split: int) -> int:
    """Keys of the longest share."""
    tiles = -(-problem.seq_kv // KEYS)
    return problem.seq_kv if split == 1 else KEYS * -(-tiles // split)


def modelled_clocks(problem: Problem, tiles: int, split: int, on_fma: int, *, sms: int = SMS) -> float:
    """Modelled clocks on ``sms`` SMs: waves of blocks times the cost of a block. For ranking choices, not predictions.

    One tile of rows executes its exponentials and its products one after the other; two tiles overlap them. Blocks
    that share rows read each other's partial results.
    """
    rows, keys = TENSOR_M * tiles, _keys_of(problem, split)
    products = 4 * rows * keys * problem.head_dim / FLOPS_PER_CLOCK
    exponentials = rows * keys * (64 - on_fma) / 64 / EXPONENTIALS_PER_CLOCK
    work = products + exponentials if tiles == 1 else max(products, exponentials)
    work += rows * (split - 1) / split * problem.head_dim * 4 / CLUSTER_BYTES_PER_CLOCK
    blocks = -(-problem.seq_q // rows) * split * problem.heads * problem.batch
    return -(-blocks // sms) * (BLOCK_CLOCKS + work)


@lru_cache(maxsize=1024)
def resolve(problem: Problem, config: Config, sms: int = SMS) -> Config:
    """``config`` with a value for each knob that is 0 or ``auto``, for a GPU of ``sms`` SMs.

    Q_TILES and SPLIT minimise :func:`modelled_clocks`; NUM_STAGES is the largest that shared memory allows, up to the
    tiles of keys of a block, and 2 for a single tile of a block without a cluster, where one stage spills. EXP_ON_FMA
    is 16: the special function unit takes as long as the tensor cores at head_dim 128, and twice as long at 64.
    """
    if config["EXP_ON_FMA"] == "auto":
        config = config.but(EXP_ON_FMA=16)
    tiles, splits = ((config.int(name),) if config.int(name) else VALUES[name] for name in ("Q_TILES", "SPLIT"))
    ways = [(tile, split) for tile in tiles for split in splits if tile == 1 or split == 1] or [(tiles[0], splits[0])]
    on_fma = config.int("EXP_ON_FMA")
    best = min(ways, key=lambda way: modelled_clocks(problem, way[0], way[1], on_fma, sms=sms))
    config = config.but(Q_TILES=best[0], SPLIT=best[1])
    if config.int("NUM_STAGES"):
        return config
    least = 2 if config["SPLIT"] == 1 else 1
    most = max(least, min(4, -(-_keys_of(problem, config.int("SPLIT")) // KEYS)))
    fitting = (
        many for many in range(most, 1, -1) if smem_bytes(problem, config.but(NUM_STAGES=many)) <= MAX_SHARED_BYTES
    )
    return config.but(NUM_STAGES=next(fitting, 1))


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes, as in ``SharedStorage``; ``config`` must have a value for each
    knob."""
    tiles, stages = config.int("Q_TILES"), config.int("NUM_STAGES")
    rows = 2 * problem.head_dim * (TENSOR_M * tiles + 2 * KEYS * stages)
    barriers = 8 * (5 * tiles + 4 * stages)
    maxima = TENSOR_M if config.int("SPLIT") > 1 else 1
    return -(-(rows + 4 * (TENSOR_M * tiles + maxima)) // 8) * 8 + barriers + 8


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, HALF_DTYPES, "blackwell", HEAD_DIMS)


def _reject(problem: Problem, config: Config) -> str | None:
    listed: dict[str, tuple[int | str, ...]] = {name: (0, *values) for name, values in VALUES.items()}
    unlisted = reject_unlisted(config, listed | {"EXP_ON_FMA": ("auto", *VALUES["EXP_ON_FMA"])})
    if unlisted is not None:
        return unlisted
    resolved = resolve(problem, config)
    if resolved.int("SPLIT") > 1 and resolved.int("Q_TILES") > 1:
        return f"blocks that share rows have one tile of them: SPLIT={resolved.int('SPLIT')} needs Q_TILES=1 or 0"
    return reject_oversized(smem_bytes(problem, resolved), MAX_SHARED_BYTES, config)


def _macros(problem: Problem, resolved: Config) -> Mapping[str, Knob]:
    return {name: resolved[name] for name in VALUES}


def _plan(problem: Problem, resolved: Config) -> Launch:
    tiles, split = resolved.int("Q_TILES"), resolved.int("SPLIT")
    of_queries = (problem.batch * problem.heads, problem.seq_q, problem.head_dim)
    of_keys = (problem.batch * problem.kv_heads, problem.seq_kv, problem.head_dim, KEYS)
    maps = (
        tiled_map("q", *of_queries, TENSOR_M),
        tiled_map("k", *of_keys),
        tiled_map("v", *of_keys),
        tiled_map("o", *of_queries, STORED_ROWS),
    )
    return Launch(
        grid=(-(-problem.seq_q // (TENSOR_M * tiles)) * split, problem.heads, problem.batch),
        block=(128 * (tiles + 2), 1, 1),
        args=(*maps, "o", problem.seq_q, problem.seq_kv, problem.group, problem.scale, "lse"),
        dynamic_smem=smem_bytes(problem, resolved),
        cluster=(split, 1, 1),
        programmatic=True,
    )


_AUTO = Config(Q_TILES=0, SPLIT=0, NUM_STAGES=0, EXP_ON_FMA="auto")

BLACKWELL = CudaKernel(
    name="blackwell",
    source=Path("blackwell.cu"),
    entry="blackwell_attention",
    plan=_plan,
    configs=(
        _AUTO,
        _AUTO.but(Q_TILES=2, NUM_STAGES=2),
        _AUTO.but(Q_TILES=1, SPLIT=1, NUM_STAGES=1, EXP_ON_FMA=0),
        _AUTO.but(SPLIT=4),
    ),
    supports=_supports,
    reject=_reject,
    limits=LIMITS,
    min_arch=100,
    only_arch="sm_100a",
    knobs=VALUES,
    lse=True,
    resolve=resolve,
    macros=_macros,
    algebraic={"EXP_ON_FMA": 0},
    idea="FlashAttention-4: scores and output in tensor memory, softmax, correction and products in warps of their own",
)
