"""Every kernel on the GPU against the simulator: the same plan, the same PTX, the same inputs.

They agree bit for bit, or to a relative L2 distance of the output type's unit roundoff (2^-11 in float16, 2^-8 in
bfloat16): the simulator's exp2 and its sums inside a tensor core round otherwise than the hardware's do. Each distance
is in the JUnit file, if one is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from sdpalab import Config, Kernel, Problem
from sdpalab.inputs import make_inputs
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.run import GpuExecutor, SimulatedExecutor
from sdpalab.run.gpu_gemm import gemm_problem

pytestmark = pytest.mark.gpu

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-11}
"""Float32 kernels multiply in TF32 or narrower, whose roundoff is that of float16."""

PROBLEMS = (
    Problem(1, 2, 128, 64),
    Problem(2, 4, 70, 64, kv_heads=2, seq_kv=140, causal=True),
    Problem(1, 1, 129, 64, seq_kv=300, causal=True, dtype="bfloat16"),
    Problem(1, 2, 65, 128, seq_kv=257),
)


def _kernels() -> Iterator[Kernel]:
    yield from (KERNELS[name] for name in KERNELS if needs(name) is None)


def _cases() -> Iterator[object]:
    """Every configuration on normal inputs, and the default one on inputs with outliers, too."""
    for kernel in _kernels():
        for place, config in enumerate(map(Config, kernel.configs)):
            for problem in PROBLEMS:
                if kernel.reject_reason(problem, config) is None:
                    for kind in ("normal", "outlier") if place == 0 else ("normal",):
                        label = f"{kernel.name}-{problem.label}-{config}-{kind}"
                        yield pytest.param(kernel, problem, config, kind, id=label)


@pytest.mark.parametrize(("kernel", "problem", "config", "kind"), list(_cases()))
def test_gpu_and_simulator_agree(
    gpu: GpuExecutor,
    record_property: Callable[[str, object], None],
    kernel: Kernel,
    problem: Problem,
    config: Config,
    kind: str,
) -> None:
    major, minor = gpu.gpu.capability
    if 10 * major + minor < kernel.min_arch:
        pytest.skip(f"{kernel.name} needs sm_{kernel.min_arch}, and {gpu.device} is sm_{major}{minor}")
    made = make_inputs(problem, kind)
    inputs, plan = {"q": made.q, "k": made.k, "v": made.v}, kernel.launch_plan(problem, config)
    if plan.launches != plan.steps and gemm_problem():
        pytest.skip(gemm_problem())
    simulated, measured = SimulatedExecutor(gpu.arch).run(plan, inputs), gpu.run(plan, inputs)
    assert measured.ptx_sha256 == simulated.ptx_sha256
    assert (measured.hazards, measured.changed_inputs, simulated.hazards) == ((), (), ())
    one, other = (np.asarray(result.outputs["o"]).astype(np.float64) for result in (measured, simulated))
    assert np.isfinite(other).all()
    distance = float(np.linalg.norm(one - other) / np.linalg.norm(other))
    record_property("gpu", gpu.device)
    record_property("ptx_sha256", measured.ptx_sha256[0])
    record_property("relative_l2", distance)
    record_property("different_elements", int((one != other).sum()))
    assert distance <= UNIT_ROUNDOFF[problem.dtype]
