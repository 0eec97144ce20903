"""What the hardware's sums change in the output of each shipped kernel, beside sums in float32.

    python benchmarks/numerics.py [KERNEL ...] [--seq 512]

One head of 64 dimensions on normal inputs, on the simulator: the share of the output's elements that differ between the
two numerics, the greatest difference, the relative L2 distance of both from float64, and the time of each.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from sdpalab.inputs import make_inputs
from sdpalab.judge.rule.reference import attention_float64
from sdpalab.kernels.registry import KERNELS, get, needs
from sdpalab.problem import Problem
from sdpalab.run.simulated import SimulatedExecutor
from sdpalab.sim import NUMERICS


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
        executor.run(plan, vars(inputs))  # compiles what is missing
        start = time.perf_counter()
        outputs[numerics] = executor.run(plan, vars(inputs)).outputs["o"].astype(np.float64)
        seconds[numerics] = time.perf_counter() - start
    errors = [np.linalg.norm(outputs[each] - exact) / np.linalg.norm(exact) for each in NUMERICS]
    apart = np.abs(outputs["hardware"] - outputs["float32"])
    figures = f"{(apart > 0).mean():.1%} | {apart.max():.1e} | {errors[0]:.4e} | {errors[1]:.4e}"
    return f"| `{name}` | {kernel.default_arch} | {figures} | {seconds['hardware'] / seconds['float32']:.2f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", default=[name for name in KERNELS if not needs(name)])
    parser.add_argument("--seq", type=int, default=512)
    options = parser.parse_args()
    print("| kernel | for | elements that differ | greatest difference | error, hardware | error, float32 | time |")
    print("|---|---|---|---|---|---|---|")
    for name in options.kernels:
        print(row(name, options.seq), flush=True)


if __name__ == "__main__":
    main()
