"""Edits of source text, by which bugs are planted in shipped kernels and in the programs of the tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from sdpalab.kernels.kernel import Config, CudaKernel, Knob, PlanFunction
from sdpalab.kernels.plan import INCLUDE_DIR, Launch, LaunchPlan, Module
from sdpalab.kernels.quantisation import SOURCE, SOURCE_NAME
from sdpalab.kernels.registry import CUDA_KERNELS
from sdpalab.problem import Problem
from warpsan.planting import replace_once

__all__ = ["QUANTISE", "SourceEdit", "replace_once"]

QUANTISE = "quantise"
"""What :attr:`SourceEdit.of` calls the source of the steps that quantise."""


@dataclass(frozen=True)
class SourceEdit:
    """Edits of one shipped kernel, whose source has the shared headers in the place of their ``#include``.

    Attributes
    ----------
    kernel : str
        Its name in the registry.
    replacements : tuple of (str, str)
        What is there exactly once, in the kernel's own file or in a header, and what takes its place.
    knobs : mapping of str to knob
        The mutant has one configuration: the kernel's default one with these knobs.
    of : str
        Which of the kernel's sources is edited: ``source``, ``variant`` for the problems with extras, or ``quantise``
        for the steps that quantise (:mod:`sdpalab.kernels.quantisation`).
    """

    kernel: str
    replacements: tuple[tuple[str, str], ...]
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    of: str = "source"

    def apply(self) -> CudaKernel:
        """The mutant, whose hazards name lines of the whole text.

        Raises
        ------
        ValueError
            As :func:`replace_once`.
        """
        kernel = CUDA_KERNELS[self.kernel]
        where = f"the {self.of} of {self.kernel}"
        edited = replace_once(_flattened(self.kernel, self.of), *self.replacements, where=where)
        changes: dict[str, Any] = {self.of: edited}
        if self.of == QUANTISE:
            changes = {"plan": partial(_planned, kernel.plan, edited)}
        config = kernel.default_config.but(**self.knobs)
        return replace(kernel, name=f"{self.kernel}-mutant", configs=(config,), **changes)


def _planned(plan: PlanFunction, quantise: str, problem: Problem, config: Config) -> LaunchPlan:
    """A kernel's plan with another source of the steps that quantise."""
    planned = plan(problem, config)
    assert isinstance(planned, LaunchPlan), "a kernel with one launch has no such steps"
    steps = tuple(
        replace(step, module=replace(step.module, source=quantise))
        if isinstance(step, Launch) and isinstance(step.module, Module) and step.module.name == SOURCE_NAME
        else step
        for step in planned.steps
    )
    return replace(planned, steps=steps)


@cache
def _flattened(name: str, of: str) -> str:
    """One of a kernel's sources with the shared headers in the place of their ``#include``."""
    seen: set[str] = set()

    def flat(text: str) -> str:
        def header(match: re.Match[str]) -> str:
            if match[1] in seen:
                return ""
            seen.add(match[1])
            return flat((INCLUDE_DIR / match[1]).read_text().replace("#pragma once", ""))

        return re.sub(r'^#include "(.*)"$', header, text, flags=re.MULTILINE)

    if of == QUANTISE:
        return flat(SOURCE)
    source = getattr(CUDA_KERNELS[name], of)
    assert isinstance(source, Path)
    return flat(source.read_text())
