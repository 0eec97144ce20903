"""Races and memory errors of a kernel: its launches on the simulator, in every schedule, with all checks.

A wrong order of warps may give a right result, and one schedule may not reveal every hazard. Each launch is therefore
repeated, and the hazards are merged: one hazard for each kind and instruction, with the runs that reported it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from sdpalab.compile import Cache, build, set_aside
from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import LaunchPlan, Source
from sdpalab.kernels.sources import kernel_sources
from sdpalab.packing import Packing
from sdpalab.problem import HALF_DTYPES, Problem
from sdpalab.run.simulated import SimulatedExecutor
from warpsan.gpus import default_sms
from warpsan.report import SanitizedHazard, Suppression
from warpsan.sanitize import Collected, Modes, Progress, Sanitized

__all__ = ["combine", "sanitize_kernel", "small_problems"]

_HEAD_DIMS = (64, 128, 32, 16, 96, 256, 80, 48, 112, 192)
_LAYOUTS = ("dense", "varlen", "paged:64", "paged:64:e4m3")
_TILE = 64
"""Default number of keys of a tile, if no knob sets it."""


def small_problems(
    kernel: Kernel, config: Config | None = None, *, dtype: str | None = None, causal: bool = False
) -> list[Problem]:
    """Small problems that exercise all cases of a kernel's pipeline, in the first layout that it takes.

    The numbers of key tiles are 1, the number of stages, one more, and twice as many with a ragged one, so the count is
    one, even and odd, and every stage is refilled. A further problem has two row tiles and an odd number of key tiles,
    all whole, for kernels with separate code for whole tiles. Tiles and stages are the knobs BLOCK_M, BLOCK_N and
    NUM_STAGES (in Triton num_stages), if the kernel has them. With SPLIT or NUM_SPLITS blocks per row each block gets
    that many key tiles, of BLOCK_N keys for each of KEY_WARPS warps; with PACK_GQA that many heads share a row tile and
    K and V. Gradients also have a ragged problem with an odd number of tiles of queries, the knob STREAM. Unless all
    are causal, a ragged causal problem comes last.

    Raises
    ------
    UserError
        If the kernel supports none of them.
    """
    config = kernel.default_config if config is None else config
    keys, rows, stages = (_knob(config, name) for name in ("BLOCK_N", "BLOCK_M", "NUM_STAGES"))
    keys, rows, stages = keys or _TILE, rows or _TILE, max(2, stages or _knob(config, "num_stages"))
    keys *= max(1, _knob(config, "KEY_WARPS"))
    splits = max(1, _knob(config, "SPLIT"), _knob(config, "NUM_SPLITS"))
    share, heads = keys * splits, max(1, _knob(config, "PACK_GQA"))
    rows //= heads
    lengths = [keys, stages * share, (stages + 1) * share, (2 * stages + 1) * share - 7]
    for layout, dim, kind in product(_LAYOUTS, _HEAD_DIMS, [dtype] if dtype else HALF_DTYPES):
        sizes = [(length if causal else min(length, rows + 7), length, causal) for length in dict.fromkeys(lengths)]
        if kernel.task == "backward":
            sizes.append(((2 * stages + 1) * (_knob(config, "STREAM") or _TILE) - 7, keys + 7, causal))
        sizes += (
            [] if causal else [(2 * rows, (2 * stages + 1) * share, False), ((stages + 1) * keys - 7,) * 2 + (True,)]
        )
        problems = [
            Problem(1, heads, q, dim, kv_heads=1, seq_kv=kv, dtype=kind, causal=mask, task=kernel.task, layout=layout)
            for q, kv, mask in sizes
        ]
        problems = [problem for problem in problems if kernel.why_not(problem, config) is None]
        if problems:
            return problems
    problem = Problem(1, 1, keys, _HEAD_DIMS[0], dtype=dtype or "float16", causal=causal, task=kernel.task)
    raise UserError(f"no small problem suits {kernel.name}: {kernel.why_not(problem, config)}; give a --shape")


def _knob(config: Config, name: str) -> int:
    value = config.get(name, 0)
    return value if isinstance(value, int) and value > 0 else 0


def sanitize_kernel(
    kernel: Kernel,
    problems: Sequence[Problem],
    config: Config | None = None,
    modes: Modes | None = None,
    *,
    arch: str | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
    suppressions: Sequence[Suppression] = (),
) -> Sanitized:
    """Run a kernel's launch plan for each problem in each mode, and collect the simulator's hazards.

    Parameters
    ----------
    kernel, config
        The kernel, and its configuration (default: its own).
    problems : sequence of Problem
        Inputs are standard normal, with seed 0.
    modes : Modes, optional
        Default: all schedules, both async modes.
    arch : str, optional
        Default: the kernel's own.
    cache : Cache, optional
        Build cache. Default: the user's.
    progress : callable, optional
        Called with the label of each run before it starts, and during a long run with the label and its progress.
    suppressions : sequence of Suppression
        Suppressions beside those in the kernel's source (:mod:`warpsan.report.suppressions`).

    Raises
    ------
    UserError
        If the kernel does not support a problem, its source does not compile, or its PTX cannot be launched or has an
        unmodelled instruction (with its PTX line).
    """
    modes, collected = modes or Modes(), Collected(kernel.name, progress)
    config = kernel.default_config if config is None else config
    arch = arch or kernel.default_arch
    for problem in problems:
        plan, arrays = _plan(kernel, problem, config, arch), Packing(problem).pack(make_inputs(problem).arrays)
        builds = [build(step.module, arch, cache=cache) for step in plan.launches if step.module is not None]
        names = [f"{built.name}.ptx" for built in builds]
        for options in modes.options(any(b"async" in built.ptx for built in builds)):
            label = f"{problem.label}, {options['schedule']}, {options['async_mode']}"
            executor = SimulatedExecutor(arch, cache, on_launch=collected.launched, **options)
            with collected.run(label, names):
                executor.run(plan, arrays)
    return _of_kernel(collected, kernel, problems, config, arch, suppressions)


def combine(
    kernel: Kernel,
    problems: Sequence[Problem],
    config: Config,
    parts: Iterable[tuple[Sequence[str], Sequence[SanitizedHazard], Sequence[str]]],
    *,
    arch: str,
    suppressions: Sequence[Suppression] = (),
) -> Sanitized:
    """The outcome of :func:`sanitize_kernel` on ``problems``, combined from the runs, hazards and notes of each."""
    collected = Collected(kernel.name, None)
    for labels, hazards, notes in parts:
        collected.labels += labels
        collected.notes |= dict.fromkeys(notes)
        for hazard in hazards:
            collected.note(hazard)
    return _of_kernel(collected, kernel, problems, config, arch, suppressions)


def _plan(kernel: Kernel, problem: Problem, config: Config, arch: str) -> LaunchPlan:
    return kernel.launch_plan(problem, config, lse=kernel.lse, sms=default_sms(arch))


def _of_kernel(
    collected: Collected,
    kernel: Kernel,
    problems: Sequence[Problem],
    config: Config,
    arch: str,
    suppressions: Sequence[Suppression],
) -> Sanitized:
    modules: dict[str, Source] = {}
    for problem in problems:
        steps = _plan(kernel, problem, config, arch).launches
        modules |= {step.module.name: step.module for step in steps if step.module is not None}
    labels = [problem.label for problem in problems]
    outcome = collected.result(str(config), f"simulator {arch}", labels, kernel_sources(modules.values()), suppressions)
    return replace(outcome, set_aside=set_aside(*modules.values()))
