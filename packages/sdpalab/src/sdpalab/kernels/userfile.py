"""The loader of a user's kernel from a Python file."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from sdpalab.errors import UserError
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.triton_kernel import bare_triton_reason

__all__ = ["absolute_spec", "file_of", "is_user_file", "load_user_kernel"]


def is_user_file(text: str) -> bool:
    """True if ``text`` has the form ``FILE.py`` or ``FILE.py:NAME``."""
    return ".py:" in f"{text}:"


def file_of(spec: str) -> Path:
    """The file of ``FILE.py`` or ``FILE.py:NAME``."""
    return Path(f"{spec}:".partition(".py:")[0] + ".py")


def absolute_spec(spec: str) -> str:
    """``FILE.py[:NAME]`` with an absolute path; a registry name unchanged."""
    return (
        str(file_of(spec).absolute()) + f"{spec}:".partition(".py")[2].removesuffix(":") if is_user_file(spec) else spec
    )


def load_user_kernel(spec: str) -> Kernel | Callable[..., Any]:
    """Import ``FILE.py`` and return its kernel: NAME of ``FILE.py:NAME``, otherwise the only kernel of the file.

    Without a name this is the file's CudaKernel or TritonKernel, or, if it defines none, its only public function.

    Raises
    ------
    UserError
        If the file does not exist or does not import (with the exception and its line), has no such name, or has
        several candidates; the message lists them.
    """
    if not is_user_file(spec):
        raise UserError(f"a user's kernel is given as FILE.py or FILE.py:NAME, not {spec!r}")
    path, name = file_of(spec), spec.partition(".py:")[2]
    if not path.is_file():
        raise UserError(f"{path} does not exist or is not a file; a kernel is given as NAME or FILE.py[:NAME]")
    module = _import(path)
    choices = _choices(module)
    if name:
        return _named(module, name, path, choices)
    if not choices:
        for value in vars(module).values():
            if reason := bare_triton_reason(value):
                raise UserError(f"{path}: {reason}")
    if len({id(kernel) for kernel in choices.values()}) != 1:
        defined = f"several kernels ({', '.join(choices)})" if choices else "neither a CudaKernel nor a function"
        raise UserError(f"{path} defines {defined}: say which is meant as {path}:NAME")
    return next(iter(choices.values()))


def _import(path: Path) -> ModuleType:
    """Execute the file's text as a module of its own; a .pyc could miss an edit within one second."""
    absolute = path.resolve()
    try:
        source = absolute.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    module = ModuleType(f"sdpalab_user_{absolute.stem}")
    module.__file__ = str(absolute)
    sys.modules[module.__name__] = module
    if str(absolute.parent) not in sys.path:
        sys.path.append(str(absolute.parent))  # for imports of neighbouring files; last, so they hide nothing
    try:
        exec(compile(source, str(absolute), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(f"{path} does not import: {_described(error, str(absolute))}") from error
    return module


def _described(error: BaseException, file: str) -> str:
    """``ValueError: message (line 7)``, with the last line of ``file`` that the exception passed through."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    hint = ": pip install 'sdpalab[triton]'" if getattr(error, "name", None) == "triton" else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "") + hint


def _choices(module: ModuleType) -> dict[str, Kernel | Callable[..., Any]]:
    """Public names of the file's kernels: those that the lab builds, or otherwise the functions defined in it."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    kernels = {name: value for name, value in public.items() if isinstance(value, Kernel)}
    if kernels:
        return dict(kernels)
    return {
        name: value
        for name, value in public.items()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__
    }


def _named(
    module: ModuleType, name: str, path: Path, choices: dict[str, Kernel | Callable[..., Any]]
) -> Kernel | Callable[..., Any]:
    if not hasattr(module, name):
        known = f"its kernels are: {', '.join(choices)}" if choices else "it defines no CudaKernel or function"
        raise UserError(f"{path} has no {name!r}; {known}")
    value = getattr(module, name)
    if reason := bare_triton_reason(value):
        raise UserError(f"{path}: {reason}")
    if isinstance(value, Kernel) or (callable(value) and not isinstance(value, type)):
        return value
    kind = "a class" if isinstance(value, type) else f"of type {type(value).__name__}"
    raise UserError(f"{path}:{name} is {kind}, and neither a CudaKernel nor a function of q, k, v")
