"""The shapes of a workload: what a line may be, what is wrong with one that may not, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdpalab.commands.problem_options import ProblemOptions, problem_of
from sdpalab.errors import UserError
from sdpalab.evidence.store.workload import problem_line, prove_command, read_workload
from sdpalab.problem import Problem

PROBLEMS = [
    Problem(1, 8, 512, 64),
    Problem(1, 32, 2048, 128, kv_heads=8, dtype="bfloat16", causal=True),
    Problem(2, 8, 1, 64, kv_heads=2, seq_kv=333, scale=0.25),
]
GOOD = """
# a comment
1,8,512,64
  1,32,2048,128   causal kv_heads=8 dtype=bfloat16

{"batch": 2, "heads": 8, "seq_q": 1, "head_dim": 64, "kv_heads": 2, "seq_kv": 333, "scale": 0.25}
1,8,512,64
"""
BAD = {
    "1,8,512": "takes four integers B,H,S,D such as 1,8,512,64, and '1,8,512' has 3",
    "mission": "takes four integers B,H,S,D such as 1,8,512,64, not 'mission'",
    "1,8,512,64 window_size=3": "window_size takes two integers L,R, not '3'",
    "1,8,512,64 fast": "after B,H,S,D come causal, alibi_slopes, sinks, bottom_right, dtype=, kv_heads=, seq_kv=, "
    "scale=, window_size=, softcap=, kv_lengths=, q_lengths=, head_dim_v=, task=, layout=, attn_mask=, and 'fast' "
    "is none of them",
    "1,8,512,64 kv_heads=3": "kv_heads must divide heads, and 3 does not divide 8",
    "1,8,512,64 kv_heads=two": "kv_heads takes a number, not 'two'",
    "1,8,512,64 causal causal": "causal is given twice",
    "1,8,512,64 dtype=float64": "dtype must be one of float16, bfloat16, float32, not 'float64'",
    "1,8,512,64 scale=nan": "scale must be a finite number",
    '{"batch": 1,': "it is not a JSON object",
    '{"batch": 1, "heads": 8, "seq_q": 512}': "the problem has no head_dim",
    '{"batch": 1, "heads": 8, "seq_q": 512, "head_dim": 64, "count": 3}': "a problem has no field 'count'",
    '{"batch": true, "heads": 8, "seq_q": 512, "head_dim": 64}': "batch must be a positive integer, not True",
}


def test_a_file_of_lines_and_objects(tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text(GOOD)
    assert list(read_workload(path)) == PROBLEMS


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text(f"# shapes\n1,8,512,64\n{line}\n")
    with pytest.raises(UserError) as raised:
        read_workload(path)
    assert str(raised.value).startswith(f"{path}, line 3: ")
    assert BAD[line] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_without_problems_or_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, why in {"empty": "it has no problem", "binary": "not UTF-8 text", "none": "No such file"}.items():
        with pytest.raises(UserError, match=why):
            read_workload(tmp_path / name)
    with pytest.raises(UserError, match="cannot read: Is a directory"):
        read_workload(tmp_path)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
def test_a_problem_is_a_line_again(tmp_path: Path, problem: Problem) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text(problem_line(problem))
    assert read_workload(path) == (problem,)


def test_the_command_describes_the_problem() -> None:
    plain, grouped, scaled = map(prove_command, PROBLEMS)
    assert plain == "sdpalab prove --shape 1,8,512,64 --time"
    assert grouped == "sdpalab prove --shape 1,32,2048,128 --causal --dtype bfloat16 --kv-heads 8 --time"
    assert "--shapes-from FILE --time (with the line '2,8,1,64 kv_heads=2 seq_kv=333 scale=0.25' in FILE)" in scaled
    assert problem_of("1,32,2048,128", ProblemOptions(causal=True, dtype="bfloat16", kv_heads=8)) == PROBLEMS[1]


def test_windows_and_caps_are_words_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "shapes.txt"
    file.write_text("1,8,512,64 causal window_size=128,-1 softcap=30\n1,8,512,64 window_size=-1,3\n")
    problems = read_workload(file)
    assert problems == (
        Problem(1, 8, 512, 64, causal=True, window_size=(128, 0), softcap=30.0),
        Problem(1, 8, 512, 64, window_size=(-1, 3)),
    )
    file.write_text("\n".join(map(problem_line, problems)))
    assert read_workload(file) == problems
    assert all("--shapes-from" in prove_command(problem) for problem in problems)
