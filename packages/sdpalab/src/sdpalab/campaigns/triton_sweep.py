"""Triton's attention for three architectures, in every combination of its knobs, on the simulator against float64.

The kernel is ``tests/sim/triton_attention.py``; a row of the table is one compilation, run once with all default checks
on a ragged shape. On sm_90 a row whose PTX has no fence.proxy.async between a cp.async and the wgmma that reads what it
wrote (Triton 3.6) is run a second time with the fence put in: `proxy` hazards must be all that the first run shows, and
the second must show none.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np

from sdpalab.campaigns.campaign import CampaignResult, Say, checkout
from sdpalab.compile import Build, build, completed
from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.judge.rule.reference import attention_float64
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.kernels.registry import needs
from sdpalab.kernels.triton_kernel import TritonKernel
from sdpalab.kernels.userfile import load_user_kernel
from sdpalab.problem import HALF_DTYPES, Problem
from warpsan import Report, launch

__all__ = ["ARCHS", "PACKAGES", "rows", "run"]

KERNEL = "packages/sdpalab/tests/sim/triton_attention.py"
PACKAGES = ("numpy", "triton")
ARCHS = ("sm_80", "sm_89", "sm_90")
HEAD_DIMS = (16, 32, 64, 128)
LIMIT = {"float16": 5e-4, "bfloat16": 4e-3}
TILES = [
    {"BLOCK_M": rows, "BLOCK_N": keys, "num_warps": warps, "num_stages": stages}
    for (rows, keys, warps), stages in product([(32, 32, 2), (64, 64, 4), (128, 32, 8)], (1, 2, 3))
]
LENGTHS = (141, 141)


@dataclass(frozen=True)
class SweepRow:
    """One compilation and its run."""

    arch: str
    dtype: str
    head_dim: int
    causal: bool
    knobs: str
    error: float
    hazards: tuple[str, ...]
    hazards_with_fence: tuple[str, ...] | None
    compile_seconds: float
    seconds: float
    ptx_sha256: str

    @property
    def good(self) -> bool:
        """Right, and without a hazard; or with no other than the fence that its compiler left out."""
        if not self.error < LIMIT[self.dtype]:
            return False
        if self.hazards_with_fence is None:
            return not self.hazards
        return set(self.hazards) == {"proxy"} and not self.hazards_with_fence


def rows(archs: list[str], every: int) -> Iterator[SweepRow]:
    """All combinations, or one in ``every`` of them."""
    kernel = load_user_kernel(f"{checkout() / KERNEL}:KERNEL")
    assert isinstance(kernel, TritonKernel)
    combinations = product(archs, HALF_DTYPES, HEAD_DIMS, (False, True), TILES)
    for number, (arch, dtype, dim, causal, knobs) in enumerate(combinations):
        if number % every == 0:
            problem = Problem(1, 2, LENGTHS[0], dim, kv_heads=1, seq_kv=LENGTHS[1], dtype=dtype, causal=causal)
            yield _row(kernel, arch, problem, knobs)


def _row(kernel: TritonKernel, arch: str, problem: Problem, knobs: dict[str, int]) -> SweepRow:
    config = kernel.default_config.but(**knobs)
    plan = kernel.launch_plan(problem, config)
    module = plan.launches[0].module
    assert module is not None
    built = build(module, arch)
    start = time.perf_counter()
    ptx = built.ptx.decode()
    report, error = _launched(problem, plan, built, ptx)
    seconds = time.perf_counter() - start
    fenced = None
    if _lacks_fence(ptx):
        ptx = re.sub(r"(cp\.async\.wait_group\s+\d+;\n)", r"\1fence.proxy.async.shared::cta;\n", ptx)
        fenced = _kinds(_launched(problem, plan, built, ptx)[0])
    return SweepRow(
        arch,
        problem.dtype,
        problem.head_dim,
        problem.causal,
        str(config),
        error,
        _kinds(report),
        fenced,
        round(built.compile_seconds, 3),
        round(seconds, 3),
        built.ptx_sha256,
    )


def _launched(problem: Problem, plan: LaunchPlan, built: Build, ptx: str) -> tuple[Report, float]:
    """The report of one launch, and the relative L2 error of its output."""
    inputs = make_inputs(problem)
    buffers = {"q": inputs.q.copy(), "k": inputs.k.copy(), "v": inputs.v.copy(), "o": np.full_like(inputs.q, np.nan)}
    step = completed(plan.launches[0], built)
    args = [buffers[value] if isinstance(value, str) else value for value in step.args]
    report = launch(ptx, built.entry, step.grid, step.block, args, dynamic_smem=step.dynamic_smem)
    reference = attention_float64(inputs.q, inputs.k, inputs.v, scale=problem.scale, causal=problem.causal)
    difference = buffers["o"].astype(np.float64) - reference
    return report, float(np.linalg.norm(difference) / np.linalg.norm(reference))


def _lacks_fence(ptx: str) -> bool:
    between = re.findall(r"cp\.async\.wait_group(.*?)wgmma\.mma_async", ptx, re.DOTALL)
    return any("fence.proxy.async" not in text for text in between)


def _kinds(report: Report) -> tuple[str, ...]:
    return tuple(hazard.kind for hazard in report.hazards)


def run(archs: Sequence[str], every: int, say: Say) -> CampaignResult:
    """Run the sweep, or one combination in ``every`` of it, with a line for each.

    Raises
    ------
    UserError
        For an architecture that is not in :data:`ARCHS`, without Triton, or without a checkout of the repository.
    """
    unknown = [arch for arch in archs if arch not in ARCHS]
    if unknown:
        raise UserError(f"--arch takes {', '.join(ARCHS)}, not {unknown[0]}")
    missing = needs("triton_flash")
    if missing:
        raise UserError(missing)
    import triton

    done: list[SweepRow] = []
    for row in rows(list(archs or ARCHS), every):
        done.append(row)
        note = "" if row.hazards_with_fence is None else f" (with a proxy fence {len(row.hazards_with_fence)})"
        say(
            f"{'ok  ' if row.good else 'BAD '} {row.arch} {row.dtype:8} D={row.head_dim:<3} "
            f"{'causal' if row.causal else 'full  '} {row.knobs:52} error {row.error:.2e} "
            f"hazards {len(row.hazards)}{note} in {row.seconds:.2f} s"
        )
    total = {
        "configurations": len(done),
        "clean": sum(not row.hazards for row in done),
        "without_proxy_fence": sum(row.hazards_with_fence is not None for row in done),
        "bad": sum(not row.good for row in done),
    }
    summary = (
        f"{total['configurations']} configurations: {total['clean']} clean, {total['without_proxy_fence']} without the "
        f"proxy fence that Triton {triton.__version__} left out, {total['bad']} bad"
    )
    content = {"lengths": list(LENGTHS), "totals": total, "rows": [asdict(row) for row in done]}
    return CampaignResult(content, not total["bad"], summary)
