"""The static gate of every kernel: neither spills nor stack, and what it declares, in all configurations and builds.

The builds of the kernels for Hopper alone are in their own files.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from checking import assert_gate, edged
from ladder_kernels import ladder_kernels

from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.problem import Problem


def plain(head_dim: int) -> Problem:
    return Problem(1, 8, 512, head_dim)


ENDS = (plain(32), edged(64), plain(128))
EDGED = (edged(32), edged(64), edged(128))
"""For kernels that hold scores in registers, where the code for an edge needs most of those."""
IN_REGISTERS = ("warp_specialized", "flash", "fp8", "triton_flash")
TILE_DOES_NOT_FIT = ("bytes of shared memory", "at most twice the 32 keys of a tile", "rows of head_dim 32 at a time")


def gated() -> Iterator[object]:
    # cublas alone compiles the same for every head_dim: its own file has its builds.
    for param in ladder_kernels("cublas", "hopper", "hopper_fp8"):
        kernel = param.values[0]
        if kernel is None:
            yield pytest.param(None, None, None, id=param.id, marks=param.marks)
            continue
        for config in map(Config, kernel.configs):
            for problem in EDGED if kernel.name in IN_REGISTERS else ENDS:
                yield pytest.param(kernel, config, problem, id=f"{kernel.name}-{config}-{problem.label}")


@pytest.mark.sample(3)
@pytest.mark.parametrize(("kernel", "config", "problem"), list(gated()))
def test_static_gate(kernel: Kernel, config: Config, problem: Problem) -> None:
    reason = kernel.why_not(problem, config)
    if reason is None:
        assert_gate(kernel, problem, config)
    else:
        assert problem.head_dim != 64, reason
        assert config != kernel.default_config, reason
        assert any(why in reason for why in TILE_DOES_NOT_FIT), reason


@pytest.mark.sample(1)
@pytest.mark.parametrize("kernel", ladder_kernels("cublas", "hopper", "hopper_fp8"))
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_100", "sm_120"])
def test_no_architecture_spills(kernel: Kernel, arch: str) -> None:
    if kernel.why_not_on(arch) is None:
        assert_gate(kernel, edged(128).with_(dtype="bfloat16"), arch=arch)
        if kernel.name in IN_REGISTERS:
            assert_gate(kernel, edged(64), arch=arch)
    else:
        assert int(arch.removeprefix("sm_")) < kernel.min_arch
