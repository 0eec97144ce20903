"""torch on the stand-in: bench, the op on proven kernels, and what doctor says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from standin_gpu import StandIn


@pytest.mark.slow
def test_bench_measures_a_kernel_with_a_simulated_clock(standin: StandIn, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    small = ("--shape", "1,1,64,64", "--peer", "torch", "--clock", "gpu", "--seconds", "1")
    done = standin.cli("bench", "scalar", *small, "--json", out, timeout=900)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert "NVIDIA H200" in done.stdout
    assert {"torch", "scalar"} <= {each["name"] for each in _measurements(record)}
    assert standin.launches("scalar") or standin.launches()


def _measurements(record: object) -> list[dict[str, object]]:
    """All that looks like a measurement, wherever the record has it."""
    measurements: list[dict[str, object]] = []
    stack = [record]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            if {"name", "status"} <= set(each):
                measurements.append(each)
            stack += each.values()
        elif isinstance(each, list):
            stack += each
    return measurements


PROVEN = """
import functools, torch, sdpalab
from types import SimpleNamespace
from sdpalab.compile import build
from sdpalab.kernels.registry import get
from sdpalab.torch_api import kernels as torch_kernels

def proves(arch, forward, backward=None, **knobs):
    # What is proven is given: these kernels, for any problem that they take.
    @functools.lru_cache
    def certified(problem, ordinal, lse, deterministic):
        name = backward if problem.backward else forward
        if name is None:
            return None, "a test says so"
        kernel = get(name)
        plan = kernel.launch_plan(problem, lse=lse)
        builds = tuple(build(step.module, arch) for step in plan.launches)
        certificate = SimpleNamespace(kernel=name, arch=arch)
        return SimpleNamespace(plan=plan, builds=builds, certificate=certificate), "a test says so"

    torch_kernels._certified_for = certified

def near(given, right, most=4e-3):
    assert given.shape == right.shape, (given.shape, right.shape)
    error = (given.double() - right).abs().max()
    assert error < most, error

def exact(q, k, v, shift):
    # Attention in float64 of one sequence [S, H, D], causal, with its log-sum-exp [H, S].
    q, k, v = (each.double().transpose(0, 1) for each in (q, k, v))
    k, v = (each.repeat_interleave(len(q) // len(k), 0) for each in (k, v))
    hidden = torch.ones(q.shape[1], k.shape[1]).triu(1 + shift).bool()
    scores = (q @ k.mT * q.shape[2] ** -0.5).masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1), scores.logsumexp(-1)

torch.manual_seed(0)
def randn(*shape):
    return torch.randn(shape).half()
"""
OP = """
proves("sm_90a", "hopper")
for seed in (0, 1, 2):
    torch.manual_seed(seed)
    # Views into larger tensors: what is launched on must not touch what lies beside.
    big = torch.randn(4, 1, 2, 70, 64).to(torch.float16)
    kept = big.clone()
    q, k, v = big[0], big[1], big[3]
    with sdpalab.no_fallback():
        out = sdpalab.scaled_dot_product_attention(q, k, v)
    near(out, torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double()), 2e-3)
    assert torch.equal(big, kept)
print(sdpalab.explain(q, k, v))
"""
DENSE = """
proves("sm_90a", "flash", "flash_backward_two_pass")
q, k, v = randn(1, 33, 2, 64), randn(1, 40, 1, 64), randn(1, 40, 1, 64)
print(sdpalab.explain_call(sdpalab.flash_attn_func, q, k, v, causal=True))
weights = torch.randn(1, 33, 2, 64).half()
leaves = [each.clone().requires_grad_() for each in (q, k, v)]
print(sdpalab.explain_call(sdpalab.flash_attn_func, *leaves, causal=True))
with sdpalab.no_fallback():
    out = sdpalab.flash_attn_func(*leaves, causal=True)
grads = torch.autograd.grad(out, leaves, weights)
wide = [each.double().requires_grad_() for each in (q, k, v)]
right = exact(*(each[0] for each in wide), 7)[0][None]
near(out, right)
for given, wanted in zip(grads, torch.autograd.grad(right, wide, weights.double())):
    near(given, wanted, 2e-2)
"""
VARLEN = """
proves("sm_90a", "flash_varlen")
q, k, v = randn(64, 2, 64), randn(75, 1, 64), randn(75, 1, 64)
ends_q, ends_k = [0, 3, 3, 60], [0, 11, 15, 75]
more = [torch.tensor(ends, dtype=torch.int32) for ends in (ends_q, ends_k)]
with sdpalab.no_fallback():
    out, lse, _ = sdpalab.flash_attn_varlen_func(q, k, v, *more, 57, 60, causal=True, return_attn_probs=True)
assert (out.shape, lse.shape) == ((64, 2, 64), (2, 64))
for n in (0, 2):
    rows, keys = slice(*ends_q[n : n + 2]), slice(*ends_k[n : n + 2])
    right = exact(q[rows], k[keys], v[keys], (keys.stop - keys.start) - (rows.stop - rows.start))
    near(out[rows], right[0])
    near(lse[:, rows], right[1])
"""
CACHE = """
proves("sm_90a", "flash_decode")
for paged in (True, False):
    q, k, v = randn(2, 2, 4, 64), randn(2, 2, 1, 64), randn(2, 2, 1, 64)
    lengths, table = torch.tensor([20, 3], dtype=torch.int32), torch.tensor([[4, 1], [2, -1]], dtype=torch.int32)
    shape = (6, 16, 1, 64) if paged else (2, 32, 1, 64)
    k_cache, v_cache = randn(*shape), randn(*shape)
    more = {"block_table": table} if paged else {}
    with sdpalab.no_fallback(), torch.no_grad():
        out = sdpalab.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True, **more)
    for n, count in enumerate((22, 5)):
        pages = [4, 1] if n == 0 else [2]
        both = k_cache, v_cache
        keys, values = (each[pages].flatten(0, 1)[:count] if paged else each[n, :count] for each in both)
        assert torch.equal(keys[-2:], k[n])
        near(out[n], exact(q[n], keys, values, count - 2)[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [DENSE, VARLEN, CACHE], ids=["dense", "varlen", "cache"])
def test_functions_of_flash_attn_launch_proven_kernels(standin: StandIn, script: str) -> None:
    done = standin.run(PROVEN + script)
    assert done.returncode == 0, done.stderr
    assert standin.launches()
    if script is DENSE:
        assert "runs the kernel flash: a test says so; it takes contiguous tensors: a copy of query" in done.stdout
        assert "runs the kernel flash and flash_backward_two_pass for its gradients" in done.stdout


@pytest.mark.slow
def test_the_op_launches_a_proven_kernel_on_torchs_tensors(standin: StandIn) -> None:
    done = standin.run(PROVEN + OP)
    assert done.returncode == 0, done.stderr
    assert "runs the kernel hopper: a test says so" in done.stdout
    assert len(standin.launches()) == 3


MIX = """
import sys, torch, sdpalab

def ends(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()

def mix(call, *lengths, dtype=torch.float16):
    torch.manual_seed(0)
    total, most = sum(lengths), max(lengths)
    q, k, v = (torch.randn(total, heads, 32).half().to(dtype) for heads in (2, 1, 1))
    prefill = (q, k, v, ends(*lengths), ends(*lengths), most, most), {"causal": True}
    pages, used = torch.randn(9, 16, 1, 32).half().to(dtype), torch.tensor(lengths, dtype=torch.int32) + 1
    table = torch.tensor([[1, 2, -1], [3, 8, -1]], dtype=torch.int32)
    step = (q[:2, None], pages, pages), {"cache_seqlens": used, "block_table": table, "causal": True}
    return [
        call(function, *arguments, **named)
        for function, (arguments, named) in (
            (sdpalab.flash_attn_varlen_func, prefill), (sdpalab.flash_attn_with_kvcache, step)
        )
    ]

def run(function, *arguments, **named):
    return function(*arguments, **named)

with torch.no_grad():
    if sys.argv[1:]:
        with sdpalab.record_calls(sys.argv[1]):
            mix(run, 17, 5)
    else:
        with sdpalab.no_fallback():
            ours = mix(run, 19, 5)
        for mine, right in zip(ours, mix(run, 19, 5, dtype=torch.float64)):
            assert (mine.double() - right).abs().max() < 4e-3
        print(*mix(sdpalab.explain_call, 19, 5), sep="\\n")
"""


@pytest.mark.slow
def test_a_recorded_mix_is_proven_and_its_kernels_run_for_other_lengths(standin: StandIn, tmp_path: Path) -> None:
    standin.configure(gpu="l4")
    data, trace = {"SDPALAB_DATA_DIR": str(tmp_path / "data")}, tmp_path / "trace.json"
    recorded = standin.process(sys.executable, "-c", MIX, str(trace), **data)
    assert recorded.returncode == 0, recorded.stderr
    times = json.dumps([100, 50] * 12)  # torch's, and half of it for the kernel
    command = ("prove", "--shapes-from", trace, "--time", "--seconds", "1")
    done = standin.cli(*command, timeout=900, STANDIN_TIMES=times, **data)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flash_attn_varlen_func runs flash_varlen: flash_varlen is proven" in done.stdout
    assert "flash_attn_with_kvcache runs flash_decode: flash_decode is proven" in done.stdout
    standin.clear_log()
    served = standin.process(sys.executable, "-c", MIX, **data)
    assert served.returncode == 0, served.stderr
    assert "This call runs the kernel flash_varlen" in served.stdout
    assert "This call runs the kernel flash_decode" in served.stdout
    assert len(standin.launches()) == 2


@pytest.mark.slow
def test_doctor_sees_the_gpu_and_says_how_processes_are_confined(standin: StandIn) -> None:
    standin.configure(gpu="l4")
    done = standin.cli("doctor")
    assert "NVIDIA L4, sm_89" in done.stdout, done.stderr
    assert "confinement" in done.stdout
