"""The executor on the simulator: buffers, steps, poison, changed inputs, hazards, and what it refuses."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from sdpalab.compile import BuildError, Cache, build
from sdpalab.errors import UserError
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, Module, TiledMap
from sdpalab.run import PlanExecutor, SimulatedExecutor
from warpsan import LaunchError

SOURCE = """
#include <cuda_bf16.h>
__global__ void add(const float* a, const float* b, float* c, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + factor * b[i];
}
__global__ void square(float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = c[i] * c[i];
}
__global__ void reverse(const float* c, float* d) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = c[threadIdx.x];
    __syncthreads();
    d[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
__global__ void spoil(float* a) { a[3] = 7.0f; }
__global__ void beyond(const float* a, float* c) { c[threadIdx.x] = a[threadIdx.x + 1]; }
__global__ void twice(const __nv_bfloat16* x, __nv_bfloat16* y) { y[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x]; }
"""
N = 100
FLOATS = {name: Buffer(name, (N,), "float32", "in") for name in ("a", "b")}
OUT = Buffer("c", (N,), "float32", "out")


def _launch(entry: str, *args: str | int | float, threads: int = 64, blocks: int = 2, dynamic: int = 0) -> Launch:
    module = Module("steps.cu", SOURCE, entry)
    return Launch((blocks, 1, 1), (threads, 1, 1), args, dynamic_smem=dynamic, module=module)


def _plan(*steps: Launch, extra: tuple[Buffer, ...] = ()) -> LaunchPlan:
    return LaunchPlan((*FLOATS.values(), OUT, *extra), steps)


@pytest.fixture
def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(N).astype(np.float32) for name in FLOATS}


@pytest.fixture
def executor() -> SimulatedExecutor:
    return SimulatedExecutor()


def test_the_name_says_the_numerics_where_they_are_not_the_default() -> None:
    assert SimulatedExecutor("sm_90a").device == "simulator sm_90a"
    assert SimulatedExecutor("sm_90a", numerics="hardware").device == "simulator sm_90a"
    assert SimulatedExecutor("sm_90a", numerics="float32").device == "simulator sm_90a, numerics float32"


def test_one_step(executor: PlanExecutor, inputs: dict[str, np.ndarray]) -> None:
    result = executor.run(_plan(_launch("add", "a", "b", "c", 2.0, N)), inputs)
    np.testing.assert_array_equal(result.outputs["c"], inputs["a"] + np.float32(2) * inputs["b"])
    assert list(result.outputs) == ["c"]
    assert result.device == "simulator sm_89"
    assert (result.hazards, result.changed_inputs) == ((), ())


def test_steps_share_buffers_and_run_in_order(executor: PlanExecutor, inputs: dict[str, np.ndarray]) -> None:
    final = Buffer("d", (N,), "float32", "out")
    work = Buffer("c", (N,), "float32", "workspace")
    steps = (
        _launch("add", "a", "b", "c", 1.0, N),
        _launch("square", "c", N),
        _launch("reverse", "c", "d", threads=N, blocks=1, dynamic=4 * N),
    )
    result = executor.run(LaunchPlan((*FLOATS.values(), work, final), steps), inputs)
    expected = np.square(inputs["a"] + inputs["b"])[::-1]
    np.testing.assert_array_equal(result.outputs["d"], expected)
    assert list(result.outputs) == ["d"]
    assert len(result.ptx_sha256) == 3


def test_digests_are_those_of_the_built_ptx(executor: SimulatedExecutor, inputs: dict[str, np.ndarray]) -> None:
    step = _launch("add", "a", "b", "c", 1.0, N)
    assert step.module is not None
    result = executor.run(_plan(step), inputs)
    assert result.ptx_sha256 == (hashlib.sha256(build(step.module).ptx).hexdigest(),)


def test_builds_that_are_given_are_what_runs(inputs: dict[str, np.ndarray]) -> None:
    plan = _plan(_launch("add", "a", "b", "c", 1.0 / 3.0, N))
    (step,) = plan.steps
    assert step.module is not None
    built = build(step.module)
    assert built.ptx.count(b"fma.rn.f32") == 1
    spoilt = replace(built, ptx=built.ptx.replace(b"fma.rn.f32", b"fma.rz.f32"))
    plain, result = (SimulatedExecutor().run(plan, inputs, builds=builds) for builds in (None, [spoilt]))
    difference = np.abs(plain.outputs["c"]) - np.abs(result.outputs["c"])
    assert (difference >= 0).all()
    assert (difference > 0).any()
    assert result.ptx_sha256 == (spoilt.ptx_sha256,)


@pytest.mark.parametrize("poison", [0xFF, 0x5A])
def test_what_is_not_written_is_poison(executor: PlanExecutor, inputs: dict[str, np.ndarray], poison: int) -> None:
    result = executor.run(_plan(_launch("add", "a", "b", "c", 1.0, 60)), inputs, poison=poison)
    np.testing.assert_array_equal(result.outputs["c"][:60], inputs["a"][:60] + inputs["b"][:60])
    assert set(result.outputs["c"][60:].tobytes()) == {poison}


def test_inputs_are_copies_and_changes_are_named(executor: PlanExecutor, inputs: dict[str, np.ndarray]) -> None:
    before = {name: array.copy() for name, array in inputs.items()}
    result = executor.run(_plan(_launch("spoil", "a", threads=1, blocks=1)), inputs)
    assert result.changed_inputs == ("a",)
    for name, array in before.items():
        np.testing.assert_array_equal(inputs[name], array)


def test_hazards_name_the_source_line_and_the_step(executor: PlanExecutor, inputs: dict[str, np.ndarray]) -> None:
    bad = _launch("beyond", "a", "c", threads=N, blocks=1)
    line = 1 + SOURCE[: SOURCE.index("void beyond")].count("\n")
    (alone,) = executor.run(_plan(bad), inputs).hazards
    assert alone.startswith("out-of-bounds")
    assert f"steps.cu:{line}" in alone
    good = _launch("add", "a", "b", "c", 1.0, N)
    (second,) = executor.run(_plan(good, bad), inputs).hazards
    assert second == f"step 2: {alone}"


def test_simulator_options_reach_the_launch(inputs: dict[str, np.ndarray]) -> None:
    plan = _plan(_launch("beyond", "a", "c", threads=N, blocks=1))
    with pytest.raises(Exception, match=r"out-of-bounds|outside"):
        SimulatedExecutor(checks=()).run(plan, inputs)
    with pytest.raises(LaunchError, match="nonsense"):
        SimulatedExecutor(checks=("nonsense",)).run(plan, inputs)


def test_bfloat16_buffers(executor: PlanExecutor) -> None:
    x = np.arange(-16, 16).astype(ml_dtypes.bfloat16)
    buffers = (Buffer("x", (32,), "bfloat16", "in"), Buffer("y", (32,), "bfloat16", "out"))
    result = executor.run(LaunchPlan(buffers, (_launch("twice", "x", "y", threads=32, blocks=1),)), {"x": x})
    assert result.outputs["y"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result.outputs["y"].astype(np.float32), 2 * x.astype(np.float32))


TRANSFER = r"""
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
// One warp: a box [1, 8, 64] from one tensor to the same place of another, and as it lies in shared memory.
__global__ void transfer(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out,
                         unsigned* image, int row, int head) {
    __shared__ alignas(1024) unsigned tile[256];
    __shared__ alignas(8) unsigned long long full;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(&full)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(address(&full)) : "memory");
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3, %4}], [%5];"
                     :: "r"(address(tile)), "l"(&in), "r"(0), "r"(row), "r"(head), "r"(address(&full)) : "memory");
    }
    __syncwarp();
    asm volatile("{ .reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra AGAIN; }" :: "r"(address(&full)) : "memory");
    for (int i = threadIdx.x; i < 256; i += 32) image[i] = tile[i];
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                     :: "l"(&out), "r"(0), "r"(row), "r"(head), "r"(address(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""
HEADS = (3, 13, 64)
"""The shape of a tensor that is transferred: the last box of 8 rows ends within the next head."""


def _transfer(in_map: TiledMap, out_map: TiledMap, row: int, head: int) -> LaunchPlan:
    buffers = (
        Buffer("x", HEADS, "float16", "in"),
        Buffer("y", HEADS, "float16", "out"),
        Buffer("image", (8, 64), "float16", "out"),
    )
    module = Module("transfer.cu", TRANSFER, "transfer")
    return LaunchPlan(buffers, (Launch((1, 1, 1), (32, 1, 1), (in_map, out_map, "image", row, head), module=module),))


@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_a_tiled_map_is_a_tensor_map_of_its_buffer(swizzle: str) -> None:
    x = np.arange(np.prod(HEADS), dtype=np.uint16).reshape(HEADS).view(np.float16)
    plan = _transfer(TiledMap("x", (1, 8, 64), swizzle), TiledMap("y", (1, 8, 64), swizzle), 8, 1)
    result = SimulatedExecutor("sm_90a").run(plan, {"x": x})
    assert (result.hazards, result.changed_inputs) == ((), ())
    expected = np.full(HEADS, 0xFFFF, np.uint16).view(np.float16)
    expected[1, 8:] = x[1, 8:]  # a store leaves out what is outside: the next head keeps its poison
    assert result.outputs["y"].tobytes() == expected.tobytes()
    box = np.zeros((8, 8, 8), np.float16)  # row, chunk of 16 bytes, element; what is outside is zeros
    box[:5] = x[1, 8:].reshape(5, 8, 8)
    chunk = np.arange(8)
    placed = box if swizzle == "none" else box[chunk[:, None], chunk ^ chunk[:, None]]
    assert result.outputs["image"].tobytes() == placed.tobytes()


def test_a_tiled_map_may_have_axes_of_its_own() -> None:
    # The axes of the same buffer: [3, 13, 64] as [13, 3, 64], rows outside and heads inside.
    x = np.arange(np.prod(HEADS), dtype=np.uint16).reshape(HEADS).view(np.float16)
    turned = {"shape": (13, 3, 64), "strides": (128, 13 * 128, 2)}
    plan = _transfer(TiledMap("x", (8, 1, 64), **turned), TiledMap("y", (8, 1, 64), **turned), 2, 8)
    result = SimulatedExecutor("sm_90a").run(plan, {"x": x})
    assert result.hazards == ()
    expected = np.full(HEADS, 0xFFFF, np.uint16).view(np.float16)
    expected[2, 8:] = x[2, 8:]
    assert result.outputs["y"].tobytes() == expected.tobytes()


def test_wrong_tiled_maps_are_refused() -> None:
    good = TiledMap("y", (1, 8, 64))
    executor, x = SimulatedExecutor("sm_90a"), np.zeros(HEADS, np.float16)
    with pytest.raises(UserError, match="step 1 of the plan names buffer 'z'; the plan has: x, y, image"):
        executor.run(_transfer(TiledMap("z", (1, 8, 64)), good, 0, 0), {"x": x})
    with pytest.raises(LaunchError, match=r"step 1 of the plan, map of buffer x: .* at most 128 bytes inside, not 256"):
        executor.run(_transfer(TiledMap("x", (1, 8, 128), "128B"), good, 0, 0), {"x": x})
    with pytest.raises(LaunchError, match=r"step 1 of the plan, map of buffer x: .* 3 numbers in box"):
        executor.run(_transfer(TiledMap("x", (8, 64)), good, 0, 0), {"x": x})


def test_other_architecture_and_own_cache(tmp_path: Path, inputs: dict[str, np.ndarray]) -> None:
    cache = Cache(tmp_path / "own")
    executor = SimulatedExecutor("sm_80", cache)
    result = executor.run(_plan(_launch("add", "a", "b", "c", 1.0, N)), inputs)
    assert result.device == "simulator sm_80"
    assert [path.name.split("-")[:2] for path in cache.root.glob("steps-*")] == [["steps", "sm_80"]]
    np.testing.assert_array_equal(result.outputs["c"], inputs["a"] + inputs["b"])


def test_input_may_be_a_strided_view(executor: PlanExecutor, inputs: dict[str, np.ndarray]) -> None:
    wide = {name: np.repeat(array, 2)[::2] for name, array in inputs.items()}
    result = executor.run(_plan(_launch("add", "a", "b", "c", 1.0, N)), wide)
    np.testing.assert_array_equal(result.outputs["c"], inputs["a"] + inputs["b"])
    assert result.changed_inputs == ()


BAD_INPUTS = {
    "missing": ({"a": np.zeros(N, np.float32)}, r"no input for buffer b; there are: a"),
    "wrong shape": (
        {"a": np.zeros(N, np.float32), "b": np.zeros((N, 1), np.float32)},
        r"input b must be float32 \(100,\), not float32 \(100, 1\)",
    ),
    "wrong dtype": (
        {"a": np.zeros(N, np.float64), "b": np.zeros(N, np.float32)},
        r"input a must be float32 \(100,\), not float64",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_wrong_inputs_are_refused(executor: PlanExecutor, case: str) -> None:
    given, message = BAD_INPUTS[case]
    with pytest.raises(UserError, match=message):
        executor.run(_plan(_launch("add", "a", "b", "c", 1.0, N)), given)


def test_wrong_plans_are_refused(executor: PlanExecutor, inputs: dict[str, np.ndarray]) -> None:
    with pytest.raises(UserError, match="step 1 of the plan names buffer 'z'; the plan has: a, b, c"):
        executor.run(_plan(_launch("add", "a", "z", "c", 1.0, N)), inputs)
    with pytest.raises(UserError, match="step 1 of the plan has no module"):
        executor.run(_plan(Launch((1, 1, 1), (32, 1, 1), ())), inputs)
    with pytest.raises(UserError, match="dtype 'float12'"):
        executor.run(_plan(extra=(Buffer("x", (1,), "float12", "out"),)), inputs)
    with pytest.raises(UserError, match="role 'inout'"):
        executor.run(_plan(extra=(Buffer("x", (1,), "float32", "inout"),)), inputs)
    with pytest.raises(LaunchError, match="takes 5 arguments"):
        executor.run(_plan(_launch("add", "a", "b", "c", 1.0)), inputs)
    with pytest.raises(BuildError, match=r"steps\.cu has no __global__ function 'lost'"):
        executor.run(_plan(_launch("lost")), inputs)
