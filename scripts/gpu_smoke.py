"""Run one shipped kernel once on the GPU and compare the output with float64: python scripts/gpu_smoke.py KERNEL

Exit code: 0 if the output is right; 1 if it is wrong or the kernel faulted; 2 for wrong usage; 3 if the machine failed.
"""

from __future__ import annotations

import sys
import time

from sdpalab.errors import MachineError, UserError
from sdpalab.inputs import make_inputs
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.kernels.registry import get
from sdpalab.problem import Problem
from sdpalab.run import GpuExecutor, KernelFault

PROBLEM = Problem(1, 4, 128, 64)
"""One of the twelve cases: small enough for the memory checker, and built already where kernels are judged."""


def smoke(name: str) -> tuple[bool, str]:
    """Whether the kernel's output is right, and a sentence with the result."""
    kernel = get(name)
    inputs = make_inputs(PROBLEM)
    executor = GpuExecutor()
    start = time.perf_counter()
    result = executor.run(kernel.launch_plan(PROBLEM, sms=executor.sms), {"q": inputs.q, "k": inputs.k, "v": inputs.v})
    seconds = time.perf_counter() - start
    if result.hazards or result.changed_inputs:
        return False, "; ".join((*result.hazards, *(f"input {each} was changed" for each in result.changed_inputs)))
    judged = judge_output(PROBLEM, inputs, result.outputs["o"], kernel.numerics_of())
    share = judged.errors.max_abs / judged.limits.max_abs
    line = f"{judged.status.value} on {executor.device}, {PROBLEM.label}: max error {judged.errors.max_abs:.2e}, "
    line += f"{share:.0%} of its limit, built and run in {seconds:.1f} s"
    return not judged.reason, f"{line}; {judged.reason}" if judged.reason else line


def main(arguments: list[str]) -> int:
    """The command line."""
    if len(arguments) != 1:
        print("usage: python scripts/gpu_smoke.py KERNEL", file=sys.stderr)
        return 2
    try:
        good, line = smoke(arguments[0])
    except KernelFault as fault:
        print(f"{arguments[0]}: FAULT: {fault}")
        return 1
    except (UserError, MachineError) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 3
    print(f"{arguments[0]}: {line}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
