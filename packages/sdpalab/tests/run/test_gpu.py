"""The GPU executor as far as it goes without a GPU: guarded memory, architectures, configurations, what it refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sdpalab.errors import MachineError, UserError
from sdpalab.kernels.plan import Buffer
from sdpalab.run import GpuExecutor, gpu_problem
from sdpalab.run.gpu import device_address
from sdpalab.run.gpu_arguments import Parameters, entry_of
from sdpalab.run.gpu_driver import STICKY, GpuFunction
from sdpalab.run.gpu_launch import PreparedStep, arch_of, runs_on
from sdpalab.run.gpu_memory import GUARD, Image
from warpsan.host.geometry import Geometry

ARRAYS = {
    "q": np.arange(300, dtype=np.float32).reshape(3, 100),
    "o": np.full(1001, 0xFF, np.uint8).view(ml_dtypes.float8_e4m3fn),
}


def test_an_image_holds_the_buffers_and_gives_them_back() -> None:
    image = Image(ARRAYS)
    for name, array in ARRAYS.items():
        assert image.offsets[name] % 1024 == 0
        back = image.array(name, image.bytes)
        assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert image.offsets["q"] >= GUARD
    assert image.offsets["o"] >= image.offsets["q"] + ARRAYS["q"].nbytes + GUARD
    assert len(image.bytes) >= image.offsets["o"] + ARRAYS["o"].nbytes + GUARD
    assert image.damage(image.bytes) == ()


def test_a_write_inside_the_buffers_is_no_damage() -> None:
    image = Image(ARRAYS)
    after = image.bytes.copy()
    for name, array in ARRAYS.items():
        after[image.offsets[name] : image.offsets[name] + array.nbytes] ^= 0xFF
    assert image.damage(after) == ()


@pytest.mark.parametrize(
    ("buffer", "place", "where"),
    [
        ("q", -1, "1 bytes before its begin"),
        ("q", 1200, "1 bytes behind its end"),
        ("o", 1001 + 500, "501 bytes behind its end"),
        ("o", -GUARD // 2 + 600, f"{GUARD // 2 - 600} bytes before its begin"),
    ],
)
def test_a_write_outside_is_found_by_the_nearest_buffer(buffer: str, place: int, where: str) -> None:
    image = Image(ARRAYS)
    after = image.bytes.copy()
    after[image.offsets[buffer] + place] ^= 1
    assert image.damage(after) == (f"1 bytes outside buffer {buffer} were written, the first {where}",)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_what_lies_around_a_buffer_is_nan_in_every_float_type(dtype: type) -> None:
    image = Image(ARRAYS)
    begin, end = image.offsets["q"], image.offsets["q"] + ARRAYS["q"].nbytes
    for around in (image.bytes[:begin], image.bytes[end : image.offsets["o"]]):
        assert np.isnan(around.view(dtype).astype(np.float32)).all()


@pytest.mark.parametrize("byte", [0x00, 0xA5, 0xFF])
def test_no_constant_byte_can_be_taken_for_the_guard(byte: int) -> None:
    image = Image(ARRAYS)
    after = image.bytes.copy()
    after[:64] = byte
    assert image.damage(after)


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_89", (8, 6), False),
        ("sm_89", (9, 0), False),
        ("sm_90", (9, 0), True),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_100a", (10, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("sm_120", (12, 1), True),
    ],
)
def test_which_gpu_runs_which_cubin(arch: str, capability: tuple[int, int], runs: bool) -> None:
    assert runs_on(arch, capability) is runs


@pytest.mark.parametrize(
    ("capability", "arch"), [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 1), "sm_121a")]
)
def test_a_gpu_runs_what_is_built_for_it(capability: tuple[int, int], arch: str) -> None:
    assert arch_of(capability) == arch
    assert runs_on(arch, capability)


class _Device:
    """The part of a GpuDevice that makes configurations: cuda.bindings without a driver behind it."""

    def __init__(self) -> None:
        self.driver: Any = pytest.importorskip("cuda.bindings.driver")


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 3)])
@pytest.mark.parametrize("programmatic", [False, True])
def test_the_configuration_of_a_launch(cluster: tuple[int, int, int], programmatic: bool) -> None:
    entry = entry_of(".version 8.0\n.target sm_90\n.address_size 64\n.entry k() { ret; }", "k")
    geometry = Geometry((4, 5, 6), (128, 2, 1), cluster, 100_000, cluster != (1, 1, 1))
    function, parameters = GpuFunction(None, "k", 0, 1024), Parameters(entry, b"")
    step = PreparedStep(function, geometry, parameters, "step 1", programmatic=programmatic)
    device: Any = _Device()
    config = step.config(device, 12345)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (4, 5, 6)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (128, 2, 1)
    assert (config.sharedMemBytes, int(config.hStream)) == (100_000, 12345)
    assert config.numAttrs == (cluster != (1, 1, 1)) + programmatic
    kinds, attributes = device.driver.CUlaunchAttributeID, {each.id: each.value for each in config.attrs}
    assert len(attributes) == config.numAttrs
    if cluster != (1, 1, 1):
        dimension = attributes[kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION].clusterDim
        assert (dimension.x, dimension.y, dimension.z) == cluster
    if programmatic:
        allowed = attributes[kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION]
        assert allowed.programmaticStreamSerializationAllowed == 1


def test_the_errors_that_lose_a_context_are_cudas() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    assert {name for name in STICKY if not hasattr(driver.CUresult, name)} == set()


def test_a_tensor_that_does_not_fit_is_refused_in_one_sentence() -> None:
    import torch

    buffer = Buffer("q", (2, 8), "float16", "in")
    good = torch.zeros((2, 8), dtype=torch.float16)
    for value, words in (
        (good.float(), "tensor q must be float16 (2, 8), not float32 (2, 8)"),
        (good[0], "tensor q must be float16 (2, 8), not float16 (8,)"),
        (good, "tensor q must be on cuda:0, not on cpu"),
        (good.numpy(), "tensor q must be a torch tensor or a device pointer, not a ndarray"),
    ):
        with pytest.raises(UserError) as caught:
            device_address(buffer, value, 0)
        assert str(caught.value) == words
    assert device_address(buffer, 0x7000, 0) == 0x7000


class _OnGpu:
    """Attributes read from a torch tensor on a GPU: its device, layout and address."""

    def __init__(self, tensor: Any, index: int = 0, address: int = 0x7000) -> None:
        self.dtype, self.shape, self.stride = tensor.dtype, tensor.shape, tensor.stride
        self.is_contiguous, self.data_ptr = tensor.is_contiguous, lambda: address
        self.device = type("device", (), {"type": "cuda", "index": index, "__str__": lambda _: f"cuda:{index}"})()


def test_layout_address_and_gpu_of_a_tensor() -> None:
    import torch

    buffer = Buffer("q", (2, 8), "float16", "in")
    good = torch.zeros((2, 8), dtype=torch.float16)
    assert device_address(buffer, _OnGpu(good), 0) == 0x7000
    strided = torch.zeros((8, 2), dtype=torch.float16).T
    for value, words in (
        (_OnGpu(good, index=1), "must be on cuda:0, not on cuda:1"),
        (_OnGpu(strided), r"must be contiguous, and its strides are \(1, 2\)"),
        (_OnGpu(good, address=0x7008), "multiple of 16 bytes, not at 0x7008"),
    ):
        with pytest.raises(UserError, match=words):
            device_address(buffer, value, 0)


@pytest.mark.skipif(not gpu_problem(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_sentence() -> None:
    with pytest.raises(MachineError) as caught:
        GpuExecutor()
    assert str(caught.value) == gpu_problem()
    assert str(caught.value).startswith("no GPU")
    assert "\n" not in str(caught.value)
