"""The arguments of cuBLAS for a product, on an emulation of its semantics; and what is said where it cannot be told."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulated_cublas import EmulatedCublas

from gemm_inputs import arrays_for
from sdpalab.errors import MachineError, UserError
from sdpalab.kernels.cublas import CUBLAS
from sdpalab.kernels.plan import Buffer, Gemm
from sdpalab.problem import Problem
from sdpalab.run.buffers import multiply
from sdpalab.run.gpu_driver import KernelFault
from sdpalab.run.gpu_gemm import DATA_TYPES, Blas, PreparedGemm, gemm_problem, prepare_gemm, workspace_size
from sdpalab.run.gpu_launch import Call, Prepared
from sdpalab.run.gpu_memory import GUARD, Image, Scratch

BASE = 0x7F0000000000
SUCCESS = object()


class Device:
    """As much of a GpuDevice as a product needs; its memory begins at BASE, and scratch lies far behind it."""

    def __init__(self) -> None:
        self.ordinal, self.context, self.lost, self.freed = 0, 11, "", []
        self.driver = SimpleNamespace(
            CUresult=SimpleNamespace(CUDA_SUCCESS=SUCCESS),
            cuCtxGetCurrent=lambda: (SUCCESS, 11),
            cuMemAlloc=lambda size: (SUCCESS, BASE + (1 << 40)),
            cuMemFree=lambda address: self.freed.append(address),
        )

    def check(self, answer: tuple[Any, ...], action: str) -> Any:
        assert answer[0] is SUCCESS, action
        return answer[1]

    @contextmanager
    def current(self) -> Iterator[None]:
        yield

    def synchronize(self, action: str) -> None:
        if self.lost:
            raise KernelFault(self.lost)


class Gpu:
    """Arrays in emulated device memory, guarded, and a product on them."""

    def __init__(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        self.image = Image(arrays)
        self.library = EmulatedCublas(self.image.bytes, BASE)
        self.device: Any = Device()
        self.blas = Blas(self.device, self.library)
        self.scratch = Scratch(self.device, 4 << 20)
        self.buffers = {name: Buffer(name, a.shape, a.dtype.name, "in") for name, a in arrays.items()}

    def prepare(self, gemm: Gemm) -> PreparedGemm:
        addresses = {name: BASE + offset for name, offset in self.image.offsets.items()}
        return prepare_gemm(self.blas, gemm, self.buffers, addresses, self.scratch, "step 1 of the plan")

    def array(self, name: str) -> np.ndarray[Any, Any]:
        return self.image.array(name, self.image.bytes)


PRODUCTS = [
    Gemm("a", "b", "c", batch=1, m=1, n=1, k=1),
    Gemm("a", "b", "c", batch=3, m=5, n=7, k=11),
    Gemm("a", "b", "c", batch=3, m=5, n=7, k=11, transpose_b=True),
    Gemm("a", "b", "c", batch=2, m=11, n=3, k=6, lda=9, ldc=8),
    Gemm("a", "b", "c", batch=2, m=11, n=3, k=6, transpose_b=True, lda=9, ldc=8),
]


@pytest.mark.parametrize(
    ("operands", "out"),
    [("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")],
)
@pytest.mark.parametrize("gemm", PRODUCTS, ids=lambda gemm: f"{gemm.m}x{gemm.n}x{gemm.k} {gemm.transpose_b} {gemm.lda}")
def test_cublas_computes_what_the_host_does(gemm: Gemm, operands: str, out: str) -> None:
    arrays = arrays_for(gemm, operands, out)
    gpu = Gpu(arrays)
    prepared = Prepared(gpu.device, [gpu.prepare(gemm)])
    prepared.launch(stream=77)
    multiply(gemm, arrays)
    for name, array in arrays.items():  # the padding of C is NaN still, A and B are what they were
        assert gpu.array(name).tobytes() == array.tobytes(), name
    assert not gpu.image.damage(gpu.image.bytes)
    assert gpu.library.streams == [77]


def test_the_products_of_the_cublas_kernel() -> None:
    problem = Problem(2, 6, 5, 24, kv_heads=2, seq_kv=13)
    for gemm in (step for step in CUBLAS.launch_plan(problem).steps if isinstance(step, Gemm)):
        named = replace(gemm, a="a", b="b", c="c")
        arrays = arrays_for(named, "float16", "float32" if gemm.transpose_b else "float16")
        gpu = Gpu(arrays)
        gpu.prepare(named).call(gpu.device, 0)()
        multiply(named, arrays)
        assert gpu.array("c").tobytes() == arrays["c"].tobytes()


def test_each_product_has_its_own_workspace_and_sums_in_float32() -> None:
    gpu = Gpu(arrays_for(PRODUCTS[0]))
    for stream in (5, 6):
        gpu.prepare(PRODUCTS[0]).call(gpu.device, stream)()
        assert gpu.library.workspace == (gpu.scratch.address, 4 << 20)
    assert gpu.library.streams == [5, 6]
    assert gpu.library.math_mode == EmulatedCublas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION


def test_the_workspace_is_freed_with_the_last_product_that_uses_it() -> None:
    gpu = Gpu(arrays_for(PRODUCTS[0]))
    prepared, address = [gpu.prepare(PRODUCTS[0]), gpu.prepare(PRODUCTS[0])], gpu.scratch.address
    del gpu.scratch
    prepared.pop()
    assert gpu.device.freed == []
    prepared.pop()
    assert gpu.device.freed == [address]


@pytest.mark.parametrize(
    ("capability", "size"), [((8, 0), 4 << 20), ((8, 9), 4 << 20), ((9, 0), 32 << 20), ((10, 0), 32 << 20)]
)
def test_the_size_of_the_workspace_is_cublas_recommendation(capability: tuple[int, int], size: int) -> None:
    assert workspace_size(capability) == size


class _Noted:
    """A step between products that notes when it is launched, and on which stream."""

    label = "noted"

    def __init__(self, gpu: Gpu) -> None:
        self.streams = gpu.library.streams

    def call(self, device: Any, stream: int) -> Call:
        def launch() -> tuple[Any, ...]:
            self.streams.append(-stream)
            return (SUCCESS,)

        return launch


def test_steps_of_both_kinds_are_launched_in_order_on_one_stream() -> None:
    gpu = Gpu(arrays_for(PRODUCTS[0]))
    product = gpu.prepare(PRODUCTS[0])
    prepared = Prepared(gpu.device, [product, _Noted(gpu), product])
    prepared.launch(3)
    prepared.launch(4)
    assert gpu.library.streams == [3, -3, 3, 4, -4, 4]


def test_what_cublas_refuses_is_said_in_one_sentence() -> None:
    gpu = Gpu(arrays_for(PRODUCTS[0]))
    launch = gpu.prepare(PRODUCTS[0]).call(gpu.device, 0)
    gpu.library.broken = True
    with pytest.raises(MachineError, match=r"^GPU 0 cannot launch step 1 of the plan, the product c = a b: 13$"):
        launch()
    gpu.device.lost = "run the kernel before: CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(KernelFault, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        launch()


@pytest.mark.parametrize(
    ("dtypes", "words"),
    [
        (("float16", "bfloat16", "float32"), "no product of float16 and bfloat16 into float32"),
        (("float16", "float16", "bfloat16"), "no product of float16 and float16 into bfloat16"),
        (("float32", "float32", "float16"), "no product of float32 and float32 into float16"),
        (("int32", "int32", "int32"), "it has: float16 into float16 or float32; bfloat16 into"),
    ],
    ids=str,
)
def test_types_that_cublas_does_not_multiply_are_refused(dtypes: tuple[str, ...], words: str) -> None:
    gpu = Gpu(arrays_for(PRODUCTS[0]))
    gpu.buffers = {name: Buffer(name, (1,), dtype, "in") for name, dtype in zip("abc", dtypes, strict=True)}
    with pytest.raises(UserError, match=f"step 1 of the plan: .*{words}"):
        gpu.prepare(PRODUCTS[0])


def test_a_product_that_does_not_fit_its_buffers_is_refused() -> None:
    gpu = Gpu(arrays_for(PRODUCTS[1]))
    with pytest.raises(UserError, match="step 1 of the plan: a matrix product takes 3 matrices 5 x 12 from buffer a"):
        gpu.prepare(replace(PRODUCTS[1], k=12))


def test_without_the_package_a_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvmath", "nvmath.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    problem = gemm_problem()
    assert problem.startswith("a matrix product needs cuBLAS through nvmath-python: pip install 'sdpalab[cublas]'")
    assert "\n" not in problem


def test_without_the_library_a_sentence_names_it() -> None:
    class NoLibrary(EmulatedCublas):
        def create(self) -> int:
            raise RuntimeError('Failure finding "libcublas.so"\nattempted: here and there')

    device: Any = Device()
    with pytest.raises(MachineError) as caught:
        Blas(device, NoLibrary(np.zeros(GUARD, np.uint8), BASE))
    assert 'cannot start cuBLAS (Failure finding "libcublas.so"): if there is none, pip install nvidia-cublas' in str(
        caught.value
    )


def test_the_types_are_cudas() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    names = {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF"}
    assert {name: int(getattr(runtime.cudaDataType, cuda)) for name, cuda in names.items()} == DATA_TYPES


def test_the_emulation_has_the_bindings_names_parameters_and_numbers() -> None:
    binding = pytest.importorskip("nvmath.bindings.cublas", reason="nvmath-python is not installed")
    for name in ("create", "set_math_mode", "set_stream", "set_workspace", "gemm_strided_batched_ex"):
        head = getattr(binding, name).__doc__.partition(")")[0].partition("(")[2]
        real = [word.split()[-1] for word in head.split(",") if word]
        assert list(inspect.signature(getattr(EmulatedCublas, name)).parameters)[1:] == real
    for kind in ("Operation", "ComputeType", "GemmAlgo", "Math"):
        for member in getattr(EmulatedCublas, kind):
            assert int(getattr(getattr(binding, kind), member.name)) == int(member)
    assert issubclass(binding.cuBLASError, Exception)
