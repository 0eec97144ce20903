"""Run a kernel on the simulator in this process, and judge the result by the judge's own rule."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from sdpalab.build import build
from sdpalab.build.resources import Resources, resources
from sdpalab.inputs import make_inputs
from sdpalab.judge.evaluate import Evidence, evaluate
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import Launch
from sdpalab.problem import Problem
from sdpalab.run import RunResult, SimulatedExecutor

__all__ = ["assert_computes", "assert_gate", "judged", "ptx_of", "resources_of", "run"]


def run(
    kernel: Kernel,
    problem: Problem,
    config: Config | None = None,
    *,
    kind: str = "normal",
    less_smem: int = 0,
    **options: Any,
) -> RunResult:
    """One simulated run on inputs of ``kind``; with ``less_smem`` bytes less shared memory than the plan asks for.

    ``options`` are the executor's, such as ``schedule="reverse"``; the architecture is the kernel's default. A kernel
    that writes the log-sum-exp is asked for it.
    """
    options.setdefault("arch", kernel.default_arch)
    inputs = make_inputs(problem, kind)
    plan = kernel.launch_plan(problem, config, lse=kernel.lse)
    steps = tuple(
        replace(step, dynamic_smem=step.dynamic_smem - less_smem)
        if isinstance(step, Launch) and step.dynamic_smem
        else step
        for step in plan.steps
    )
    return SimulatedExecutor(**options).run(replace(plan, steps=steps), {"q": inputs.q, "k": inputs.k, "v": inputs.v})


def judged(
    kernel: Kernel, problem: Problem, result: RunResult, config: Config | None = None, *, kind: str = "normal"
) -> Evidence:
    """What the judge makes of a run of :func:`run` on the same inputs."""
    reply = {"hazards": list(result.hazards), "hazard_count": len(result.hazards), "changed": result.changed_inputs}
    about = {"numerics": asdict(kernel.numerics), "device": result.device, "config": str(config)}
    outputs = {**result.outputs, "first": result.outputs["o"], "second": result.outputs["o"]}
    return evaluate(problem, make_inputs(problem, kind), about, reply, outputs)


def assert_computes(
    kernel: Kernel, problem: Problem, config: Config | None = None, *, kind: str = "normal", **options: Any
) -> Evidence:
    """The kernel's result is within the judge's limits, without a hazard and with its inputs untouched.

    ``options`` are those of :func:`run`.
    """
    evidence = judged(kernel, problem, run(kernel, problem, config, kind=kind, **options), config, kind=kind)
    assert evidence.status is Status.PASSED, f"{problem.label} {kind} {config} {options}: {evidence.reason}"
    return evidence


def ptx_of(kernel: Kernel, problem: Problem, config: Config | None = None) -> str:
    """PTX for sm_89 of the kernel's last launch, without the lines that only locate it in the source."""
    step = kernel.launch_plan(problem, config).launches[-1]
    assert step.module is not None
    lines = build(step.module).ptx.decode().splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith((".loc", ".file", "//")))


def resources_of(kernel: Kernel, problem: Problem, config: Config | None = None, arch: str = "sm_89") -> Resources:
    """Resources of the kernel's last launch."""
    step = kernel.launch_plan(problem, config).launches[-1]
    assert step.module is not None
    return resources(build(step.module, arch), step)


def assert_gate(kernel: Kernel, problem: Problem, config: Config | None = None, arch: str = "sm_89") -> None:
    """All that the kernel launches stays within the limits that it declares, with neither spills nor stack."""
    limits = kernel.static_limits(problem)
    for step in kernel.launch_plan(problem, config).launches:
        assert step.module is not None
        used = resources(build(step.module, arch), step)
        where = f"{step.module.entry} {problem.label} {config} {arch}"
        assert (used.spill_bytes, used.stack_bytes) == (0, 0), f"{where}: {used}"
        assert used.registers <= limits.registers, f"{where}: {used.registers} registers"
        assert used.shared_bytes <= limits.shared_bytes, f"{where}: {used.shared_bytes} bytes of shared memory"
        assert used.blocks_per_sm >= limits.min_blocks_per_sm, f"{where}: {used.blocks_per_sm} blocks an SM"
