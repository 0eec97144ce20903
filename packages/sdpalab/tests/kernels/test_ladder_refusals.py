"""Problems that no kernel of the ladder takes, each with a reason that names what is wrong."""

from __future__ import annotations

import pytest
from ladder_kernels import EACH_KERNEL

from sdpalab.kernels.kernel import Kernel, UnsupportedProblem
from sdpalab.problem import Problem

SMALL = Problem(1, 1, 8, 64)
HEAD_DIMS = {
    "blackwell": "64 or 128",
    "hopper": "64, 128 or 256",
    "hopper_fp8": "64, 128 or 256",
    "triton_flash": "16, 32, 64 or 128",
}
HEAD_DIMS |= {"flash": "32, 64, 96, 128, 192 or 256"}
QUANTISED = ("fp8_simulated", "fp8", "hopper_fp8")
UNFUSED = "cublas"
"""Its softmax is of rows, whatever head or dimension they are of; its limit is memory."""

ORDINARY = [
    (SMALL.with_(heads=70000), "launches one block row per heads, of which a grid has at most 65535, not 70000"),
    (SMALL.with_(batch=65536), "launches one block row per batch, of which a grid has at most 65535, not 65536"),
    (SMALL.with_(seq_q=2**25), "indexes a head with 32 bits, and seq_q=33554432 times head_dim does not fit"),
    (SMALL.with_(seq_kv=2**25), "indexes a head with 32 bits, and seq_kv=33554432 times head_dim does not fit"),
]


def assert_unsupported(kernel: Kernel, problem: Problem, reason: str) -> None:
    with pytest.raises(UnsupportedProblem) as refused:
        kernel.launch_plan(problem)
    assert str(refused.value) == f"kernel {kernel.name} {reason}"


@EACH_KERNEL
@pytest.mark.parametrize("scale", [3e38, -3e38])
def test_a_scale_that_is_no_float32_in_base_2(kernel: Kernel, scale: float) -> None:
    reason = f"holds scale * log2(e) as a float32, and scale={scale:g} does not fit"
    assert_unsupported(kernel, SMALL.with_(scale=scale), reason)


@EACH_KERNEL
def test_a_head_dim_that_it_is_not_compiled_for(kernel: Kernel) -> None:
    odd = SMALL.with_(head_dim=48)
    if kernel.name == UNFUSED:
        assert kernel.why_not(odd) is None
    else:
        supported = HEAD_DIMS.get(kernel.name, "32, 64 or 128")
        assert_unsupported(kernel, odd, f"supports head_dim {supported}, not 48")


@EACH_KERNEL
@pytest.mark.parametrize(("problem", "reason"), ORDINARY, ids=["heads", "batch", "seq_q", "seq_kv"])
def test_sizes_beyond_its_grid_and_its_indices(kernel: Kernel, problem: Problem, reason: str) -> None:
    if kernel.name != UNFUSED:
        assert_unsupported(kernel, problem, reason)
    elif problem.seq_q < 2**25:
        assert kernel.why_not(problem) is None


@EACH_KERNEL
def test_more_heads_than_one_quantising_grid_has(kernel: Kernel) -> None:
    problem = SMALL.with_(heads=30000)
    if kernel.name in QUANTISED:
        reason = "quantises heads + 2 * kv_heads in one grid, of at most 65535, not 90000"
        assert_unsupported(kernel, problem, reason)
    else:
        assert kernel.why_not(problem) is None


@EACH_KERNEL
def test_no_knob_is_negative(kernel: Kernel) -> None:
    problem = Problem(1, 1, 64, 64)
    assert kernel.knobs
    for knob in kernel.knobs:
        reason = kernel.why_not(problem, kernel.default_config.but(**{knob: -1}))
        assert reason is not None, knob
        assert reason.startswith(f"{knob} must be "), reason
        assert reason.endswith("not -1"), reason
