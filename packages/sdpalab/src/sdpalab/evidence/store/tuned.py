"""Tuned defaults (:class:`~sdpalab.search.tuned.TunedEntry`) in the store of records: one record per search result.

The newest entry of a kernel, GPU and class of problems counts, and the user's before the shipped one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from sdpalab.evidence.store.lookup import forget, own_records, records_on, shipped_records
from sdpalab.evidence.store.record import keep, sealed
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.source import source_digest
from sdpalab.problem import Problem
from sdpalab.search.tuned import ProblemClass, TunedEntry
from warpsan.gpus import device_name, gpu_named, gpu_of_device

__all__ = ["keep_tuned", "shared_config", "tuned", "tuned_config", "tuned_entries"]


def keep_tuned(entry: TunedEntry, folder: Path | None = None) -> Path:
    """Store ``entry`` in the user's records, or in ``folder``; returns the path.

    Raises
    ------
    MachineError
        If it cannot be written.
    """
    gpu = device_name(gpu_named(entry.gpu))
    path = keep(sealed(gpu=gpu, driver="", when=datetime.now(timezone.utc), tuned=entry), "tuned", folder)
    forget()
    return path


def tuned(kernel: Kernel, problem: Problem, device: str) -> TunedEntry | None:
    """The tuned default of a kernel for the class of ``problem`` on the GPU with that driver name (``device``).

    None if there is none, its source differs, or the kernel rejects the configuration for this problem.
    """
    gpu = gpu_of_device(device)
    entries = records_on(device_name(gpu)).tuned if gpu else ()
    place = gpu and gpu.name, ProblemClass.of(problem)
    entry = next((each for each in _current(kernel, entries) if (each.gpu, each.problems) == place), None)
    if entry is None or kernel.why_not(problem, kernel.default_config.but(**entry.config)) is not None:
        return None
    return entry


def tuned_config(kernel: Kernel, problem: Problem, device: str) -> Config:
    """The tuned default, or the default configuration; the arguments are those of :func:`tuned`."""
    entry = tuned(kernel, problem, device)
    return kernel.default_config if entry is None else kernel.default_config.but(**entry.config)


def shared_config(kernel: Kernel, problems: Sequence[Problem], device: str) -> Config:
    """The :func:`tuned_config` that the supported ``problems`` share; without one, the default configuration."""
    supported = [problem for problem in problems if kernel.why_not(problem) is None]
    shared = {tuned_config(kernel, problem, device) for problem in supported}
    return shared.pop() if len(shared) == 1 else kernel.default_config


def tuned_entries(kernel: Kernel, *, own: bool = True) -> tuple[TunedEntry, ...]:
    """Tuned defaults of a kernel's present source, one per GPU and class; with ``own`` the user's, too."""
    entries = shipped_records().tuned + (own_records().tuned if own else ())
    first: dict[tuple[str, ProblemClass], TunedEntry] = {}
    for entry in _current(kernel, entries):
        first.setdefault((entry.gpu, entry.problems), entry)
    return tuple(sorted(first.values(), key=lambda entry: (entry.gpu, entry.problems.label)))


def _current(kernel: Kernel, entries: Sequence[TunedEntry]) -> Iterable[TunedEntry]:
    """Entries of the kernel's present source, the newest first."""
    return (each for each in reversed(entries) if each.kernel == kernel.name and each.source == source_digest(kernel))
