"""The named sets of cases hold every length of the peers' tests, every value of their parameters, and problems that
can be judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdpalab.cli import main
from sdpalab.judge import peer_cases as peers
from sdpalab.judge.peer_cases import CASE_SETS, peer_cases
from sdpalab.judge.strides import Strides


@pytest.mark.parametrize("task", ["forward", "backward"])
@pytest.mark.parametrize("name", CASE_SETS)
def test_every_length_and_every_value_occurs(name: str, task: str) -> None:
    specs = peer_cases(name, task)
    assert all(spec.derived and spec.problem.task == task for spec in specs)
    assert max(spec.problem.heads * spec.problem.seq_q * spec.problem.seq_kv for spec in specs) <= 1 << 23
    for test in CASE_SETS[name]:
        problems = [spec.problem for spec in specs if spec.name.startswith(f"{test.name} ")]
        if test.only not in ("", task) or (task == "backward" and not test.gradients):
            assert not problems
            continue
        assert {(each.seq_q, each.seq_kv) for each in problems} >= set(test.lengths)
        few = len(problems) < len(test.dims)
        assert few or {each.head_dim for each in problems} >= set(test.dims)
        for field in {*test.turns} - {"strides", "scale", "window_size"}:
            assert {getattr(each, field) for each in problems} >= set(test.turns[field]), (test.name, field)
        if "window_size" in test.turns:
            assert {bool(each.window_size) for each in problems} == {True, False}


def test_flash_attn_aligns_to_the_last_key_and_torch_to_the_first() -> None:
    for name in CASE_SETS:
        alone = [each.problem for each in peer_cases(name) if each.problem.causal]
        lower = {each.with_(bottom_right=True) == each for each in alone if each.seq_q != each.seq_kv}
        assert lower == {name == "flash-attn"}


def test_a_cache_has_appended_keys_and_pages() -> None:
    cache = [spec for spec in peer_cases("flash-attn") if spec.name.startswith("kvcache ")]
    assert {(spec.strides, spec.problem.paged) for spec in cache} == {
        (strides, page) for strides in (Strides.CONTIGUOUS, Strides.APPENDED) for page in (0, 256)
    }
    assert all(min(spec.problem.kv_lengths or ()) >= spec.problem.seq_q for spec in cache)
    assert {spec.problem.group for spec in cache} == {1, 2, 3}
    assert peers.LEFT_OUT.keys() == CASE_SETS.keys()


def test_the_cases_that_do_not_suit_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parent / "peer_functions.py"
    (tmp_path / "mine.py").write_text(f"{file.read_text()}\nflash_attn_func = flash('top left')\n")
    words = ["judge", f"{tmp_path / 'mine.py'}:flash_attn_func", "--cases", "flash-attn"]
    assert main([*words, "--only", "causal 2x2x1x32", "--only", "varlen_causal 3x2x1x32"]) == 1
    out = capsys.readouterr().out
    assert "flash-attn: 1 of 2 cases suit flash_attn_func, 1 do not" in out
    assert "flash-attn leaves out: dropout" in out
    assert main([*words, "--causal"]) == 2
    assert "--cases has problems of its own" in capsys.readouterr().err
    assert main([*words[:-1], "flash"]) == 2
    assert "--cases is flash-attn or torch, not 'flash'" in capsys.readouterr().err
