"""Registers, stack, spills and shared memory from the cubin, and the gate over them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdpalab.compile import Build, GateResult, Resources, build, check, resources
from sdpalab.errors import MachineError
from sdpalab.kernels.kernel import MISSION_LIMITS, StaticLimits
from sdpalab.kernels.plan import Launch, Module
from sdpalab.kernels.registry import KERNELS as SHIPPED
from sdpalab.problem import Problem
from warpsan.build import tools

KERNELS = """
extern __shared__ int dynamic_smem[];
__constant__ int table[100];

__global__ void plain(int* p) { p[threadIdx.x] += table[threadIdx.x]; }

__global__ void shared_static(int* p) {
    __shared__ int tile[300];
    tile[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = tile[blockDim.x - threadIdx.x] + dynamic_smem[threadIdx.x];
}

// 96 live values, and 1024 threads a block leave at most 64 registers.
__global__ void __launch_bounds__(1024) spills(const float* a, float* o, int n) {
    float x[96];
    for (int i = 0; i < 96; i++) x[i] = a[threadIdx.x * 96 + i];
    for (int j = 0; j < n; j++) {
        #pragma unroll
        for (int i = 0; i < 96; i++) x[i] = x[i] * x[(i * 7 + 1) % 96] + a[j * 5 + i];
    }
    float sum = 0;
    for (int i = 0; i < 96; i++) sum += x[i];
    o[threadIdx.x] = sum;
}

__device__ __noinline__ float indexed(const float* p, int n) {
    float a[40];
    for (int i = 0; i < 40; i++) a[i] = p[i * n];
    return a[n] + a[n + 1];
}

__global__ void local_array(float* p, int n) { p[0] = indexed(p, n); }
"""


def _built(entry: str, arch: str = "sm_89") -> Build:
    return build(Module("resources.cu", KERNELS, entry), arch)


def _used(entry: str, arch: str = "sm_89", threads: int = 128, dynamic: int = 0) -> Resources:
    return resources(_built(entry, arch), Launch((1, 1, 1), (threads, 1, 1), (), dynamic_smem=dynamic))


@pytest.mark.sample(2, first=True)
@pytest.mark.parametrize("arch", ["sm_89", "sm_100a", "sm_80", "sm_90a", "sm_120a"])
def test_shared_memory_is_the_kernels_own(arch: str) -> None:
    """From sm_90 on the cubin's figure has 1 KiB of the system's in it, which is not the kernel's."""
    used = _used("shared_static", arch, dynamic=4096)
    assert (used.static_shared_bytes, used.dynamic_shared_bytes, used.shared_bytes) == (1200, 4096, 5296)
    assert _used("plain", arch).static_shared_bytes == 0


def test_clean_kernel() -> None:
    used = _used("plain")
    assert 4 <= used.registers <= 32
    assert (used.stack_bytes, used.spill_bytes, used.reported_spill_bytes) == (0, 0, 0)
    assert used.constant_bytes >= 400
    assert (used.threads_per_block, used.blocks_per_sm, used.warps_per_sm, used.limiter) == (128, 12, 48, "warps")
    assert used.sass["LDG"] == 1
    assert used.main_loop == {}
    assert used.tensor_share is None


@pytest.mark.sample(1, first=True)
@pytest.mark.parametrize("arch", ["sm_89", "sm_80"])
def test_spills_in_the_sass_are_those_that_ptxas_reports(arch: str) -> None:
    used = _used("spills", arch, threads=1024)
    assert used.registers <= 64
    assert used.stack_bytes > 0
    assert used.spill_bytes == used.reported_spill_bytes > 0


def test_a_local_array_counts_though_ptxas_calls_it_no_spill() -> None:
    used = _used("local_array")
    assert used.reported_spill_bytes == 0
    assert used.spill_bytes >= 4 * 40
    assert used.stack_bytes >= 4 * 40


def test_another_entry_of_the_module_does_not_count() -> None:
    assert _used("shared_static").spill_bytes == _used("local_array").spill_bytes - _own_local_bytes("local_array")


def _own_local_bytes(entry: str) -> int:
    """Bytes of STL and LDL in the entry's own function; a callee counts for every entry of its module."""
    from sdpalab.compile.sass import _local_bytes, disassemble, parse

    compiled = _built(entry)
    return sum(map(_local_bytes, parse(disassemble(compiled))[compiled.entry]))


def test_gate_passes_within_the_missions_limits() -> None:
    result = check(_used("plain"), MISSION_LIMITS)
    assert result.ok
    assert result.failures == ()
    assert {rule.name: rule.limit for rule in result.rules} == {
        "registers": 120,
        "shared_bytes": 65536,
        "spill_bytes": 0,
        "stack_bytes": 0,
        "blocks_per_sm": 1,
    }


def test_gate_refuses_spills() -> None:
    result = check(_used("spills", threads=1024), MISSION_LIMITS)
    assert not result.ok
    assert [sentence.split()[0] for sentence in result.failures] == ["spill_bytes", "stack_bytes"]
    assert not result.to_dict()["ok"]


@pytest.mark.parametrize(
    ("figure", "value", "limits", "sentence"),
    [
        ("registers", 121, MISSION_LIMITS, "registers is 121, and must be at most 120"),
        ("dynamic_shared_bytes", 65537, MISSION_LIMITS, "shared_bytes is 65537, and must be at most 65536"),
        ("stack_bytes", 8, MISSION_LIMITS, "stack_bytes is 8, and must be at most 0"),
        ("spill_bytes", 4, MISSION_LIMITS, "spill_bytes is 4, and must be at most 0"),
        ("blocks_per_sm", 1, MISSION_LIMITS.but(min_blocks_per_sm=2), "blocks_per_sm is 1, and must be at least 2"),
        ("blocks_per_sm", 0, MISSION_LIMITS.but(min_blocks_per_sm=0), "blocks_per_sm is 0, and must be at least 1"),
    ],
)
def test_each_rule_alone(figure: str, value: int, limits: StaticLimits, sentence: str) -> None:
    result = check(replace(_used("plain"), **{figure: value}), limits)
    assert result.failures == (sentence,)


def test_gate_takes_the_kernels_own_limits_and_reason() -> None:
    limits = MISSION_LIMITS.but(registers=200, spill_bytes=10**6, stack_bytes=10**6, reason="a test of spills")
    result = check(_used("spills", threads=1024), limits)
    assert result.ok
    assert result.reason == "a test of spills"


def test_shared_memory_beyond_the_sm_fails_by_occupancy() -> None:
    used = _used("shared_static", dynamic=99 * 1024)
    result = check(used, MISSION_LIMITS.but(shared_bytes=10**6))
    assert result.failures == ("blocks_per_sm is 0, and must be at least 1",)


def test_limits_that_a_kernel_does_not_declare_are_shown_and_not_enforced() -> None:
    used = replace(_used("plain"), registers=226, spill_bytes=8)
    result = check(used, StaticLimits())
    assert result.ok
    assert result.failures == ()
    assert result.notes == (
        "registers is 226; the mission's limit is 120",
        "spill_bytes is 8; the mission's limit is 0",
    )
    assert {rule["name"]: rule.get("advisory") for rule in result.to_dict()["rules"]}["registers"] is True
    assert GateResult.from_dict(result.to_dict()) == result
    partly = check(used, StaticLimits(registers=200, reason="this test"))
    assert partly.failures == ("registers is 226, and must be at most 200",)
    assert partly.notes == ("spill_bytes is 8; the mission's limit is 0",)
    never_fits = check(replace(used, blocks_per_sm=0), StaticLimits())
    assert never_fits.failures == ("blocks_per_sm is 0, and must be at least 1",)


def test_every_shipped_kernel_declares_all_its_limits() -> None:
    for name, kernel in SHIPPED.items():
        for problem in (Problem(1, 1, 64, dim) for dim in (32, 64, 128)):
            limits = vars(kernel.static_limits(problem))
            assert None not in limits.values(), f"{name}: {limits}"


def test_missing_tool_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "tool_path", tools.tool_path.__wrapped__)
    monkeypatch.setattr(tools.shutil, "which", lambda *arguments, **options: None)
    with pytest.raises(MachineError, match="pip install nvidia-cuda-cuobjdump"):
        tools.run_tool("cuobjdump", (), b"")


def test_a_tool_that_fails_says_so() -> None:
    with pytest.raises(MachineError, match="cuobjdump failed"):
        tools.run_tool("cuobjdump", ("--dump-resource-usage",), b"not a cubin")
