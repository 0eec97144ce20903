"""The summary of a failed verdict: the same for the command line, JSON, the report and pytest."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from sdpalab.commands.failures import MOST_ROWS, print_failures, rows_of
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.judge.diagnose.summary import FailedArrays, FailureSummary, options_of, summarise
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.problem import Problem
from warpsan.report.groups import HazardGroup, Party

PROBLEM = Problem(1, 2, 48, 32, causal=True)
RACE = HazardGroup(
    *("race", "race: all of it", "reads what {other} wrote", "usually a missing barrier between them"),
    Party("my.cu:9", 5, "    x = tile[i];", "ld.shared.u32", "thread (0, 0, 0) of block (0, 0, 0)", ("my.cu:9:5",)),
    Party("my.cu:7", 1, "tile[i] = x;", "st.shared.u32", "warp 1 of block (0, 0, 0)", ("my.cu:7:1",)),
    *(("my.ptx:20", "my.ptx:30"), ("",)),
)


def wrong_case(name: str, arrays: FailedArrays) -> Case:
    """A case whose output is all zeros."""
    inputs = make_inputs(PROBLEM)
    out = np.zeros_like(inputs.q)
    judged = judge_output(PROBLEM, inputs, out, UNDECLARED)
    kept = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "o": out}
    digests = {key: arrays.put(array) for key, array in kept.items()}
    return Case(name, PROBLEM, "normal", 0, judged.status, judged.reason, judged.errors, judged.limits, digests, {})


def hazard_case(name: str) -> Case:
    return Case(name, PROBLEM, "normal", 0, Status.HAZARD, "race: one", run={"hazards": [RACE.to_dict()]})


@pytest.fixture(scope="module")
def wrong() -> tuple[Verdict, FailedArrays]:
    """A kernel whose output is zeros in two cases."""
    arrays = FailedArrays()
    cases = tuple(wrong_case(name, arrays) for name in ("first", "second"))
    return Verdict("mine", "", "simulator sm_89", "quick", 0, cases), arrays


def test_a_wrong_output_has_a_map_a_worst_row_a_likely_cause_and_a_next_step(
    wrong: tuple[Verdict, FailedArrays],
) -> None:
    verdict, arrays = wrong
    summary = summarise(verdict, arrays.of, "mine.py", ["--set", "BLOCK_M=64"])
    assert summary.likely == "the scores have no effect (it is all zeros)"
    assert summary.mapped == "first"
    assert summary.error_map.startswith("head (b=0, h=")
    assert "96 of 96 rows are over the limit" in summary.worst_row
    assert summary.next_step == "sdpalab sanitize mine.py --shape 1,2,48,32 --causal --set BLOCK_M=64"
    labels = [line.split(" ")[0] for line in summary.lines()]
    assert labels == ["error", "worst", "likely:", "next:"]
    written = json.loads(json.dumps(summary.to_dict()))
    assert written["error_map"][0] == summary.error_map.splitlines()[0]


def test_a_callable_is_judged_again_and_what_has_no_name_has_no_next_step(
    wrong: tuple[Verdict, FailedArrays],
) -> None:
    verdict, arrays = wrong
    on_cpu = replace(verdict, device="cpu (torch)")
    assert summarise(on_cpu, arrays.of, "mine.py").next_step == "sdpalab judge mine.py --shape 1,2,48,32 --causal"
    assert summarise(verdict, arrays.of, print).next_step == ""


def test_hazards_of_all_cases_are_one_group() -> None:
    cases = tuple(hazard_case(f"case {number}") for number in range(19))
    summary = summarise(Verdict("mine", "", "simulator sm_89", "quick", 0, cases), FailedArrays().of, "mine.py")
    (group,) = summary.hazards
    assert group.runs == tuple(f"case {number}" for number in range(19))
    assert group.instructions == RACE.instructions
    assert summary.likely == ""
    assert summary.next_step.startswith("sdpalab sanitize mine.py")


def test_one_hazard_of_19_cases_is_printed_once() -> None:
    cases = tuple(hazard_case(f"case {number}") for number in range(19))
    verdict = Verdict("mine", "", "simulator sm_89", "quick", 0, cases)
    stream = io.StringIO()
    print_failures(Console(file=stream, width=80), verdict, summarise(verdict, FailedArrays().of, "mine.py"))
    printed = stream.getvalue()
    assert printed.count("x = tile[i];") == 1
    assert "2 instructions, in 19 of 19 cases, first in case 0" in " ".join(printed.split())
    assert "reads what st.shared.u32 in line 7 wrote" in printed
    rows, others = rows_of(verdict)
    assert len(rows) == MOST_ROWS
    assert others == f"{19 - MOST_ROWS} more failed, see --json"


def test_a_passed_verdict_has_nothing_to_say() -> None:
    arrays = FailedArrays()
    failed = Verdict("mine", "", "cpu", "quick", 0, (Case("a", PROBLEM, "normal", 0, Status.CRASHED, "it raised"),))
    assert summarise(failed, arrays.of, "mine.py") == FailureSummary()
    assert FailureSummary().lines() == []


def test_another_store_gets_all_arrays_too() -> None:
    class Kept:
        def __init__(self) -> None:
            self.count = 0

        def put(self, array: np.ndarray) -> str:
            self.count += 1
            return f"{self.count:064x}"

    kept = Kept()
    arrays = FailedArrays(kept)
    case = wrong_case("wrong", arrays)
    assert kept.count == 4
    inputs, outputs = arrays.of(case)
    assert isinstance(inputs, Inputs)
    assert not outputs["o"].any()


@pytest.mark.parametrize(
    ("problem", "options"),
    [
        (Problem(1, 8, 512, 64), "--shape 1,8,512,64"),
        (
            Problem(2, 4, 7, 32, kv_heads=2, seq_kv=9, dtype="bfloat16", causal=True),
            "--shape 2,4,7,32 --kv-heads 2 --seq-kv 9 --dtype bfloat16 --causal",
        ),
    ],
)
def test_the_options_of_a_problem(problem: Problem, options: str) -> None:
    assert " ".join(options_of(problem)) == options
