"""Submissions in files and folders: their format, by the names that their source defines. Nothing is executed here."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdpalab.errors import UserError

__all__ = ["FORMATS", "Submission", "submissions_in"]

FORMATS = {
    "kernelbench": "KernelBench: one .py with a class ModelNew; the task has Model, get_inputs and get_init_inputs",
    "gpumode": "GPU MODE: one .py with custom_kernel(data); reference.py has generate_input and ref_kernel",
    "pair": "a folder with reference.py (a class Model) and solution.py (Model or ModelNew)",
    "flashinfer": "flashinfer-bench and SOL-ExecBench: solution.json, and the definition of that name beside it",
}
"""The formats, each in a sentence."""
_TASK_FILES = ("reference.py", "task.py", "utils.py", "task.yml", "problem.yaml")
_SOURCES = (".py", ".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp")
_LANGUAGES = ("python", "triton", "pytorch", "torch", "cuda", "cuda_cpp", "cpp", "c++")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Submission:
    """One submission.

    Attributes
    ----------
    path : Path
    format : str
        Key of :data:`FORMATS`.
    solution, task : mapping of str to str
        Text of the submission's files, and of the task's, by their names.
    facts : mapping
        ``entry``: the file of the entry point; further facts that the format states.
    refused : str
        Reason why it is not judged; empty if it can be.
    """

    path: Path
    format: str
    solution: Mapping[str, str] = field(default_factory=dict, repr=False)
    task: Mapping[str, str] = field(default_factory=dict, repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    refused: str = ""


def submissions_in(paths: Sequence[str | Path]) -> list[Submission]:
    """The submissions in files and folders, in order; folders are searched to any depth.

    Raises
    ------
    UserError
        If a path does not exist or cannot be read, or there is no submission.
    """
    listed: dict[Path, Submission] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"{path} does not exist; audit takes files and folders of submissions")
        for each in _found_in(path):
            listed.setdefault(each.path.resolve(), each)
    if not listed:
        known = "; ".join(FORMATS.values())
        raise UserError(f"there is no submission in {', '.join(map(str, paths))}; the formats are: {known}")
    return list(listed.values())


def _found_in(path: Path) -> Iterator[Submission]:
    if path.is_file():
        submission = _of_file(path)
        if submission is None:
            raise UserError(f"{path} is a submission in none of the formats: {'; '.join(FORMATS.values())}")
        yield submission
        return
    if (path / "reference.py").is_file() and (path / "solution.py").is_file():
        yield _pair(path)
        return
    for each in sorted(path.iterdir()):
        if each.is_dir() and not each.name.startswith((".", "_")):
            yield from _found_in(each)
        elif each.suffix in (".py", ".json") and (submission := _of_file(each)) is not None:
            yield submission


def _of_file(path: Path) -> Submission | None:
    """The submission of a file; None if it is none, such as a task."""
    if path.suffix == ".json":
        return _flashinfer(path)
    if path.suffix != ".py" or path.name in _TASK_FILES:
        return None
    text = _text(path)
    names = _names(text)
    task = {name: _text(path.parent / name) for name in _TASK_FILES if (path.parent / name).is_file()}
    if "custom_kernel" in names:
        missing = "" if "reference.py" in task else "there is no reference.py of the task beside it"
        solution = {path.name: text, **_named_in(text, path.parent)}
        return Submission(path, "gpumode", solution, task, {"entry": path.name}, missing)
    if "ModelNew" not in names:
        return None
    if "Model" in names and "get_inputs" in names:
        task = {"reference.py": text}
    missing = (
        "" if "reference.py" in task else "there is no reference.py of the task beside it, and it defines no Model"
    )
    solution = {path.name: text, **_named_in(text, path.parent)}
    return Submission(path, "kernelbench", solution, task, {"entry": path.name}, missing)


def _pair(folder: Path) -> Submission:
    task = {name: _text(folder / name) for name in _TASK_FILES if (folder / name).is_file()}
    others = [each for each in sorted(folder.iterdir()) if each.suffix in _SOURCES and each.name not in _TASK_FILES]
    solution = {each.name: _text(each) for each in others if each.is_file()}
    return Submission(folder, "pair", solution, task, {"entry": "solution.py"})


def _flashinfer(path: Path) -> Submission | None:
    try:
        solution = json.loads(_text(path))
        sources, spec = solution["sources"], solution["spec"]
        files = {str(each["path"]): str(each["content"]) for each in sources}
        wanted, entry = str(solution["definition"]), str(spec["entry_point"])
    except (ValueError, KeyError, TypeError):
        return None
    definition = next((each for each in _definitions(path.parent) if each.get("name") == wanted), None)
    facts = {
        "name": str(solution.get("name", path.stem)),
        "entry": entry.partition("::")[0],
        "function": entry.partition("::")[2] or "run",
        "in_place": bool(spec.get("destination_passing_style", True)),
        "definition": definition or {},
        "matched": float(solution.get("required_matched_ratio", 1.0)),
    }
    refused = "" if definition is not None else f"there is no definition {wanted} beside it"
    languages = spec.get("languages", [spec.get("language", "python")])
    if unknown := [str(each) for each in languages if str(each).lower() not in _LANGUAGES]:
        refused = refused or f"it is written in {unknown[0]}: Python, Triton and CUDA C++ are run"
    if entry.partition("::")[0].endswith((".cu", ".cpp")) and any("tvm/ffi" in text for text in files.values()):
        refused = refused or "its binding is tvm-ffi: of CUDA solutions those with a binding of torch are run"
    return Submission(path, "flashinfer", files, {}, facts, refused)


def _definitions(folder: Path) -> Iterator[Mapping[str, Any]]:
    for place in (folder, folder / "definitions", folder.parent / "definitions", folder.parent):
        for path in sorted(place.glob("*.json")) if place.is_dir() else ():
            try:
                content = json.loads(_text(path))
            except (ValueError, UserError):
                continue
            if isinstance(content, dict) and "inputs" in content and "outputs" in content:
                yield content


def _named_in(text: str, folder: Path) -> dict[str, str]:
    """CUDA and C++ files of a folder that a text names, and those that these name."""
    beside = [each for each in sorted(folder.iterdir()) if each.suffix in _SOURCES[1:] and each.is_file()]
    named_files: dict[str, str] = {}
    waiting = [text]
    while waiting:
        named = waiting.pop()
        for each in beside:
            if each.name in named and each.name not in named_files:
                named_files[each.name] = _text(each)
                waiting.append(named_files[each.name])
    return named_files


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return content[:_MOST_BYTES].decode(errors="replace")


def _names(text: str) -> set[str]:
    """Names of the classes and functions of a module; empty if it does not parse."""
    try:
        nodes = ast.parse(text).body
    except (SyntaxError, ValueError):
        return set()
    return {each.name for each in nodes if isinstance(each, (ast.ClassDef, ast.FunctionDef))}
