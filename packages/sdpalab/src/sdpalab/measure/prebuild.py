"""Builds for a GPU machine, made on a machine without a GPU: all modules that it judges, times and compares."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sdpalab.compile import Build, BuildError, Cache, build
from sdpalab.inputs import make_inputs
from sdpalab.judge.cases import cases_for
from sdpalab.judge.rule.relations import RELATIONS
from sdpalab.judge.same_code import LARGE_PROBLEMS, cases_with_same_code
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import Source
from sdpalab.problem import MISSION, Problem
from warpsan.gpus import default_sms
from warpsan.host import usable_cpus
from warpsan.sanitize import Progress

__all__ = ["COMPARED", "TIMED", "KernelBuilds", "build_modules", "modules_for"]

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
    def modules(self) -> int:
        """Number of modules."""
        return len(self.builds) + len(self.failures)

    @property
    def compiled(self) -> int:
        """Number of modules that were not in the cache."""
        return sum(not each.cache_hit for each in self.builds)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kernel": self.kernel,
            "modules": self.modules,
            "compiled": self.compiled,
            "bytes": sum(len(each.ptx) + len(each.cubin) for each in self.builds),
            "seconds": self.seconds,
            "failures": list(self.failures),
            "builds": [each.name for each in self.builds],
        }


def build_modules(
    kernel: Kernel, arch: str, timed: Sequence[Problem] = TIMED, *, progress: Progress = lambda text: None
) -> KernelBuilds:
    """Build every module of :func:`modules_for` into the user's cache, on every core: compilers release Python's GIL.

    Parameters
    ----------
    kernel : Kernel
        A kernel that runs on ``arch``.
    arch : str
        Architecture such as ``sm_90a``.
    timed : sequence of Problem
        Problems to be timed, in addition to judged and compared ones.
    progress : callable
        Receives a text after each module.

    Raises
    ------
    MachineError
        Without a compiler.
    """
    start, cache = time.perf_counter(), Cache()
    modules = modules_for(kernel, timed, default_sms(arch))
    builds: list[Build] = []
    failures: list[str] = []

    def attempt(module: Source) -> Build | BuildError:
        try:
            return build(module, arch, cache=cache)
        except BuildError as error:
            return error

    with ThreadPoolExecutor(usable_cpus()) as pool:
        for number, result in enumerate(pool.map(attempt, modules), 1):
            if isinstance(result, Build):
                builds.append(result)
            else:
                failures.append(str(result))
            progress(f"{kernel.name}: {number} of {len(modules)} modules")
    return KernelBuilds(kernel.name, tuple(builds), tuple(failures), time.perf_counter() - start)


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
        if kernel.why_not(problem, config) is None:
            for step in kernel.launch_plan(problem, config, sms=sms).launches:
                if step.module is not None:
                    modules.setdefault(_identity(step.module), step.module)
    return tuple(modules.values())


def _judged() -> Iterator[Problem]:
    """Problems of the quick level's cases, and those that its relations derive from them."""
    seen: dict[Problem, None] = {}
    for spec in cases_for("quick", claims=False):
        seen.setdefault(spec.problem)
        if spec.relation:
            related, _ = RELATIONS[spec.relation].inputs(spec.problem, make_inputs(spec.problem))
            seen.setdefault(related)
    return iter(seen)


def _identity(module: Source) -> tuple[Any, ...]:
    """A hashable key, equal for equal modules."""
    return tuple(
        tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in vars(module).values()
    )
