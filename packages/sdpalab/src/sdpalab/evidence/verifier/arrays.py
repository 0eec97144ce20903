"""Raw arrays of a case: conversion from bytes to arrays, and the comparison of figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sdpalab.inputs import Inputs, dtype_of
from sdpalab.judge.rule.figures import yardstick_name
from sdpalab.problem import Problem

__all__ = ["arrays_of", "inputs_of", "is_at", "near", "paths_of", "problem_of"]

TOLERANCE = 1e-6
"""Relative difference of figures re-derived on another machine, due to the order of float64 sums."""
NOISE = 1e-12
"""Difference of those sums relative to the largest element, for figures near zero."""


def problem_of(fields: Mapping[str, Any]) -> Problem:
    """The problem with these fields.

    Raises
    ------
    ValueError, TypeError
        If a field is missing, unknown, wrong, or not in canonical form.
    """
    problem = Problem(**fields)
    if problem.to_dict() != {**fields}:
        raise ValueError(f"the fields of the problem are not in their one form, which is {problem.to_dict()}")
    return problem


def paths_of(digests: Mapping[str, str]) -> dict[str, str]:
    """Files of arrays with these digests, by the arrays' names."""
    return {name: f"arrays/{digest}.raw" for name, digest in digests.items()}


def arrays_of(
    problem: Problem, digests: Mapping[str, str], members: Mapping[str, bytes], names: Iterable[str]
) -> dict[str, Any]:
    """Arrays of a case by name: inputs and outputs in the problem's shapes and dtypes, ``lse`` float32 [B, H, Sq].

    Raises
    ------
    ValueError, KeyError
        If an array is missing, or has a wrong number of bytes.
    """
    shapes = {"q": problem.q_shape, "k": problem.kv_shape, "v": problem.v_shape, **problem.outputs}
    shapes |= {yardstick_name(output): shape for output, shape in problem.outputs.items()}
    forms: dict[str, tuple[tuple[int, ...], str]] = {name: (shape, problem.dtype) for name, shape in shapes.items()}
    forms |= {"lse": (problem.q_shape[:3], "float32"), **problem.array_shapes}
    paths, arrays = paths_of(digests), {}
    for name in names:
        shape, dtype = forms[name]
        kind, raw = dtype_of(dtype), members[paths[name]]
        if len(raw) != kind.itemsize * math.prod(shape):
            raise ValueError(f"{name} has {len(raw)} bytes, and is {'x'.join(map(str, shape))} {dtype}")
        arrays[name] = np.frombuffer(raw, kind).reshape(shape)
    return arrays


def inputs_of(problem: Problem, digests: Mapping[str, str], members: Mapping[str, bytes]) -> Inputs:
    """The inputs of a case; raises as :func:`arrays_of`."""
    return Inputs(**arrays_of(problem, digests, members, ("q", "k", "v", *problem.array_shapes)))


def near(recorded: float, derived: float, scale: float) -> bool:
    """Whether two figures are equal within tolerance; ``scale`` is the largest number in their sums."""
    return math.isclose(recorded, derived, rel_tol=TOLERANCE, abs_tol=NOISE * scale)


def is_at(values: Any, place: list[int], largest: float, scale: float) -> bool:
    """True if ``place`` has the largest value; among equal values another machine may choose another place."""
    inside = len(place) == values.ndim and all(0 <= i < n for i, n in zip(place, values.shape, strict=True))
    return inside and near(float(values[tuple(place)]), largest, scale)
