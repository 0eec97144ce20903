"""Host code of an extension, compiled by the machine's C++ compiler."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from warpsan.build.headers import cuda_include_dirs
from warpsan.build.source_text import without_literals
from warpsan.errors import MachineError, UserError

__all__ = ["compiled_host", "compiler_of_cpp"]

_HERE = Path(__file__).with_name("include")
_OPTIONS = ("-std=c++20", "-O0", "-fPIC", "-shared", "-w", "-fpermissive", "-fmax-errors=5", "-Wl,-z,defs")
_ENTRY, _UNITS = "warpsan_entry_unit.cpp", (".cpp", ".cu", ".cc", ".cxx")
_INCLUDE = re.compile(r'#\s*include\s*[<"]([^>"\n]+)[>"]')
_RUNTIME = ("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h")
_TORCH = re.compile(r"(torch|ATen|c10|pybind11|THC|TH)/")
_ON_THE_DEVICE = re.compile(
    r"(mma|cooperative_groups|cuda_pipeline\w*|sm_\w+|math_constants|crt/.*|cuda/.*|cub/.*)(\.h|\.cuh)?$"
)
_CALLED = re.compile(r"(?<![\w.>])((?:\w+\s*::\s*)*)(\w+)\s*(?:<[\w:]*>)?\s*\(")
_METHOD = re.compile(r"(?:\.|->)\s*(\w+)\s*\(")
_RESULTS = {
    "chunk": "std::vector<Tensor>",
    "split": "std::vector<Tensor>",
    "unbind": "std::vector<Tensor>",
    "topk": "TwoTensors",
    "sort": "TwoTensors",
    "allclose": "bool",
    "is_tensor": "bool",
}
"""Results other than a tensor."""


def compiler_of_cpp() -> list[str]:
    """The C++ compiler and its options: ``$CXX``, or g++, or c++.

    Raises
    ------
    MachineError
        If there is none.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in (chosen, ["g++"], ["c++"]):
        if command and shutil.which(command[0]):
            return command
    raise MachineError("there is no C++ compiler, which compiles the host code of an extension of torch: install g++")


def compiled_host(name: str, sources: Mapping[str, str], folder: Path, includes: Sequence[Path]) -> Path:
    """The shared library of host code.

    Parameters
    ----------
    name : str
        Name of the extension.
    sources : mapping of str to str
        Text by file name; files other than ``.cpp`` and ``.cu`` are headers.
    folder : Path
        New folder for the files.
    includes : sequence of Path
        Further folders of headers.

    Raises
    ------
    UserError
        If the compiler rejects the host code: its first error.
    MachineError
        If there is no compiler.
    """
    folder.mkdir(parents=True)
    for file, text in sources.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with (folder / _ENTRY).open("w") as entry:
        first = next((file for file in sources if file.endswith(_UNITS)), "")
        entry.write(f'#include "{first}"\n#include "warpsan_entry.inl"\n')
    everything = "\n".join(sources.values())
    _write_headers(folder / "standin", everything)
    units = [_ENTRY, *(file for file in sources if file.endswith(_UNITS))]
    del units[1:2]  # the entry includes the first one
    library = folder / f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}.so"
    command = [*compiler_of_cpp(), *_OPTIONS, "-x", "c++", "-include", "warpsan_torch.h"]
    command += [f"-I{each}" for each in (folder / "standin", folder, _HERE, *includes, *cuda_include_dirs())]
    command += [*units, "-o", str(library)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        missing = re.search(r"undefined reference to `([^']+)'", done.stderr)
        if missing and "error:" not in done.stderr.partition("undefined reference")[0]:
            raise UserError(
                f"the host code of {name} calls {missing[1]}, which it does not define and which has no model"
            )
        first = next((line for line in lines if "error:" in line), lines[0] if lines else f"exit {done.returncode}")
        raise UserError(f"the host code of {name} does not compile: {first.strip()[:400]}")
    return library


def _write_headers(folder: Path, text: str) -> None:
    """Headers of torch and CUDA that the sources include, each empty, and the functions of torch that they call."""
    folder.mkdir()
    for name in dict.fromkeys((*_RUNTIME, *_INCLUDE.findall(text))):
        if _TORCH.match(name) or name in _RUNTIME or _ON_THE_DEVICE.match(name):
            path = folder / name
            if path.resolve().is_relative_to(folder.resolve()):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("#pragma once\n")
    functions, methods = _names(text)
    for file, macro, names in (("torch_names", "FUNCTION", functions), ("tensor_methods", "METHOD", methods)):
        lines = [f"WARPSAN_{macro}({each}, {_RESULTS.get(each, 'Tensor')})\n" for each in names]
        (folder / f"{file}.inc").write_text("".join(lines))


def _names(text: str) -> tuple[list[str], list[str]]:
    """Functions of torch and methods of tensors that a text calls, and that the headers do not declare."""
    code, declared = without_literals(text), _declared()
    opened = re.search(r"\busing\s+namespace\s+(?:torch|at)\b", code) is not None
    functions = {
        name
        for scope, name in _CALLED.findall(code)
        if (scope.replace(" ", "") in ("torch::", "at::") or (opened and not scope)) and hasattr(torch, name)
    }
    methods = {name for name in _METHOD.findall(code) if hasattr(torch.Tensor, name)}
    return sorted(functions - declared[0]), sorted(methods - declared[1])


@cache
def _declared() -> tuple[frozenset[str], frozenset[str]]:
    """Names that the header declares as functions of torch, and as methods of a tensor."""
    text = (_HERE / "warpsan_torch.h").read_text()
    before, _, rest = text.partition("class Tensor {")
    tensor, _, after = rest.partition("\n};")
    functions = re.findall(r"^(?:inline|template <typename T> T) .*?\b(\w+)\(", before + after, re.MULTILINE)
    methods = re.findall(r"^ {2}(?!explicit).*?\b(\w+)\([^()]*\)(?: const)? \{", tensor, re.MULTILINE)
    return frozenset(functions), frozenset(methods)
