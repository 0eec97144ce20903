"""Traces: what a program records is read back, stands for its calls, and a bad trace is one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import sdpalab
from sdpalab import UserError, record_calls
from sdpalab.cli import main
from sdpalab.evidence.store.trace import Trace, read_trace, sizes_of, trace_schema
from sdpalab.evidence.store.workload import read_workload
from sdpalab.kernels.registry import get
from sdpalab.torch_api import flash_attn

ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = ROOT / "examples" / "trace.json"

Tensor = torch.Tensor


def ends(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def prefill(lengths: list[int]) -> None:
    q, k = torch.zeros(sum(lengths), 4, 8), torch.zeros(sum(lengths), 2, 8)
    most = max(lengths)
    sdpalab.flash_attn_varlen_func(q, k, k, ends(lengths), ends(lengths), most, most, causal=True)


def decode(lengths: list[int]) -> None:
    q, pages = torch.zeros(len(lengths), 1, 4, 8), torch.zeros(20, 16, 2, 8)
    table = torch.arange(4 * len(lengths), dtype=torch.int32).view(-1, 4)
    used = torch.tensor(lengths, dtype=torch.int32)
    sdpalab.flash_attn_with_kvcache(q, pages, pages, cache_seqlens=used, block_table=table, causal=True)


def test_a_program_is_recorded_and_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with torch.no_grad(), record_calls(path):
        prefill([40, 3, 17])
        for step in range(1, 9):
            decode([40 + step, 3 + step, 17 + step])
        decode([9])
    sdpalab.flash_attn_func(*[torch.zeros(1, 4, 2, 8)] * 3)  # after the end
    first, second, third = Trace.from_dict(json.loads(path.read_text())).calls
    assert [each.count for each in (first, second, third)] == [8, 1, 1]
    assert (first.function, second.function) == ("flash_attn_with_kvcache", "flash_attn_varlen_func")
    assert first.problem.kv_lengths == (48, 11, 25)
    assert (second.problem.q_lengths, second.problem.kv_lengths) == ((40, 3, 17), (40, 3, 17))
    assert (first.problem.layout, second.problem.layout, third.problem.batch) == ("paged:16", "varlen", 1)
    assert read_workload(path) == (first.problem, second.problem, third.problem)


def test_dense_calls_count_with_their_gradients_and_without_a_mask(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    q, k = torch.zeros(1, 4, 9, 8, requires_grad=True), torch.zeros(1, 2, 9, 8)
    with record_calls(path):
        sdpalab.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        sdpalab.scaled_dot_product_attention(q, k, k, torch.ones(9, 9).bool(), enable_gqa=True)
        sdpalab.flash_attn_func(*[torch.zeros(2, 6, 4, 8)] * 3, softcap=2.0)
        sdpalab.attention_with_lse(q.detach(), k, k, enable_gqa=True)
    calls = Trace.from_dict(json.loads(path.read_text())).calls
    named = {(each.function, each.problem.task, each.problem.causal, each.count) for each in calls}
    assert named == {
        ("scaled_dot_product_attention", "forward", True, 1),
        ("scaled_dot_product_attention", "backward", True, 1),
        ("scaled_dot_product_attention", "forward", False, 1),
        ("flash_attn_func", "forward", False, 1),
    }


def test_a_recorded_problem_stands_for_its_call(tmp_path: Path) -> None:
    """Its times are those that the choice of the call looks up, whatever the lengths."""
    random, path = Random(4), tmp_path / "trace.json"
    varlen, cached = (
        flash_attn.CALLS[each] for each in (sdpalab.flash_attn_varlen_func, sdpalab.flash_attn_with_kvcache)
    )
    for _ in range(60):
        lengths = [random.randrange(70) for _ in range(random.randrange(1, 5))] + [random.randrange(1, 40)]
        q, k = torch.zeros(sum(lengths), 4, 8), torch.zeros(sum(lengths), 2, 8)
        given = (q, k, k, ends(lengths), ends(lengths), max(lengths), max(lengths))
        with torch.no_grad(), record_calls(path):
            sdpalab.flash_attn_varlen_func(*given)
        assert sizes_of(read_workload(path)[0]) == sizes_of(varlen(*given).call.problem())
        used = torch.tensor(lengths, dtype=torch.int32)
        cache = torch.zeros(len(lengths), 80, 2, 8)
        step = (torch.zeros(len(lengths), 1, 4, 8), cache, cache)
        with torch.no_grad(), record_calls(path):
            sdpalab.flash_attn_with_kvcache(*step, cache_seqlens=used)
        assert sizes_of(read_workload(path)[0]) == sizes_of(cached(*step, cache_seqlens=used).call.problem())


def test_without_a_call_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(UserError, match="is not written: no attention of sdpalab ran"), record_calls(path):
        pass
    assert not path.exists()
    with pytest.raises(UserError, match=r"cannot write .*: No such file"), record_calls(tmp_path / "no" / "trace.json"):
        prefill([3])


def changed(**changes: Any) -> Any:
    """The example with changes of its first entry."""
    data = json.loads(EXAMPLE.read_text())
    data["calls"][0] |= changes
    return data


BAD: dict[str, Any] = {
    "at schema: Input should be 'sdpalab/trace/1'": {**changed(), "schema": "sdpalab/trace/2"},
    "schema must be there": {"calls": []},
    "calls is empty": {"schema": "sdpalab/trace/1", "calls": []},
    "at calls[0]: count must be 1 or more, not 0": changed(count=0),
    "at calls[0].count: Input should be a valid integer": changed(count="many"),
    "at calls[0].function: Input should be 'scaled_dot_product_attention', ": changed(function="attention"),
    "at calls[0]: flash_attn_func has no problems of layout paged:16": changed(function="flash_attn_func"),
    "at calls[0]: TracedCalls: problem must be there": {
        "schema": "sdpalab/trace/1",
        "calls": [{"function": "flash_attn_func", "count": 1}],
    },
    "at calls[0].problem: a problem has the fields batch, heads": changed(problem={"batch": 1}),
    "at calls[0].problem: heads must be a positive integer, not 0": changed(
        problem={**changed()["calls"][0]["problem"], "heads": 0}
    ),
    "at calls[0].when: Unexpected keyword argument": changed(when="today"),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_trace_is_one_sentence_and_exit_code_2(
    reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(BAD[reason]))
    assert main(["prove", "--shapes-from", str(path)]) == 2
    error = capsys.readouterr().err
    assert re.sub(r"\s+", " ", reason) in re.sub(r"\s+", " ", error)
    with pytest.raises(UserError) as raised:
        read_trace(BAD[reason], "FILE")
    assert "\n" not in str(raised.value)


def test_the_example_is_a_mix_that_kernels_take() -> None:
    trace = read_trace(json.loads(EXAMPLE.read_text()), str(EXAMPLE))
    assert {each.problem.layout for each in trace.calls} == {"varlen", "paged:16"}
    for each in trace.calls:
        assert get("flash_decode" if each.problem.paged else "flash_varlen").why_not(each.problem) is None


def test_the_schema_takes_the_example() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    validator = jsonschema.Draft202012Validator(trace_schema())
    validator.validate(json.loads(EXAMPLE.read_text()))
    assert not validator.is_valid(changed(when="today"))
