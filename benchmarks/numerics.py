"""What the hardware's sums change in the output of each shipped kernel, beside sums in float32.

    python benchmarks/numerics.py [KERNEL ...] [--seq 512] [--fp8]

One head of 64 dimensions on normal inputs, on the simulator: the share of the output's elements that differ between the
two numerics, the greatest difference, the relative L2 distance of both from float64, and the time of each. ``--fp8``:
instead, what the tensor cores of sm_90 (wgmma) lose of P V in e4m3, in one accumulator and in tiles of 128 keys.
"""

from __future__ import annotations

import argparse
import time

import ml_dtypes
import numpy as np

from sdpalab.inputs import make_inputs
from sdpalab.judge.rule.reference import attention_float64
from sdpalab.kernels.registry import KERNELS, get, needs
from sdpalab.problem import Problem
from sdpalab.run.simulated import SimulatedExecutor
from sdpalab.sim import NUMERICS
from sdpalab.sim.isa.sums import add_products
from sdpalab.sim.tensor_cores import rule_of


def row(name: str, seq: int) -> str:
    """A kernel's row of the table."""
    kernel, problem = get(name), Problem(1, 1, seq, 64)
    if reason := kernel.reject_reason(problem):
        return f"| `{name}` | {reason} |"
    inputs = make_inputs(problem, "normal", 0)
    exact = attention_float64(inputs.q, inputs.k, inputs.v, scale=problem.scale, causal=problem.causal)
    outputs, seconds = {}, {}
    plan = kernel.launch_plan(problem, kernel.default_config)
    for numerics in NUMERICS:
        executor = SimulatedExecutor(kernel.default_arch, checks=(), workers=1, numerics=numerics)
        executor.run(plan, inputs.arrays)  # compiles what is missing
        start = time.perf_counter()
        outputs[numerics] = executor.run(plan, inputs.arrays).outputs["o"].astype(np.float64)
        seconds[numerics] = time.perf_counter() - start
    errors = [np.linalg.norm(outputs[each] - exact) / np.linalg.norm(exact) for each in NUMERICS]
    apart = np.abs(outputs["hardware"] - outputs["float32"])
    figures = f"{(apart > 0).mean():.1%} | {apart.max():.1e} | {errors[0]:.4e} | {errors[1]:.4e}"
    return f"| `{name}` | {kernel.default_arch} | {figures} | {seconds['hardware'] / seconds['float32']:.2f} |"


def fp8_row(keys: int, tile: int = 128, dims: int = 64, rows: int = 64) -> str:
    """What the sums of P V lose, relative L2: P is 2**8 times weights of normal scores, V normal, both e4m3."""
    rng, kind = np.random.default_rng(keys), ml_dtypes.float8_e4m3fn
    scores = rng.normal(size=(rows, keys))
    p = (256 * np.exp(scores - scores.max(axis=1, keepdims=True))).astype(kind).astype(np.float32)
    v = rng.normal(size=(dims, keys))
    v = (v * (448 / np.abs(v).max())).astype(kind).astype(np.float32)
    exact = p.astype(np.float64) @ v.T.astype(np.float64)
    rule = rule_of("sm_90a", "wgmma", "e4m3", 32, "f32")

    def summed(length: int) -> float:
        total = np.zeros((rows, dims), np.float32)
        for begin in range(0, keys, length):
            part = np.zeros_like(total)
            for k in range(begin, begin + length, 32):
                part = add_products(p[:, k : k + 32], v[:, k : k + 32], part, rule, "f32", "hardware")
            total = total + part
        return float(np.linalg.norm(total - exact) / np.linalg.norm(exact))

    return f"| {keys:,} | {summed(keys):.3%} | {summed(tile):.3%} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", default=[name for name in KERNELS if not needs(name)])
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--fp8", action="store_true")
    options = parser.parse_args()
    if options.fp8:
        print("| keys | one accumulator | a tile of 128 keys at a time |\n|---|---|---|")
        for keys in (512, 8192, 32768):
            print(fp8_row(keys), flush=True)
        return
    print("| kernel | for | elements that differ | greatest difference | error, hardware | error, float32 | time |")
    print("|---|---|---|---|---|---|---|")
    for name in options.kernels:
        print(row(name, options.seq), flush=True)


if __name__ == "__main__":
    main()
