"""The space of a search: named knobs with finite values, and their valid configurations.

A predicate depends on the problem and the knobs alone, and precedes every build. A configuration is valid if every
predicate holds for every problem of the search.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from sdpalab.errors import UserError
from sdpalab.judge.sandbox.sandboxed import SandboxedKernel
from sdpalab.kernels.kernel import Config, Kernel, Knob
from sdpalab.model.counted import arch_on
from sdpalab.problem import Problem
from warpsan.gpus import Gpu

__all__ = ["MOST_COMBINATIONS", "ConfigSpace"]

MOST_COMBINATIONS = 1_000_000
"""Largest number of knob combinations: the valid configurations are listed one by one."""
SURVEYED_AT_A_TIME = 1000
"""Number of configurations of a user's kernel per message to its process."""
MAX_THREADS = 1024
"""Largest number of threads of a block (CUDA C++ Programming Guide 13.0, "Compute Capabilities", technical
specifications)."""


@dataclass(frozen=True)
class ConfigSpace:
    """Knobs and their valid configurations, in the order of the knobs' values.

    Attributes
    ----------
    knobs : mapping of str to tuple of values
        Values of each knob to try, in the kernel's order.
    configs : tuple of Config
        The valid configurations, without duplicates.
    rejected : mapping of str to str
        Number of configurations that each predicate rejected, with its first reason; predicates without rejections are
        absent.
    """

    knobs: Mapping[str, tuple[Knob, ...]]
    configs: tuple[Config, ...]
    rejected: Mapping[str, str] = field(default_factory=dict)
    _members: frozenset[Config] = field(init=False, repr=False, compare=False)
    _steps: dict[Config, tuple[Config, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_members", frozenset(self.configs))

    @classmethod
    def of(cls, kernel: Kernel, problems: Sequence[Problem], gpus: Sequence[Gpu]) -> ConfigSpace:
        """The space of ``kernel`` for all ``problems`` on all ``gpus``: combinations of its knobs, or its ``configs``.

        Predicates in order: ``arch`` (the kernel can be built for the GPUs), ``supports`` and ``reject`` (the kernel's
        own), ``static limits`` (threads of a block, and dynamic shared memory against the declared limit).

        Raises
        ------
        UserError
            If no configuration is valid, with the predicates that emptied the space, or if there are too many to list.
        """
        knobs, candidates, total = _candidates(kernel)
        if total > MOST_COMBINATIONS:
            raise UserError(
                f"kernel {kernel.name} has {total} combinations of its knobs, and a search lists at most "
                f"{MOST_COMBINATIONS}: give fewer values"
            )
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        configs: dict[Config, None] = {}
        for config, rejection in _rejections(kernel, problems, gpus, candidates):
            if rejection is None:
                configs[config] = None
                continue
            predicate, reason = rejection
            counts[predicate] += 1
            first.setdefault(predicate, reason)
        rejected = {name: f"{name} rejects {count} of {total} ({first[name]})" for name, count in counts.items()}
        if not configs:
            label = ", ".join(problem.label for problem in problems)
            why = "; ".join(rejected.values()) or "a knob has no value to try"
            raise UserError(f"kernel {kernel.name} has no valid configuration for {label}: {why}")
        return cls(knobs, tuple(configs), rejected)

    def __len__(self) -> int:
        return len(self.configs)

    def __iter__(self) -> Iterator[Config]:
        return iter(self.configs)

    def __contains__(self, config: object) -> bool:
        return config in self._members

    def distance(self, one: Config, other: Config) -> int:
        """Number of different knobs."""
        return sum(one.get(name) != other.get(name) for name in self.knobs)

    def nearest(self, config: Config, fixed: Mapping[str, Knob] | None = None) -> Config | None:
        """The valid configuration with the ``fixed`` knobs that differs from ``config`` in the fewest knobs.

        None if no configuration has those knobs. At equal distance, the first in the order of the space.
        """
        knobs = (fixed or {}).items()
        fitting = (each for each in self if all(each.get(name) == value for name, value in knobs))
        return min(fitting, key=lambda each: self.distance(each, config), default=None)

    def steps(self, config: Config) -> tuple[Config, ...]:
        """Valid configurations one step away: one knob changed to a neighbouring value.

        Neighbours of a number are adjacent in the knob's order; neighbours of a name are all others. If a condition
        makes that configuration invalid, the nearest valid one with the changed knob replaces it.
        """
        if config not in self._steps:
            neighbours: dict[Config, None] = {}
            for name, values in self.knobs.items():
                for value in _neighbours(values, config[name]):
                    step = config.but(**{name: value})
                    repaired = step if step in self else self.nearest(step, {name: value})
                    if repaired is not None and repaired != config:
                        neighbours[repaired] = None
            self._steps[config] = tuple(neighbours)
        return self._steps[config]


def _candidates(kernel: Kernel) -> tuple[dict[str, tuple[Knob, ...]], Iterator[Config], int]:
    """Knobs, all their combinations, and the number of these; for a kernel without knobs, its configurations."""
    if not kernel.knobs:
        listed = [Config(each) for each in kernel.configs]
        names = dict.fromkeys(name for config in listed for name in config)
        values = {name: tuple(dict.fromkeys(config[name] for config in listed if name in config)) for name in names}
        return values, iter(listed), len(listed)
    knobs = {name: tuple(dict.fromkeys(values)) for name, values in kernel.knobs.items()}
    default = kernel.default_config
    combined = (default.but(**dict(zip(knobs, values, strict=True))) for values in product(*knobs.values()))
    return knobs, combined, math.prod(map(len, knobs.values()))


def _neighbours(values: Sequence[Knob], value: Knob) -> Sequence[Knob]:
    if value not in values or not all(isinstance(each, int) for each in values):
        return [each for each in values if each != value]
    ordered = sorted(values, key=int)
    place = ordered.index(value)
    return [ordered[near] for near in (place - 1, place + 1) if 0 <= near < len(ordered)]


def _rejections(
    kernel: Kernel, problems: Sequence[Problem], gpus: Sequence[Gpu], configs: Iterator[Config]
) -> Iterator[tuple[Config, tuple[str, str] | None]]:
    """Each configuration with the first predicate that does not hold, and its reason; None if all hold.

    A user's kernel processes many configurations per message: its predicates run in a process of their own.
    """
    if not isinstance(kernel, SandboxedKernel):
        for config in configs:
            yield config, _rejection(kernel, problems, gpus, config)
        return
    if (no_arch := _no_arch(kernel, gpus)) is not None:
        yield from ((config, ("arch", no_arch)) for config in configs)
        return
    shared = [limit for each in problems if (limit := kernel.static_limits(each).shared_bytes) is not None]
    while batch := list(islice(configs, SURVEYED_AT_A_TIME)):
        for config, surveyed in zip(batch, kernel.survey(batch, problems, [gpu.sms for gpu in gpus]), strict=True):
            if isinstance(surveyed, str):
                yield config, ("reject", surveyed)
                continue
            most = min(shared, default=None)
            reasons = [_over(config, launch.threads, launch.dynamic_smem, most) for launch in surveyed]
            over = next((reason for reason in reasons if reason is not None), None)
            yield config, None if over is None else ("static limits", over)


def _no_arch(kernel: Kernel, gpus: Sequence[Gpu]) -> str | None:
    """Reason why the kernel cannot be built for one of the GPUs; None if it can for all."""
    for gpu in gpus:
        if arch_on(kernel, gpu) is None:
            return kernel.why_not_on(gpu.arch) or f"kernel {kernel.name} does not run on {gpu.name}"
    return None


def _rejection(
    kernel: Kernel, problems: Sequence[Problem], gpus: Sequence[Gpu], config: Config
) -> tuple[str, str] | None:
    """The first predicate that does not hold, and its reason; None if all hold."""
    if (no_arch := _no_arch(kernel, gpus)) is not None:
        return "arch", no_arch
    for problem in problems:
        reason = kernel.why_not_problem(problem)
        if reason is not None:
            return "supports", reason
        reason = kernel.reject(problem, config)
        if reason is not None:
            return "reject", reason
        for gpu in gpus:
            reason = _over_static_limits(kernel, problem, config, gpu)
            if reason is not None:
                return "static limits", reason
    return None


def _over_static_limits(kernel: Kernel, problem: Problem, config: Config, gpu: Gpu) -> str | None:
    limits = kernel.static_limits(problem)
    for launch in kernel.launch_plan(problem, config, sms=gpu.sms).launches:
        reason = _over(config, math.prod(launch.block), launch.dynamic_smem, limits.shared_bytes)
        if reason is not None:
            return reason
    return None


def _over(config: Config, threads: int, dynamic_smem: int, most_shared: int | None) -> str | None:
    """Reason why a launch with these threads and dynamic shared memory is impossible or over the limit."""
    if threads > MAX_THREADS:
        return f"{config}: a block of {threads} threads, and at most {MAX_THREADS} are possible"
    if most_shared is not None and dynamic_smem > most_shared:
        return f"{config}: {dynamic_smem} bytes of dynamic shared memory, and the kernel's limit is {most_shared}"
    return None
