"""Workload files with one problem per line, or a trace (:mod:`sdpalab.evidence.store.trace`); a problem as such a line.

A line is a ``--shape`` value followed by words for non-default fields, or a JSON object with the fields of
:class:`sdpalab.problem.Problem` (JSON Lines). Empty lines, and lines that begin with ``#``, are skipped::

    # decoder, prefill
    1,32,2048,128 causal kv_heads=8 dtype=bfloat16
    1,8,512,64
    1,8,4096,64 causal window_size=1024,0 softcap=50
    {"batch": 1, "heads": 32, "seq_q": 1, "head_dim": 128, "seq_kv": 2048, "kv_heads": 8}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sdpalab.errors import UserError
from sdpalab.evidence.store.trace import is_trace, read_trace
from sdpalab.problem import FIELDS, Problem, ProblemError, parse_lengths, parse_shape, parse_window

__all__ = ["problem_line", "prove_command", "read_workload"]

_WORDS: dict[str, Callable[[str], Any]] = {
    "dtype": str,
    "kv_heads": int,
    "seq_kv": int,
    "scale": float,
    "window_size": parse_window,
    "softcap": float,
    "kv_lengths": partial(parse_lengths, "kv_lengths"),
    "q_lengths": partial(parse_lengths, "q_lengths"),
    "head_dim_v": int,
    "task": str,
    "layout": str,
    "attn_mask": str,
}
_FLAGS = ("causal", "alibi_slopes", "sinks", "bottom_right")
_FIELDS = ("batch", "heads", "seq_q", "head_dim", "kv_heads", "seq_kv", "dtype", "causal", "scale", *FIELDS)


def read_workload(path: Path) -> tuple[Problem, ...]:
    """Read the problems of a file, each once, in order of appearance.

    Raises
    ------
    UserError
        If the file cannot be read or has no problem, or for the first bad line, with its number and the error.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--shapes-from {path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--shapes-from {path}: it is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except ValueError:
            data = None  # several lines
        if is_trace(data):
            return tuple(dict.fromkeys(each.problem for each in read_trace(data, f"--shapes-from {path}").calls))
    problems: dict[Problem, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            try:
                problems[_object(line) if line.startswith("{") else _words(line)] = None
            except ValueError as error:
                message = str(error).removeprefix("--shape ")
                raise UserError(f"{path}, line {number}: {message}") from None
    if not problems:
        raise UserError(f"--shapes-from {path}: it has no problem; a line is such as 1,8,512,64 causal kv_heads=2")
    return tuple(problems)


def _object(line: str) -> Problem:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ProblemError(f"it is not a JSON object: {error}") from None
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise ProblemError(f"a problem has no field {unknown[0]!r}; its fields are {', '.join(_FIELDS)}")
    missing = [name for name in _FIELDS[:4] if name not in fields]
    if missing:
        raise ProblemError(f"the problem has no {missing[0]}; it needs {', '.join(_FIELDS[:4])}")
    return Problem(**fields)


def _words(line: str) -> Problem:
    shape, *words = line.split()
    changes: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if word in _FLAGS:
            name, changed = word, True
        elif equals and name in _WORDS:
            try:
                changed = _WORDS[name](value)
            except ProblemError:
                count = "two integers L,R" if name == "window_size" else "integers N,N,..."
                raise ProblemError(f"{name} takes {count}, not {value!r}") from None
            except ValueError:
                raise ProblemError(f"{name} takes a number, not {value!r}") from None
        else:
            known = f"{', '.join(_FLAGS)}, {'=, '.join(_WORDS)}="
            raise ProblemError(f"after B,H,S,D come {known}, and {word!r} is none of them")
        if name in changes:
            raise ProblemError(f"{name} is given twice")
        changes[name] = changed
    return Problem(*parse_shape(shape), **changes)


def problem_line(problem: Problem) -> str:
    """The problem as a line of words, which :func:`read_workload` reads back."""
    plain = Problem(problem.batch, problem.heads, problem.seq_q, problem.head_dim)
    words = [f"{problem.batch},{problem.heads},{problem.seq_q},{problem.head_dim}"]
    words += [name for name in _FLAGS if getattr(problem, name)]
    changed = {name: getattr(problem, name) for name in _WORDS if getattr(problem, name) != getattr(plain, name)}
    changed |= {name: ",".join(map(str, value)) for name, value in changed.items() if isinstance(value, tuple)}
    words += [f"{name}={value}" for name, value in changed.items()]
    return " ".join(words)


def prove_command(problem: Problem) -> str:
    """The command that judges and times the candidates for ``problem`` on this machine."""
    line = problem_line(problem)
    if problem.features or " scale=" in line:
        return f"sdpalab prove --shapes-from FILE --time (with the line '{line}' in FILE)"
    shape, *words = line.split()
    options = "".join(f" --{word.replace('_', '-').replace('=', ' ')}" for word in words)
    return f"sdpalab prove --shape {shape}{options} --time"
