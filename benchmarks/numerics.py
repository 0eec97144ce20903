"""What the hardware's sums change in the output of each shipped kernel, beside sums in float32.

    python benchmarks/numerics.py [KERNEL ...] [--seq 512] [--fp8]

One head of 64 dimensions on normal inputs, on the simulator: the share of the output's elements that differ between the
two numerics, the greatest difference, the relative L2 distance of both from float64, and the time of each. ``--fp8``:
instead, what the tensor cores of sm_90 (wgmma) lose of products in e4m3, beside what quantising the operands costs: of
P V in one accumulator and in tiles of 128 keys, and of scores, which are one sum over all dimensions.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.kernels.registry import KERNELS, get, needs
from sdpalab.problem import Problem
from sdpalab.run.simulated import SimulatedExecutor
from warpsan import NUMERICS
from warpsan.numerics import EMIN, SumRule, rule_of

Array = npt.NDArray[Any]


def row(name: str, seq: int) -> str:
    """A kernel's row of the table."""
    kernel, problem = get(name), Problem(1, 1, seq, 64)
    if reason := kernel.why_not(problem):
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


def to_e4m3(x: Array) -> Array:
    """The nearest numbers of e4m3, in float32."""
    return x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def exponents(values: Array, least: int) -> Array:
    """Exponents of numbers, ``least`` at least; far below all others for zero."""
    return np.where(values == 0, -1000, np.maximum(np.frexp(values)[1] - 1, least))


def add_products(left: Array, right: Array, before: Array, rule: SumRule) -> Array:
    """``before`` plus the products of one instruction, all finite, by the rule: aligned to the greatest exponent of a
    block, cut off, added and cut to the precision of the sum."""
    total = before.astype(np.float64)
    for block in map(list, rule.blocks):
        terms = left[:, None, block].astype(np.float64) * right[None, :, block]
        of_a, of_b = (exponents(each, least) for each, least in zip((left, right), rule.least, strict=True))
        greatest = (of_a[:, None, block] + of_b[None, :, block]).max(axis=2)
        greatest = np.maximum(greatest, exponents(total, EMIN["f32"]))
        unit = np.ldexp(1.0, np.where(greatest < -900, 0, greatest) - rule.fraction)
        total = np.trunc(total / unit) * unit + (np.trunc(terms / unit[:, :, None]) * unit[:, :, None]).sum(axis=2)
        last = np.ldexp(1.0, np.where(total == 0, 0, np.frexp(total)[1] - 1) - rule.precision)
        total = np.trunc(total / last) * last
    return total.astype(np.float32)


def summed(a: Array, b: Array, length: int) -> Array:
    """a [rows, k] times b [columns, k]^T, numbers of e4m3, in sums of ``length`` terms that join in float32."""
    rule = rule_of("sm_90a", "wgmma", "e4m3", 32, "f32")
    total = np.zeros((len(a), len(b)), np.float32)
    for begin in range(0, a.shape[1], length):
        part = np.zeros_like(total)
        for k in range(begin, begin + length, 32):
            part = add_products(a[:, k : k + 32], b[:, k : k + 32], part, rule)
        total = total + part
    return total


def output_row(keys: int, sign: str, dims: int = 64, rows: int = 64) -> str:
    """What P V loses, relative L2: P is 2**8 times weights of normal scores, V normal or its magnitudes."""
    rng = np.random.default_rng(keys)
    scores = rng.normal(size=(rows, keys))
    weights = 256 * np.exp(scores - scores.max(axis=1, keepdims=True))
    values = rng.normal(size=(dims, keys))
    values = values if sign == "either" else np.abs(values)
    values *= 448 / np.abs(values).max()
    p, v = to_e4m3(weights), to_e4m3(values)
    exact = p.astype(np.float64) @ v.T.astype(np.float64)
    one, tiles = (np.linalg.norm(summed(p, v, many) - exact) / np.linalg.norm(exact) for many in (keys, 128))
    outputs = [
        of_keys / of_weights.sum(axis=1, keepdims=True)
        for of_keys, of_weights in ((exact, weights), (weights @ values.T, weights))
    ]
    quantised = np.linalg.norm(outputs[0] - outputs[1]) / np.linalg.norm(outputs[1])
    return f"| {keys:,} | {sign} | {one:.3%} | {tiles:.3%} | {quantised:.3%} |"


def score_row(dims: int, rows: int = 256) -> str:
    """What scores of normal Q and K lose, as the root mean square of q k / sqrt(dims)."""
    rng = np.random.default_rng(dims)
    given = [rng.normal(size=(rows, dims)) for _ in "qk"]
    units = [np.abs(x).max() / 448 for x in given]
    q, k = (to_e4m3(x / unit) for x, unit in zip(given, units, strict=True))
    exact = q.astype(np.float64) @ k.T.astype(np.float64)
    unit = units[0] * units[1] / np.sqrt(dims)
    sums = np.sqrt(np.mean((summed(q, k, dims) - exact) ** 2)) * unit
    quantised = np.sqrt(np.mean((exact * unit - given[0] @ given[1].T / np.sqrt(dims)) ** 2))
    return f"| {dims} | {sums:.5f} | {quantised:.5f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", default=[name for name in KERNELS if not needs(name)])
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--fp8", action="store_true")
    options = parser.parse_args()
    if options.fp8:
        print("| keys | sign of V | one accumulator | a tile of 128 keys at a time | quantising P and V |")
        print("|---|---|---|---|---|")
        for sign, keys in product(("either", "one"), (512, 8192, 32768)):
            print(output_row(keys, sign), flush=True)
        print("\n| dimensions | a score's sum | quantising Q and K |\n|---|---|---|")
        for dims in (64, 128, 256):
            print(score_row(dims), flush=True)
        return
    print("| kernel | for | elements that differ | greatest difference | error, hardware | error, float32 | time |")
    print("|---|---|---|---|---|---|---|")
    for name in options.kernels:
        print(row(name, options.seq), flush=True)


if __name__ == "__main__":
    main()
