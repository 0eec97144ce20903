"""The historical failures: tests and bugs on their page exist, and the old tolerance passes constants."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np

from sdpalab.bugs.catalogue import BUGS
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.verdict import ORIGINAL_CONTRACT, Status
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

ROOT = Path(__file__).resolve().parents[3]
SECTIONS = (ROOT / "packages" / "sdpalab" / "docs" / "history.md").read_text().split("\n## ")[1:]


def test_every_failure_has_a_test_that_exists() -> None:
    assert len(SECTIONS) == 6
    for section in SECTIONS:
        named = re.findall(r"`(packages/[\w/]+\.py)::(\w+)`", section)
        assert named, section.splitlines()[0]
        for path, name in named:
            functions = [
                node for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
            ]
            assert name in {function.name for function in functions}, f"{path} has no {name}"


def test_every_planted_bug_that_is_named_is_planted() -> None:
    for section in SECTIONS:
        for paragraph in re.findall(r"^- Planted: (.*?)(?=^- |\Z)", section, re.MULTILINE | re.DOTALL):
            named = re.findall(r"`([^`]+)`", paragraph)
            assert named
            assert {" ".join(name.split()) for name in named} <= BUGS.keys()


def test_what_the_old_tolerance_passed() -> None:
    """The old tolerance passes the mean of V on a long sequence, and zeros with V ten times smaller."""
    problem = Problem(1, 1, 8, 64, seq_kv=16384)
    inputs = make_inputs(problem, "normal", 0)
    small = Inputs(inputs.q, inputs.k, (inputs.v * np.float16(0.1)).astype(np.float16))
    mean = np.broadcast_to(inputs.v.astype(np.float32).mean(axis=2, keepdims=True), problem.q_shape).astype(np.float16)
    for given, constant in ((inputs, mean), (small, np.zeros_like(mean))):
        judged = judge_output(problem, given, constant, Numerics())
        assert judged.errors.max_abs <= ORIGINAL_CONTRACT["max_abs"]
        assert judged.status is Status.INCORRECT
