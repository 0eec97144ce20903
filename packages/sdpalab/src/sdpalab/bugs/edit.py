"""Edits of source text that plant bugs in shipped kernels and in the programs of the tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from string import Template
from typing import Any

from sdpalab.kernels.kernel import Config, CudaKernel, Knob, PlanFunction
from sdpalab.kernels.plan import INCLUDE_DIR, Launch, LaunchPlan, Module
from sdpalab.kernels.quantisation import SOURCE, SOURCE_NAME
from sdpalab.kernels.registry import CUDA_KERNELS, GRADIENT_KERNELS, SEQUENCE_KERNELS
from sdpalab.problem import Problem
from warpsan.planting import replace_once

__all__ = ["QUANTISE", "TEMPLATE", "SourceEdit", "replace_once"]

QUANTISE = "quantise"
"""Value of :attr:`SourceEdit.of` for the source of the quantisation steps."""
TEMPLATE = "gradients_template"
"""Value of :attr:`SourceEdit.kernel` for the kernel that ``sdpalab new cuda --task backward`` writes."""
_TEMPLATE_FILES = Path(__file__).parents[1] / "commands" / "templates" / "cuda_backward"


@dataclass(frozen=True)
class SourceEdit:
    """Edits of one shipped kernel, whose source has the shared headers in place of their ``#include`` lines.

    Attributes
    ----------
    kernel : str
        Its name in the registry, or TEMPLATE.
    replacements : tuple of (str, str)
        Text that occurs exactly once, in the kernel's own file or in a header, and its replacement.
    knobs : mapping of str to knob
        Knobs of the mutant's only configuration that differ from the kernel's default.
    of : str
        The edited source of the kernel: ``source``, ``variant`` for the problems with features, or ``quantise`` for the
        quantisation steps (:mod:`sdpalab.kernels.quantisation`).
    """

    kernel: str
    replacements: tuple[tuple[str, str], ...]
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    of: str = "source"

    def apply(self) -> CudaKernel:
        """Return the mutant; its hazards refer to lines of the whole text.

        Raises
        ------
        ValueError
            As :func:`replace_once`.
        """
        kernel = _kernel(self.kernel)
        where = f"the {self.of} of {self.kernel}"
        edited = replace_once(_flattened(self.kernel, self.of), *self.replacements, where=where)
        changes: dict[str, Any] = {self.of: edited}
        if self.of == QUANTISE:
            changes = {"plan": partial(_planned, kernel.plan, edited)}
        config = kernel.default_config.but(**self.knobs)
        return replace(kernel, name=f"{self.kernel}-mutant", configs=(config,), **changes)


def _planned(plan: PlanFunction, quantise: str, problem: Problem, config: Config) -> LaunchPlan:
    """A kernel's plan with another source of the quantisation steps."""
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
    """One of a kernel's sources with the shared headers in place of their ``#include`` lines."""
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
    source = getattr(_kernel(name), of)
    return flat(source.read_text() if isinstance(source, Path) else source)


@cache
def _kernel(name: str) -> CudaKernel:
    """A kernel of the registry, or that of the template."""
    if name != TEMPLATE:
        return {**CUDA_KERNELS, **SEQUENCE_KERNELS, **GRADIENT_KERNELS}[name]
    names = {"name": name, "NAME": name.upper()}
    source, launch = (
        Template((_TEMPLATE_FILES / f"kernel.{suffix}.tmpl").read_text()).substitute(names) for suffix in ("cu", "py")
    )
    scope: dict[str, Any] = {}
    exec(launch, scope)
    kernel: CudaKernel = scope[names["NAME"]]
    return replace(kernel, source=source)
