"""Extensions of torch in CUDA C++: host code by the C++ compiler, kernels on the simulator."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from warpsan.build import Module  # noqa: E402
from warpsan.errors import UserError  # noqa: E402
from warpsan.program.extension.gpu import ExtensionGpu  # noqa: E402
from warpsan.program.extension.host_text import host_code  # noqa: E402
from warpsan.program.extension.loading import Extensions  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")

CUDA = r"""
#include <torch/extension.h>
#include <cuda_fp16.h>

__constant__ float offset[2];

template <typename T>
struct View {
  T* data;
  int count;
  __device__ T& at(int i) const { return data[i]; }
};

namespace inner {
template <typename T, int kTimes>
__global__ void scaled(View<T> out, const T* __restrict__ in, float factor, int past) {
  extern __shared__ float tile[];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < out.count ? static_cast<float>(in[i]) : 0.f;
  __syncthreads();
  if (i < out.count + past) out.at(i) = static_cast<T>(tile[threadIdx.x] * factor * kTimes + offset[1]);
}
}  // namespace inner

#define RUN(T, TIMES) \
  inner::scaled<T, TIMES><<<(n + 63) / 64, 64, smem>>>(View<T>{o.data_ptr<T>(), n}, x.data_ptr<T>(), 2.0f, past)

torch::Tensor scaled(torch::Tensor x, bool twice, int64_t past, int64_t bytes, std::optional<double> add) {
  TORCH_CHECK(x.dim() == 1, "x has ", x.dim(), " axes, and its sizes are ", x.sizes());
  const int n = x.numel();
  const size_t smem = bytes;
  const float host[2] = {7.f, static_cast<float>(add.value_or(0.0))};
  cudaMemcpyToSymbol(offset, host, sizeof(host));
  torch::Tensor o = torch::empty({n}, x.options());
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "scaled", ([&] {
    if (twice) RUN(scalar_t, 2); else RUN(scalar_t, 1);
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return o;
}

std::vector<torch::Tensor> parts(torch::Tensor x) {
  void* copy = nullptr;
  cudaMalloc(&copy, x.nbytes());
  cudaMemcpy(copy, x.data_ptr(), x.nbytes(), cudaMemcpyDeviceToDevice);
  auto again = torch::zeros_like(x);
  cudaMemcpy(again.data_ptr(), copy, x.nbytes(), cudaMemcpyDeviceToDevice);
  cudaFree(copy);
  return {again, torch::cat({x, x}, 0), x.view({-1, 2}).sum({1}), x.max() + 1};
}

torch::Tensor once(const torch::Tensor& x) {
  auto o = torch::empty_like(x);
  auto* kernel = x.type().scalarType() == torch::kHalf ? nullptr : inner::scaled<float, 3>;
  View<float> view{o.data_ptr<float>(), static_cast<int>(x.numel())};
  const float* in = x.data_ptr<float>();
  float factor = 1.f;
  int past = 0;
  const float zeros[2] = {};
  cudaMemcpyToSymbol(offset, zeros, sizeof(zeros));
  void* arguments[] = {&view, &in, &factor, &past};
  C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
  C10_CUDA_CHECK(cudaLaunchKernel((const void*)kernel, dim3(2), dim3(64), arguments, 60000, nullptr));
  return o;
}

TORCH_LIBRARY(scaling, m) { m.def("once(Tensor x) -> Tensor", &once); }

torch::Tensor unwritten(torch::Tensor x) {
  auto empty = torch::empty_like(x), o = torch::zeros_like(x);
  inner::scaled<float, 1><<<1, 64, 256>>>(View<float>{o.data_ptr<float>(), 8}, empty.data_ptr<float>(), 1.f, 0);
  return o;
}
"""
CPP = """
torch::Tensor scaled(torch::Tensor x, bool twice, int64_t past, int64_t bytes, std::optional<double> add);
std::vector<torch::Tensor> parts(torch::Tensor x);
torch::Tensor unwritten(torch::Tensor x);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("scaled", &scaled, "scale", py::arg("x"), py::arg("twice") = false, py::arg("past") = 0, py::arg("bytes") = 256,
        py::arg("add") = py::none());
  m.def("parts", &parts);
  m.def("unwritten", &unwritten);
  m.def("count", [](const torch::Tensor& x) { return x.numel(); });
}
"""


@pytest.fixture(scope="module")
def extensions() -> Extensions:
    return Extensions("sm_90")


@pytest.fixture(scope="module")
def module(extensions: Extensions) -> Any:
    return extensions.load_inline("scaling", CPP, CUDA)


@pytest.fixture
def launched(extensions: Extensions) -> list[tuple[str, int]]:
    launches: list[tuple[str, int]] = []
    extensions.run.hazards.clear()
    extensions.memory.begin_call()
    extensions.run.observe = lambda name, ptx, changed, report: launches.append(
        (name, sum(int(each.sum()) for each in changed.values()))
    )
    return launches


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_kernel_runs_on_tensors(module: Any, launched: list[tuple[str, int]], dtype: str) -> None:
    x = torch.arange(1, 101).to(getattr(torch, dtype))
    assert torch.equal(module.scaled(x), 2 * x)
    assert torch.equal(module.scaled(x, twice=True, add=0.5), (4 * x.float() + 0.5).to(x.dtype))
    name = {"float32": "float", "float16": "__half"}[dtype]
    assert [each for each, _ in launched] == [f"inner::scaled<{name}, 1>", f"inner::scaled<{name}, 2>"]
    assert launched[0][1] == x.nbytes


def test_host_code_uses_torch(module: Any) -> None:
    x = torch.arange(6.0)
    again, twice, sums, most = module.parts(x)
    assert torch.equal(again, x)
    assert torch.equal(twice, torch.cat([x, x]))
    assert torch.equal(sums, torch.tensor([1.0, 5.0, 9.0]))
    assert float(most) == 6
    assert module.count(x) == 6


def test_operators_and_pointers_to_kernels(module: Any, launched: list[tuple[str, int]]) -> None:
    x = torch.arange(1.0, 101)
    assert torch.equal(torch.ops.scaling.once(x), 3 * x)
    assert launched == [("inner::scaled<float, 3>", x.nbytes)]


def test_errors_of_host_code(module: Any, launched: list[tuple[str, int]]) -> None:
    with pytest.raises(RuntimeError, match=r"x has 2 axes, and its sizes are \[2, 3\]"):
        module.scaled(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="\"scaled\" not implemented for 'Int'"):
        module.scaled(torch.zeros(3, dtype=torch.int32))
    with pytest.raises(RuntimeError, match=r"CUDA error: .*invalid argument"):
        module.scaled(torch.zeros(3), bytes=60000)
    with pytest.raises(TypeError, match="scaled has no parameter factor"):
        module.scaled(torch.zeros(3), factor=1)
    assert not launched


def test_hazards_name_the_line(extensions: Extensions, module: Any, launched: list[tuple[str, int]]) -> None:
    module.scaled(torch.zeros(64 + 60), past=3)
    (hazard,) = extensions.run.hazards
    line = next(n for n, each in enumerate(CUDA.splitlines(), 1) if "out.at(i) =" in each)
    assert hazard.kind == "out-of-bounds"
    assert f"cuda.cu:{line}:" in " ".join(hazard.frames)
    extensions.run.hazards.clear()
    module.unwritten(torch.zeros(64))
    assert {each.kind for each in extensions.run.hazards} == {"uninitialised"}


def test_a_compiler_error_is_a_sentence(extensions: Extensions) -> None:
    with pytest.raises(UserError, match=r"the host code of wrong does not compile: main.cpp:2:\d+: error: .*nothing"):
        extensions.load_inline("wrong", "\nint f() { return nothing; }", "", functions=["f"])


def test_lines_of_host_code_stay() -> None:
    code = host_code(Module("scaling.cu", CUDA, ""))
    (text,) = code.texts.values()
    assert code.kernels == ("inner::scaled",)
    assert text.count("\n") == CUDA.count("\n")
    assert "<<<" not in text
    assert "threadIdx" not in text


def test_the_mode_is_one_of_gpus(extensions: Extensions) -> None:
    with ExtensionGpu(extensions, lambda *_: None) as gpu:
        assert torch.zeros(2, device="cuda").device.type == "cpu"
    assert gpu.hazards is extensions.run.hazards
