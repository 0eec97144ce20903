"""``sdpalab.judge``: how it is called, on what it judges, what it records, and what it refuses."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import sdpalab
import sdpalab.judge.verdict
from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.judge import Case, CaseSpec, judge_candidate
from sdpalab.problem import TWELVE_CASES, Problem

FILE = Path(__file__).parent / "candidates.py"
SMALL = Problem(1, 2, 17, 64)


def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    """A callable as a user gives it."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)


@pytest.mark.parametrize(
    "code",
    [
        "import sdpalab; judge = sdpalab.judge",
        "from sdpalab import judge",
        "import sdpalab.judge.verdict; judge = sdpalab.judge",
        "import sdpalab.judge.verdict; from sdpalab import judge",
        "from sdpalab.judge import judge",
    ],
)
def test_judge_is_callable_however_it_is_imported_and_light(code: str) -> None:
    check = (
        f"import sys; {code}\nassert 'torch' not in sys.modules\n"
        "from sdpalab.errors import UserError\n"
        "try: judge('x', level='none')\n"
        "except UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "level must be quick or full, not 'none'"


@pytest.mark.slow
def test_a_callable_is_judged_on_the_twelve_cases_and_four_hidden_ones() -> None:
    verdict = sdpalab.judge(attention)
    assert verdict.passed, verdict.reason
    assert [(case.problem, case.seed) for case in verdict.cases[:12]] == list(TWELVE_CASES)
    hidden = verdict.cases[12:16]
    assert [case.problem for case in hidden] == list(dict.fromkeys(problem for problem, _ in TWELVE_CASES))
    assert len({case.seed for case in hidden}) == 4
    assert verdict.kernel == "attention"
    assert verdict.device == f"cpu (torch {torch.__version__})"
    for case in (verdict.cases[0], hidden[0]):
        digests = make_inputs(case.problem, case.inputs, case.seed).digests()
        assert {name: case.digests[name] for name in "qkv"} == digests


@pytest.mark.slow
def test_same_candidate_same_verdict_and_plain_json() -> None:
    specs = [CaseSpec("a", SMALL, "ramp", 5), CaseSpec("b", SMALL.with_(causal=True, dtype="bfloat16"))]
    one, *others = (judge_candidate(attention, specs, workers=n) for n in (1, 2))
    assert one.passed
    assert all(other == one for other in others)
    again = json.loads(json.dumps(one.to_dict(), allow_nan=False))
    assert json.dumps(again) == json.dumps(one.to_dict())
    assert Problem(**again["cases"][1]["problem"]) == specs[1].problem
    assert again["cases"][0]["inputs"] == "ramp"
    assert again["cases"][0]["seed"] == 5


@pytest.mark.slow
def test_a_functions_own_module_need_not_be_importable(tmp_path: Path) -> None:
    module = tmp_path / "elsewhere.py"
    module.write_text(
        "import torch\nHALF = 0.5\n"
        "def halved(q, k, v, *, scale, causal):\n"
        "    return HALF * torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)\n"
    )
    code = (
        "import importlib.util, sys, sdpalab\n"
        f"spec = importlib.util.spec_from_file_location('elsewhere', {str(module)!r})\n"
        "module = importlib.util.module_from_spec(spec)\nsys.modules['elsewhere'] = module\n"
        "spec.loader.exec_module(module)\n"
        "from sdpalab.judge import CaseSpec, judge_candidate\n"
        "verdict = judge_candidate(module.halved, [CaseSpec('one', sdpalab.Problem(1, 1, 9, 32))])\n"
        "print(verdict.status.value, verdict.reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("INCORRECT")
    assert "0.5 times the right one" in done.stdout


class Kept:
    """A store, as a bundle of evidence has one."""

    def __init__(self) -> None:
        self.arrays: dict[str, npt.NDArray[Any]] = {}

    def put(self, array: npt.NDArray[Any]) -> str:
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        self.arrays[digest] = array.copy()
        return digest


def test_the_store_holds_what_each_case_rests_on() -> None:
    store, seen = Kept(), list[Case]()
    specs = [CaseSpec(f"{kind}", SMALL, kind, 1) for kind in ("normal", "needle")]
    verdict = judge_candidate(f"{FILE}:noisy", specs, store=store, progress=seen.append)
    assert sorted(case.name for case in seen) == ["needle", "normal"]
    assert [case.name for case in verdict.cases] == ["normal", "needle"]
    for case in verdict.cases:
        assert set(case.digests) == {"q", "k", "v", "o", "yardstick", "o_second"}
        arrays = {name: store.arrays[digest] for name, digest in case.digests.items()}
        assert arrays["o"].shape == arrays["yardstick"].shape == SMALL.q_shape
        assert not np.array_equal(arrays["o"], arrays["o_second"])
        assert case.run["numerics"]["probabilities"] == "problem"


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        ("no_such_kernel", "no_such_kernel"),
        ("nowhere.py", "nowhere.py does not exist"),
        (f"{FILE}:nothing", "nothing"),
        (f"{FILE}:NOT_A_KERNEL", "NOT_A_KERNEL"),
        (3, "not int"),
        (functools.partial(attention, lock=threading.Lock()), "FILE.py:NAME instead"),
    ],
)
def test_what_cannot_be_judged(candidate: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        sdpalab.judge(candidate, [SMALL])


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def kernel(:\n", "SyntaxError"),
        ("x = 1\nimport no_such_module_at_all\n", r"No module named 'no_such_module_at_all'.*line 2"),
        ("import os\nos._exit(5)\n", "does not load: the process ended with exit code 5"),
        ("import sys\nsys.exit(1)\n", "SystemExit"),
    ],
)
def test_a_file_that_does_not_load(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        sdpalab.judge(str(file), [SMALL])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": "gpu"}, "no GPU: .*; device sim runs the PTX|attention is a Python callable"),
        ({"device": "tpu"}, "device must be one of auto, sim, cpu, gpu, not 'tpu'"),
        ({"device": "sim"}, "attention is a Python callable"),
        ({"level": "fast"}, "level must be quick or full, not 'fast'"),
        ({"problems": []}, "no problem to judge"),
    ],
)
def test_what_cannot_be_asked(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        sdpalab.judge(attention, **({"problems": [SMALL]} | arguments))
