"""Unmodified Python programs: Triton kernels on the simulator, with results, hazards and lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from warpsan.errors import UserError
from warpsan.gpus import GPUS
from warpsan.program import RunOptions, run_program

PROGRAM = """
import sys

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i) * factor, mask=i < n)


@triton.jit
def transpose(x, y, SIZE: tl.constexpr):
    tile = x.load([0, SIZE])
    tl.device_assert(tl.program_id(0) == 0)
    y.store([SIZE, 0], tile.T)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        assert x.is_cuda
        y = torch.empty(x.shape, dtype=x.dtype, device="cuda")
        scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), factor)
        return y

    @staticmethod
    def backward(ctx, grad):
        assert torch.ones(1, device="cuda").is_cuda
        return Scaled.apply(grad.contiguous(), ctx.factor), None


assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
x = torch.arange(200.0, device="cuda:0")[8:].requires_grad_()  # a part of its storage
y = Scaled.apply(x, 2.0)
y.backward(gradient=y)
assert (y == 2 * x).all() and (x.grad == 4 * x).all()
assert torch.empty(3, device=torch.device("cuda")).isnan().all()

a, b = torch.randn(32, 64, dtype=torch.float16).cuda(), torch.zeros(64, 32, dtype=torch.float16)
transpose[(1,)](TensorDescriptor.from_tensor(a, [32, 32]), TensorDescriptor.from_tensor(b, [32, 32]), SIZE=32)
assert (b[32:] == a[:, 32:].T).all() and (b[:32] == 0).all()
print("all right", *sys.argv[1:])
sys.exit(3)
"""


@pytest.mark.slow
def test_a_python_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    (tmp_path / "program.py").write_text(PROGRAM)
    outcome = run_program([str(tmp_path / "program.py"), "so far"])
    output = capfd.readouterr()
    assert (output.out, outcome.exit_code) == ("all right so far\n", 3), output.err
    assert (outcome.launches, outcome.fatal, outcome.gpu) == (3, "", "H200 (sm_90)")
    assert outcome.hazards == ()  # 192 elements in three blocks of 64: the first of two configurations


@pytest.mark.slow
def test_hazards_of_a_python_program_have_lines(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    text = PROGRAM.replace("x.numel(), factor)", "100, factor)").partition("assert torch.cuda")[0]
    (tmp_path / "program.py").write_text(f"{text}\nScaled.apply(torch.ones(100), 2.0)\n")
    outcome = run_program([str(tmp_path / "program.py")], RunOptions(gpu=GPUS["L4"], arch="sm_89"))
    (hazard,) = outcome.hazards
    assert (hazard.kind, outcome.exit_code, outcome.gpu) == ("out-of-bounds", 0, "L4 (sm_89)")
    assert hazard.here.line.strip() == "tl.store(y + i, tl.load(x + i) * factor, mask=i < n)"
    assert "scale at program.py:" in hazard.runs[0]


def test_bad_input_of_a_python_program(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no program no\.py"):
        run_program(["no.py"])
    (tmp_path / "program.py").write_text("")
    with pytest.raises(UserError, match="cannot be captured"):
        run_program([str(tmp_path / "program.py")], RunOptions(capture=tmp_path))
