"""The ``scalar`` kernel: its knobs, its shared memory and its launch. The idea is in ``scalar.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import MISSION_LIMITS, Config, CudaKernel, Numerics, StaticLimits
from sdpalab.kernels.ladder import ladder_launch, ladder_supports, reject_oversized
from sdpalab.kernels.plan import Launch
from sdpalab.problem import Problem

__all__ = ["SCALAR", "smem_bytes"]

KEY_LANES = 8
ROW_LANES = 4
VEC_WIDTHS = (1, 2, 4, 8)
SYNC_POLICIES = ("block", "warp")
REDUCTIONS = ("shuffle", "shared")
MAX_ACCUMULATORS = 128
LIMITS = MISSION_LIMITS
WIDE_LIMITS = LIMITS.but(registers=128, reason="at D = 128 a thread holds twice the outputs; sm_120 takes 122")


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: Q, K, V and P as floats, and partial reductions if shared."""
    block_m, block_n = config.int("BLOCK_M"), config.int("BLOCK_N")
    pitch = problem.head_dim + 4
    tile_owners = 1 if config["SYNC_POLICY"] == "block" else config.int("NUM_WARPS")
    floats = tile_owners * block_n * (pitch + problem.head_dim)
    floats += block_m * (pitch + block_n + 8)
    if config["REDUCE"] == "shared":
        floats += block_m * KEY_LANES
    return 4 * floats


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, ("float16", "bfloat16"), "scalar")


def _limits(problem: Problem) -> StaticLimits:
    return LIMITS if problem.head_dim <= 64 else WIDE_LIMITS


def _reject(problem: Problem, config: Config) -> str | None:
    block_m, block_n, warps = (config.int(name) for name in ("BLOCK_M", "BLOCK_N", "NUM_WARPS"))
    if not 1 <= warps <= 32:
        return f"NUM_WARPS must be 1 to 32, not {warps}"
    if block_m < 1 or block_m % (ROW_LANES * warps):
        return f"BLOCK_M must be a multiple of {ROW_LANES} rows for each of NUM_WARPS={warps} warps, not {block_m}"
    if block_n < 1 or block_n % KEY_LANES:
        return f"BLOCK_N must be a multiple of {KEY_LANES} keys, not {block_n}"
    for name, allowed in (("VEC_WIDTH", VEC_WIDTHS), ("SYNC_POLICY", SYNC_POLICIES), ("REDUCE", REDUCTIONS)):
        if config.get(name) not in allowed:
            return f"{name} must be one of {', '.join(map(str, allowed))}, not {config.get(name)!r}"
    rows = block_m // (ROW_LANES * warps)
    accumulators = rows * (block_n + problem.head_dim) // KEY_LANES
    if accumulators > MAX_ACCUMULATORS:
        return f"{config} makes a thread hold {accumulators} scores and outputs; at most {MAX_ACCUMULATORS} fit"
    return reject_oversized(smem_bytes(problem, config), LIMITS.value("shared_bytes"), config)


def _plan(problem: Problem, config: Config) -> Launch:
    threads = 32 * config.int("NUM_WARPS")
    return ladder_launch(problem, config.int("BLOCK_M"), threads, smem_bytes(problem, config))


_DEFAULT = Config(BLOCK_M=32, BLOCK_N=32, NUM_WARPS=4, VEC_WIDTH=8, SYNC_POLICY="block", REDUCE="shuffle")

SCALAR = CudaKernel(
    name="scalar",
    source=Path("scalar.cu"),
    entry="scalar_attention",
    plan=_plan,
    configs=(
        _DEFAULT,
        _DEFAULT.but(BLOCK_M=64, NUM_WARPS=8),
        _DEFAULT.but(BLOCK_N=16, SYNC_POLICY="warp"),
        _DEFAULT.but(REDUCE="shared"),
    ),
    supports=_supports,
    reject=_reject,
    numerics=Numerics(probabilities="float32"),
    limits=_limits,
    knobs={
        "BLOCK_M": (16, 32, 64),
        "BLOCK_N": (16, 32, 64),
        "NUM_WARPS": (2, 4, 8),
        "VEC_WIDTH": VEC_WIDTHS,
        "SYNC_POLICY": SYNC_POLICIES,
        "REDUCE": REDUCTIONS,
    },
    lse=True,
    idea="online softmax in registers and shared memory, one scalar multiply-add at a time",
)
