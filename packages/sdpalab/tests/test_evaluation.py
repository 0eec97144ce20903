"""Evaluation by stages: it stops at the first failure, and one bad candidate of many costs only its own slot."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdpalab import Problem, Status, UserError, evaluate, judge_many
from sdpalab.evaluation import Evaluation
from sdpalab.jobs import executor_named

FILE = Path(__file__).parent / "judge" / "cuda_candidates.py"
TASK = Problem(1, 1, 40, 32, seq_kv=70)
SECRET = b"sixteen bytes ok"
EAGER = """
import torch

def attention(q, k, v, *, scale, causal):
    assert not causal
    return (torch.softmax((q.float() @ k.float().transpose(-1, -2)) * scale, -1) @ v.float()).to(q.dtype)
"""


def of(name: str, *stages: str) -> Evaluation:
    return evaluate(f"{FILE}:{name}", TASK, stages=stages or ("compile", "tiny"), secret=SECRET)


def test_a_right_kernel_passes_all_its_stages() -> None:
    evaluation = of("right", "compile", "tiny", "quick")
    assert evaluation.passed, evaluation.reason
    assert evaluation.stages == dict.fromkeys(("compile", "tiny", "quick"), "PASSED")
    assert evaluation.compiled
    assert evaluation.ran
    assert evaluation.log10_error is not None
    assert -3 < evaluation.log10_error <= 0
    assert {"normal", "probes", "edges", "code"} <= evaluation.families.keys()
    assert all(passed == judged > 0 for passed, judged in evaluation.families.values())
    assert 0 < evaluation.blocks[0] <= evaluation.blocks[1]
    assert evaluation.algebraic
    assert Evaluation.from_dict(evaluation.to_dict()) == evaluation


@pytest.mark.parametrize(
    ("name", "stages", "status"),
    [
        ("does_not_compile", {"compile": "BUILD_FAILED"}, Status.BUILD_FAILED),
        ("reads_past_the_end", {"compile": "PASSED", "tiny": "HAZARD"}, Status.HAZARD),
        ("drops_a_key", {"compile": "PASSED", "tiny": "INCORRECT"}, Status.INCORRECT),
    ],
)
def test_it_stops_at_the_first_stage_that_fails(name: str, stages: dict[str, str], status: Status) -> None:
    evaluation = of(name, "compile", "tiny", "quick")
    assert (evaluation.status, evaluation.stages) == (status, stages)
    assert evaluation.reason
    assert evaluation.compiled == (status is not Status.BUILD_FAILED)
    assert bool(evaluation.hazards) == (status is Status.HAZARD)
    if status is Status.INCORRECT:
        assert evaluation.log10_error is not None
        assert evaluation.log10_error > 0


def test_the_time_of_a_kernel_that_passes_is_modelled_above_its_floor() -> None:
    evaluation = evaluate(f"{FILE}:right", TASK, stages=("tiny",), gpu="L4", secret=SECRET)
    assert evaluation.passed
    assert evaluation.gpu == "L4"
    assert evaluation.modelled_us is not None
    assert evaluation.floor_us is not None
    assert 0 < evaluation.floor_us < evaluation.modelled_us < 1e3
    wrong = evaluate(f"{FILE}:drops_a_key", TASK, stages=("tiny",), gpu="L4", secret=SECRET)
    assert (wrong.modelled_us, wrong.floor_us) == (None, evaluation.floor_us)
    assert wrong.not_modelled == "only the time of a kernel that passed is modelled"


def test_a_candidate_that_does_not_load_fails_in_the_stage_compile() -> None:
    for stages in (("compile",), ("compile", "tiny")):
        evaluation = evaluate("def broken(:\n", TASK, stages=stages)
        assert (evaluation.status, evaluation.stages) == (Status.BUILD_FAILED, {"compile": "BUILD_FAILED"})
    with pytest.raises(UserError, match="head_dim must be 32, not 64"):
        evaluate(f"{FILE}:right", Problem(1, 1, 40, 64), stages=("compile", "tiny"))


def test_the_memory_of_a_candidate_is_bounded() -> None:
    source = "def attention(q, k, v, *, scale, causal):\n    return bytearray(3 << 30)\n"
    evaluation = evaluate(source, TASK, stages=("tiny",), memory_bytes=1 << 29)
    assert evaluation.status is Status.CRASHED
    assert "MemoryError" in evaluation.reason or "at most 0.5 are allowed" in evaluation.reason


def test_equal_secrets_give_equal_evaluations() -> None:
    first, second = (of("drops_a_key").to_dict() for _ in range(2))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_the_budget_ends_an_evaluation() -> None:
    evaluation = evaluate(f"{FILE}:right", TASK, stages=("compile", "tiny"), budget_s=0.0)
    assert (evaluation.status, evaluation.stages) == (Status.INTERRUPTED, {})
    assert "budget of 0 s ended before compile" in evaluation.reason


def test_the_text_is_bounded() -> None:
    evaluation = of("drops_a_key")
    assert evaluation.text().startswith("INCORRECT at tiny; max error")
    assert len(evaluation.text(60)) == 60


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(UserError, match="there is no stage 'slow'; the stages are compile, tiny, quick, full"):
        evaluate("flash", stages=("slow",))


ITEMS = [
    (EAGER, TASK),
    ("import os\n\ndef attention(q, k, v, *, scale, causal):\n    os.abort()\n", TASK),
    ("def broken(:\n", TASK),
    (f"{FILE}:drops_a_key", TASK),
    ("no_such_kernel", TASK),
    ("import time\n\ndef attention(q, k, v, *, scale, causal):\n    time.sleep(1000)\n", TASK),
    (EAGER.replace("scale, -1", "scale * 1.01, -1"), TASK),
]
EXPECTED = [
    *(Status.PASSED, Status.CRASHED, Status.BUILD_FAILED, Status.INCORRECT, Status.BUILD_FAILED),
    *(Status.INTERRUPTED, Status.INCORRECT),
]


def test_each_of_many_candidates_has_its_own_result() -> None:
    order: list[int] = []
    results = judge_many(
        ITEMS, workers=2, finished=lambda n, _: order.append(n), stages=("tiny",), budget_s=15.0, secret=SECRET
    )
    assert [each.status for each in results] == EXPECTED, [each.text(200) for each in results]
    assert sorted(order) == list(range(len(ITEMS)))


def test_many_candidates_on_an_executor() -> None:
    chosen = [0, 2, 3]
    executor = executor_named("local", workers=1)
    try:
        results = judge_many([ITEMS[n] for n in chosen], executor=executor, stages=("tiny",), secret=SECRET)
    finally:
        executor.close()
    assert [each.status for each in results] == [EXPECTED[n] for n in chosen], [each.text(200) for each in results]


def test_an_object_is_not_sent_to_an_executor() -> None:
    executor = executor_named("local", workers=1)
    try:
        with pytest.raises(UserError, match="objects cannot be sent as data"):
            judge_many([(len, TASK)], executor=executor)
    finally:
        executor.close()
