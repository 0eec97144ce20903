"""Torch backends: each backend of torch's attention by name, on what it takes, and a sentence where there is none."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule.limits import UNIT_ROUNDOFF, measure
from sdpalab.judge.rule.yardstick import torch_output
from sdpalab.judge.torch_backends import BACKENDS, Backend, BackendUnavailable, backend_output
from sdpalab.problem import Problem

PLAIN = Problem(1, 2, 65, 64)
PROBLEMS = (
    PLAIN,
    Problem(2, 4, 33, 32, kv_heads=2, seq_kv=70, dtype="bfloat16"),
    Problem(1, 2, 64, 64, causal=True),
    Problem(1, 2, 40, 64, causal=True, scale=-0.125),
    Problem(1, 2, 40, 64, causal=True, scale=0.0),
)


def arguments(problem: Problem) -> dict[str, object]:
    inputs = make_inputs(problem)
    return {"q": inputs.q, "k": inputs.k, "v": inputs.v, "scale": problem.scale, "causal": problem.causal}


def error_of(problem: Problem, backend: Backend | None, device: str) -> float:
    asked = arguments(problem)
    out = backend_output(**asked, backend=backend, device=device)
    assert out.dtype == asked["q"].dtype
    assert out.shape == problem.q_shape
    return measure(out, attention_float64(**asked), problem.dtype).rel_l2


def available_backends(device: str) -> tuple[Backend, ...]:
    """The backends of ``cpu`` or ``cuda`` that compute one small float16 problem with this torch."""
    available = []
    for backend in BACKENDS[device]:
        try:
            backend_output(**arguments(PLAIN), backend=backend, device=device)
        except BackendUnavailable:
            continue
        available.append(backend)
    return tuple(available)


@pytest.mark.sample(6)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("backend", [*BACKENDS["cpu"], None], ids=str)
def test_a_backend_on_the_cpu_computes_attention(problem: Problem, backend: Backend | None) -> None:
    assert error_of(problem, backend, "cpu") < UNIT_ROUNDOFF[problem.dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", BACKENDS["cuda"], ids=str)
def test_a_backend_on_a_gpu_computes_attention(backend: Backend) -> None:
    if backend not in available_backends("cuda"):
        pytest.skip(f"torch {torch.__version__} has no {backend.value} attention on this GPU")
    for problem in PROBLEMS[:3]:
        # The efficient and the math backend of a GPU may hold P or the scores in 16 bits.
        assert error_of(problem, backend, "cuda") < 4 * UNIT_ROUNDOFF[problem.dtype]


def test_the_cpu_has_math_and_flash_and_they_are_not_the_same() -> None:
    assert available_backends("cpu") == (Backend.MATH, Backend.FLASH)
    math, flash = (backend_output(**arguments(PLAIN), backend=backend) for backend in available_backends("cpu"))
    assert not np.array_equal(math, flash)


def test_torchs_own_choice_is_one_of_them() -> None:
    own = backend_output(**arguments(PLAIN), backend=None).tobytes()
    assert own in {backend_output(**arguments(PLAIN), backend=backend).tobytes() for backend in BACKENDS["cpu"]}


def test_the_yardstick_is_flash() -> None:
    flash = backend_output(**arguments(PLAIN), backend=Backend.FLASH)
    assert torch_output(**arguments(PLAIN)).tobytes() == flash.tobytes()


@pytest.mark.parametrize("backend", [Backend.EFFICIENT, Backend.CUDNN])
def test_a_backend_that_is_not_there_is_named_with_what_torch_said(backend: Backend) -> None:
    with pytest.raises(
        BackendUnavailable, match=rf"torch {torch.__version__[:4]}.* no {backend.value} attention on cpu: ."
    ):
        backend_output(**arguments(PLAIN), backend=backend)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_no_backend_is_available_on_one() -> None:
    assert available_backends("cuda") == ()


def test_a_torch_older_than_its_attention_module_is_called_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []

    def sdp_kernel(**enabled: bool) -> nullcontext[None]:
        asked.append({name for name, on in enabled.items() if on})
        return nullcontext()

    monkeypatch.setitem(sys.modules, "torch.nn.attention", None)
    monkeypatch.setattr(torch.backends.cuda, "sdp_kernel", sdp_kernel)
    for backend in (Backend.MATH, Backend.FLASH, Backend.EFFICIENT):
        backend_output(**arguments(PLAIN), backend=backend)
    assert asked == [{"enable_math"}, {"enable_flash"}, {"enable_mem_efficient"}]
    with pytest.raises(BackendUnavailable, match="older than that backend"):
        backend_output(**arguments(PLAIN), backend=Backend.CUDNN)
