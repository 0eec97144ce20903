"""Run a kernel on the simulator in this process, and hold its result and its build against what it declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np

from sdpalab.compile import Build, build
from sdpalab.compile.gate import check
from sdpalab.compile.resources import Resources, resources
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.judge.rule.evaluate import Evidence, evaluate
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Config, Kernel, Knob
from sdpalab.kernels.plan import Launch
from sdpalab.packing import Packing
from sdpalab.problem import Problem
from sdpalab.run import RunResult, SimulatedExecutor
from warpsan.sanitize.sanitizer import ASYNC_MODES, SCHEDULES

__all__ = [
    "assert_computes",
    "assert_gate",
    "assert_log_sum_exp",
    "assert_nothing_past_the_end_is_used",
    "assert_same_bits_in_every_order",
    "assert_shared_memory",
    "assert_values_have_their_own_code",
    "assert_written_to_the_end_and_no_further",
    "built",
    "edged",
    "judged",
    "ptx_of",
    "resources_of",
    "run",
]


def edged(head_dim: int) -> Problem:
    """The mission's shape with a causal and a ragged edge, for which the code needs most registers."""
    return Problem(1, 8, 512, head_dim, seq_kv=500, causal=True)


def run(
    kernel: Kernel,
    problem: Problem,
    config: Config | None = None,
    *,
    kind: str = "normal",
    inputs: Inputs | None = None,
    lse: bool | None = None,
    less_smem: int = 0,
    poison: int = 0xFF,
    **options: Any,
) -> RunResult:
    """One simulated run on inputs of ``kind``, or on ``inputs`` in place of those.

    The kernel has ``less_smem`` bytes less shared memory than its plan needs, and ``poison`` in what it has to write.
    It gets a buffer for the log-sum-exp if it writes that, and ``lse`` does not say otherwise. ``options`` are the
    executor's, such as ``schedule="reverse"``; the architecture is the kernel's default.
    """
    options.setdefault("arch", kernel.default_arch)
    plan = kernel.launch_plan(problem, config, lse=kernel.lse if lse is None else lse)
    steps = tuple(
        replace(step, dynamic_smem=step.dynamic_smem - less_smem)
        if isinstance(step, Launch) and step.dynamic_smem
        else step
        for step in plan.steps
    )
    given = make_inputs(problem, kind) if inputs is None else inputs
    packing = Packing(problem)
    result = SimulatedExecutor(**options).run(replace(plan, steps=steps), packing.pack(given.arrays), poison=poison)
    return replace(result, outputs=packing.unpack(result.outputs))


def judged(
    kernel: Kernel, problem: Problem, result: RunResult, config: Config | None = None, *, kind: str = "normal"
) -> Evidence:
    """Evidence of the judge on a run of :func:`run` on the same inputs."""
    reply = {"hazards": list(result.hazards), "hazard_count": len(result.hazards), "changed": result.changed_inputs}
    about = {"numerics": asdict(kernel.numerics_of(config)), "device": result.device, "config": str(config)}
    outputs = {f"{run}.{name}": out for run in ("first", "second") for name, out in result.outputs.items()}
    return evaluate(problem, make_inputs(problem, kind), about, reply, outputs)


def assert_computes(
    kernel: Kernel, problem: Problem, config: Config | None = None, *, kind: str = "normal", **options: Any
) -> Evidence:
    """The kernel's result is within the judge's limits, without a hazard and with its inputs untouched.

    ``options`` are those of :func:`run`.
    """
    evidence = judged(kernel, problem, run(kernel, problem, config, kind=kind, **options), config, kind=kind)
    where = f"{kernel.name} {problem.label} {kind} {config} {options}"
    assert evidence.status is Status.PASSED, f"{where}: {evidence.reason}"
    return evidence


def assert_log_sum_exp(kernel: Kernel, problem: Problem, config: Config | None = None) -> None:
    """The log-sum-exp is that of float64, and neither the output nor the PTX depends on whether it is requested.

    It is so to 4e-6 and a unit in the last place of a float32, which is less than the judge allows. For that 8-bit
    products are summed in float32: the tensor cores keep 13 bits of them.
    """
    where = f"{kernel.name} {problem.label} {config}"
    inputs, numerics = make_inputs(problem), kernel.numerics_of(config)
    sums = {"numerics": "float32" if numerics.quantised else "hardware"}
    without, result = (run(kernel, problem, config, inputs=inputs, lse=lse, **sums) for lse in (False, True))
    assert "lse" not in without.outputs, where
    found = result.outputs["lse"]
    reference, limit = log_sum_exp_float64(
        **inputs.arrays, scale=problem.scale, causal=problem.causal, numerics=numerics
    )
    assert np.isfinite(found).all(), where
    allowed = np.minimum(limit, 4e-6 + np.finfo(np.float32).eps * np.abs(reference))
    worst = np.max(np.abs(found - reference) / allowed)
    assert worst < 1, f"{where}: {worst} of what it may be"
    assert np.array_equal(result.outputs["o"], without.outputs["o"]), where
    assert result.ptx_sha256 == without.ptx_sha256, where
    assert not result.hazards, where


def assert_nothing_past_the_end_is_used(kernel: Kernel, problem: Problem, config: Config | None = None) -> None:
    """The first of two heads is the same where the second's Q, K and V, into which its tiles reach, are NaN."""
    where = f"{kernel.name} {problem.label} {config}"
    inputs = make_inputs(problem)
    clean = run(kernel, problem, config, inputs=inputs).outputs
    for array in inputs.arrays.values():
        array[:, 1] = np.nan
    spoilt = run(kernel, problem, config, inputs=inputs).outputs
    for name, array in clean.items():
        assert np.array_equal(spoilt[name][:, 0], array[:, 0]), f"{where}: {name}"
        assert np.isnan(spoilt[name][:, 1]).all(), f"{where}: {name} of the head that is NaN"


def assert_written_to_the_end_and_no_further(kernel: Kernel, config: Config | None = None) -> None:
    """An output that ends within a tile: a store past its last row would be out of bounds, one too few poison.

    Each row is the mean of 32 rows of ones, whose weights are exact in whatever type the kernel has them.
    """
    problem = Problem(1, 1, 41, 64, seq_kv=32)
    inputs = Inputs(*(np.ones(shape, np.float16) for shape in (problem.q_shape, problem.kv_shape, problem.kv_shape)))
    for poison in (0xFF, 0x00):
        where = f"{kernel.name} {problem.label} {config}, poison {poison:#x}"
        result = run(kernel, problem, config, inputs=inputs, poison=poison)
        assert result.hazards == (), where
        assert np.array_equal(result.outputs["o"], inputs.q), where
        if kernel.lse:
            assert np.allclose(result.outputs["lse"], np.log(32) + 64 * problem.scale, rtol=1e-6), where


def assert_same_bits_in_every_order(
    kernel: Kernel,
    problem: Problem,
    config: Config | None = None,
    *,
    async_modes: Sequence[str] = ASYNC_MODES,
    **options: Any,
) -> None:
    """All outputs are the same bits, and there is no hazard, in whatever order warps run and copies arrive."""
    first: RunResult | None = None
    for schedule, async_mode in product(SCHEDULES, async_modes):
        where = f"{kernel.name} {problem.label} {config}, {schedule}, {async_mode}"
        result = run(kernel, problem, config, schedule=schedule, async_mode=async_mode, **options)
        assert result.hazards == (), where
        first = first or result
        for name, array in result.outputs.items():
            assert array.tobytes() == first.outputs[name].tobytes(), f"{where}: {name}"


def assert_shared_memory(
    kernel: Kernel, problem: Problem, config: Config, smem_bytes: int, *, padding: int = 0, step: int = 16
) -> None:
    """The last launch has ``smem_bytes`` of shared memory, and touches all but the last ``padding`` bytes of them.

    ``step`` is how many bytes its last access has.
    """
    where = f"{kernel.name} {problem.label} {config}"
    assert kernel.launch_plan(problem, config).launches[-1].dynamic_smem == smem_bytes, where
    assert run(kernel, problem, config, less_smem=padding).hazards == (), where
    hazards = run(kernel, problem, config, less_smem=padding + step).hazards
    assert hazards, f"{where}: {smem_bytes - padding - step} bytes are enough"
    assert all("out-of-bounds" in hazard and "shared memory" in hazard for hazard in hazards), f"{where}: {hazards}"


def assert_values_have_their_own_code(
    kernel: Kernel, knob: str, values: Sequence[Knob], base: Config | None = None, *, head_dim: int = 64
) -> None:
    """No two of the values of a knob make the same PTX of ``base``, which is the default configuration if left out."""
    problem, base = Problem(1, 1, 64, head_dim), base or kernel.default_config
    programs = {ptx_of(kernel, problem, base.but(**{knob: value})) for value in values}
    assert len(programs) == len(values), f"{kernel.name} {base}: {knob} of {values} makes {len(programs)} programs"


def built(kernel: Kernel, problem: Problem, config: Config | None = None, arch: str | None = None) -> Build:
    """The build of the kernel's last launch, for its default architecture unless another is given."""
    step = kernel.launch_plan(problem, config).launches[-1]
    assert step.module is not None
    return build(step.module, arch or kernel.default_arch)


def ptx_of(kernel: Kernel, problem: Problem, config: Config | None = None) -> str:
    """PTX of the kernel's last launch, without the lines that only locate it in the source."""
    lines = built(kernel, problem, config).ptx.decode().splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith((".loc", ".file", "//")))


def resources_of(kernel: Kernel, problem: Problem, config: Config | None = None, arch: str | None = None) -> Resources:
    """Resources of the kernel's last launch."""
    return resources(built(kernel, problem, config, arch), kernel.launch_plan(problem, config).launches[-1])


def assert_gate(kernel: Kernel, problem: Problem, config: Config | None = None, arch: str | None = None) -> None:
    """All that the kernel launches stays within the limits that it declares, with neither spills nor stack."""
    limits = kernel.static_limits(problem)
    for step in kernel.launch_plan(problem, config).launches:
        assert step.module is not None
        used = resources(build(step.module, arch or kernel.default_arch), step)
        where = f"{step.module.entry} {problem.label} {config} {used.arch}"
        assert (used.spill_bytes, used.stack_bytes) == (0, 0), f"{where}: {used}"
        gate = check(used, limits)
        assert gate.ok, f"{where}: {gate.failures}"
