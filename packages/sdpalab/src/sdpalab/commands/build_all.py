"""``sdpalab build --all``: fill the build cache with all builds for a GPU machine, on a machine without a
GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from sdpalab.compile import Build, BuildError, Cache, build, check_arch
from sdpalab.errors import UserError
from sdpalab.judge.same_code import LARGE_PROBLEMS, cases_with_same_code
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import Module, PtxSource, Source
from sdpalab.problem import MISSION, Problem
from warpsan.gpus import default_sms
from warpsan.terminal.console import progress_console, verdict_text

__all__ = ["COMPARED", "TIMED", "available", "build_all", "modules_for"]

TIMED = (MISSION, *LARGE_PROBLEMS)
"""Problems timed by ``scripts/gpu_suite.sh``."""

COMPARED = (
    Problem(1, 2, 128, 64),
    Problem(2, 4, 70, 64, kv_heads=2, seq_kv=140, causal=True),
    Problem(1, 1, 129, 64, seq_kv=300, causal=True, dtype="bfloat16"),
    Problem(1, 2, 65, 128, seq_kv=257),
)
"""Problems for comparing GPU outputs with the simulator's, in every configuration of a kernel."""


@dataclass(frozen=True)
class KernelBuilds:
    """Results for one kernel's modules: the builds, and a sentence for each module that does not compile."""

    kernel: str
    builds: tuple[Build, ...]
    failures: tuple[str, ...]
    seconds: float

    @property
    def compiled(self) -> int:
        """Number of modules that were not in the cache."""
        return sum(not each.cache_hit for each in self.builds)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kernel": self.kernel,
            "modules": len(self.builds) + len(self.failures),
            "compiled": self.compiled,
            "bytes": sum(len(each.ptx) + len(each.cubin) for each in self.builds),
            "seconds": self.seconds,
            "failures": list(self.failures),
            "builds": [each.name for each in self.builds],
        }


def build_all(console: Console, kernels: Mapping[str, Kernel], arch: str, timed: Sequence[Problem]) -> dict[str, Any]:
    """Build every module of every kernel for ``arch``, with a line per kernel; returns the outcome as JSON values.

    Parameters
    ----------
    console : Console
    kernels : mapping of str to Kernel
        Kernels that ``arch`` does not suit are skipped, with a sentence.
    arch : str
        Architecture such as ``sm_90a``.
    timed : sequence of Problem
        Problems to be timed, in addition to judged and compared ones.

    Raises
    ------
    UserError
        For an unknown architecture.
    MachineError
        Without a compiler.
    """
    check_arch(arch)
    cache = Cache()
    built: list[KernelBuilds] = []
    skipped: list[str] = []
    for name, kernel in kernels.items():
        reason = kernel.arch_reason(arch)
        if reason is not None:
            skipped.append(reason)
            console.print(f"skipped: {reason}", soft_wrap=True)
            continue
        outcome = _build_kernel(name, modules_for(kernel, timed, default_sms(arch)), arch, cache)
        built.append(outcome)
        modules = len(outcome.builds) + len(outcome.failures)
        line = (
            f"{name}: {modules} modules for {arch} in {outcome.seconds:.1f} s, {outcome.compiled} compiled, "
            f"{len(outcome.builds) - outcome.compiled} from the cache"
        )
        console.print(verdict_text(not outcome.failures, line), soft_wrap=True)
        for failure in outcome.failures:
            console.print(verdict_text(False, f"  {failure}"), soft_wrap=True)
    return {
        "arch": arch,
        "cache": str(cache.root),
        "ok": not any(each.failures for each in built),
        "modules": sum(len(each.builds) + len(each.failures) for each in built),
        "compiled": sum(each.compiled for each in built),
        "kernels": [each.to_dict() for each in built],
        "skipped": skipped,
    }


def modules_for(kernel: Kernel, timed: Sequence[Problem], sms: int) -> tuple[Source, ...]:
    """Distinct modules for judging, timing and comparing this kernel on a GPU of ``sms`` multiprocessors.

    They are those of the default configuration for the problems of the quick level, for ``timed``, and for the small
    problems that replace large ones in the judge; and those of every configuration for :data:`COMPARED`.
    """
    default = kernel.default_config
    covering = [spec.problem for spec in cases_with_same_code(kernel, default, timed, sms=sms).specs]
    wanted = [(default, problem) for problem in (*_judged(), *timed, *covering)]
    wanted += [(config, problem) for config in map(Config, kernel.configs) for problem in COMPARED]
    modules: dict[Any, Source] = {}
    for config, problem in wanted:
        if kernel.reject_reason(problem, config) is None:
            for step in kernel.launch_plan(problem, config, sms=sms).launches:
                if step.module is not None:
                    modules.setdefault(_identity(step.module), step.module)
    return tuple(modules.values())


def _judged() -> Iterator[Problem]:
    """Problems of the quick level's cases, and those that its relations derive from them."""
    from sdpalab.inputs import make_inputs
    from sdpalab.judge.cases import cases_for
    from sdpalab.judge.rule.relations import RELATIONS

    seen: dict[Problem, None] = {}
    for spec in cases_for("quick", claims=False):
        seen.setdefault(spec.problem)
        if spec.relation:
            related, _ = RELATIONS[spec.relation].inputs(spec.problem, make_inputs(spec.problem))
            seen.setdefault(related)
    return iter(seen)


def _identity(module: Source) -> tuple[Any, ...]:
    """A hashable key, equal for modules with the same build."""
    if isinstance(module, Module):
        return module.name, module.source, module.entry, tuple(sorted(module.defines.items())), module.include_dirs
    if isinstance(module, PtxSource):
        return module.name, module.source, module.entry, module.ptx
    tables = (module.signature, module.constants, module.options)
    return module.name, module.source, module.entry, *(tuple(table.items()) for table in tables)


def _build_kernel(name: str, modules: Sequence[Source], arch: str, cache: Cache) -> KernelBuilds:
    """Compile on every core: the compilers release Python's GIL."""
    start = time.perf_counter()
    builds: list[Build] = []
    failures: list[str] = []

    def attempt(module: Source) -> Build | BuildError:
        try:
            return build(module, arch, cache=cache)
        except BuildError as error:
            return error

    from warpsan.host import usable_cpus

    console = progress_console()
    with console.status(f"{name}: 0 of {len(modules)} modules") as status, ThreadPoolExecutor(usable_cpus()) as pool:
        for result in pool.map(attempt, modules):
            if isinstance(result, Build):
                builds.append(result)
            else:
                failures.append(str(result))
            status.update(f"{name}: {len(builds) + len(failures)} of {len(modules)} modules")
    return KernelBuilds(name, tuple(builds), tuple(failures), time.perf_counter() - start)


def available(names: Iterable[str]) -> tuple[dict[str, Kernel], list[str]]:
    """The shipped kernels with these names that are available here, and a sentence for each other name."""
    from sdpalab.kernels.registry import get

    kernels: dict[str, Kernel] = {}
    missing: list[str] = []
    for name in names:
        try:
            kernels[name] = get(name)
        except UserError as error:
            missing.append(str(error))
    return kernels, missing
