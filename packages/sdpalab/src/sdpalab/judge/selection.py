"""The cases of a request that suit a candidate, by its description of itself."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sdpalab.errors import UserError
from sdpalab.inputs import E4M3_KINDS
from sdpalab.judge.rule.evaluate import declared_numerics
from sdpalab.judge.rule.numerics import check_numerics
from sdpalab.judge.small_cases import CaseSpec
from sdpalab.judge.strides import Strides
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import FEATURES

__all__ = ["NoCaseSuits", "suitable_cases"]


class NoCaseSuits(UserError):
    """No requested case suits the kernel's tiles, strides or features."""

    def __init__(self, kernel: str) -> None:
        super().__init__(f"none of the requested cases suits {kernel}, because of its tiles, strides or features")


def suitable_cases(specs: Sequence[CaseSpec], about: Mapping[str, Any], device: str) -> list[CaseSpec]:
    """The cases that the candidate supports, and that suit its tiles, its memory strides and its claims.

    Raises
    ------
    UserError
        If it cannot run on the device or the architecture, or does not support a requested problem.
    NoCaseSuits
        If no case is left.
    """
    name, is_callable = about["name"], about["kind"] == "callable"
    if is_callable and device in ("sim", "gpu"):
        raise UserError(f"{name} is a Python callable and runs on torch CPU tensors: device must be cpu or auto")
    if not is_callable:
        if device == "cpu":
            raise UserError(f"{name} is a CUDA kernel, which the lab builds: device must be sim, gpu or auto")
        if about["refuses"] is not None:
            raise UserError(about["refuses"])
        check_numerics(Numerics.from_dict(about["numerics"]))
    # A callable may only reject missing parameters: further reasons would let it avoid the probes.
    reasons = [_lacking(about, spec) for spec in specs] if is_callable else about["rejects"]
    if len(reasons) != len(specs):
        raise UserError(f"kernel {name} does not report for each problem whether it supports it")
    for spec, reason in zip(specs, reasons, strict=True):
        if reason is not None and not spec.derived:
            raise UserError(str(reason))
    suitable = [spec for spec, reason in zip(specs, reasons, strict=True) if reason is None and _suits(spec, about)]
    if not suitable:
        raise NoCaseSuits(name)
    return suitable


def _suits(spec: CaseSpec, about: Mapping[str, Any]) -> bool:
    """Whether a case suits a candidate that supports its problem."""
    tiles = {int(size) for size in re.findall(r"\bBLOCK\w*=(\d+)", about["config"])}
    if spec.tile and tiles and spec.tile not in tiles:
        return False
    if spec.inputs in E4M3_KINDS and declared_numerics(about).quantised is None:
        return False
    if about["kind"] == "callable":
        return True
    claims = about["declares_support"] or not spec.claim or spec.claim in FEATURES
    return claims and spec.strides == Strides.CONTIGUOUS


def _lacking(about: Mapping[str, Any], spec: CaseSpec) -> str | None:
    """The parameter that a callable lacks for a case, in a sentence; None if it has all."""
    problem = spec.problem
    needed = [*(["scale"] if problem.scale != 1.0 / math.sqrt(problem.head_dim) else [])]
    needed += [*(["causal"] if problem.causal else []), *problem.features, *([spec.claim] if spec.claim else [])]
    needed += ["append"] if spec.strides is Strides.APPENDED else []
    # Autograd differentiates any function: gradients need no parameter.
    lacking = [name for name in dict.fromkeys(needed) if name not in (*about["features"], "backward")]
    needs = list(about["needs"])
    if "bottom_right" in needs:
        needs.remove("bottom_right")
        if problem.with_(bottom_right=True) != problem:
            return f"{about['name']} aligns masks to the last key, and {problem.label} to the first: add --bottom-right"
    if missing := [name for name in needs if name not in problem.features]:
        wanted = ",".join("paged:16" if name == "paged" else name for name in missing)
        kinds = " and ".join(missing)
        return f"{about['name']} takes {kinds} problems only, and {problem.label} is none: add --layout {wanted}"
    if not lacking:
        return None
    return f"{about['name']} has no parameter {' or '.join(lacking)}, which {problem.label} needs"
