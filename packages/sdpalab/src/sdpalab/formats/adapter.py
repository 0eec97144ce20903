"""Base class of the adapters of submissions, and the mode of torch in which they run."""

from __future__ import annotations

import importlib
import inspect
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sdpalab.formats.tasks import as_dense, from_dense

__all__ = ["COMPILED", "Adapter", "OnCpu"]

COMPILED = (".cu", ".cpp", ".cc")
"""Suffixes of files that the C++ compiler and NVRTC compile."""


class Adapter(ABC):
    """A submission or its task: ``adapter(q, k, v, ...)`` is O on tensors [B, H, S, D].

    Parameters
    ----------
    files : mapping of str to str
        Text of the files by name; they are written to a folder of their own, from which they are imported.
    facts : mapping
        Facts of the submission, and ``init`` of the task.
    features : sequence of str
        Names of the keyword parameters.
    """

    lse = False
    written: Sequence[torch.Tensor] = ()
    """Outputs of the last call in the format's own layout, whose writers are the origin of the output; empty: those
    that the adapter returns."""

    def __init__(self, files: Mapping[str, str], facts: Mapping[str, Any], features: Sequence[str]) -> None:
        self._facts, self._folder = facts, Path(tempfile.mkdtemp(prefix="submission-"))
        for name, text in files.items():
            path = self._folder / name
            if not path.resolve().is_relative_to(self._folder.resolve()):
                raise ValueError(f"the file {name} of the submission is outside its folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        sys.path.insert(0, str(self._folder))
        if any("cpp_extension" in text for text in files.values()) or facts["entry"].endswith(COMPILED):
            from sdpalab.judge.sandbox.kernel_calls import ARCH
            from warpsan.program import install_extensions

            install_extensions(ARCH)
        self._places: dict[tuple[int, tuple[int, ...], torch.dtype], torch.Tensor] = {}
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in "qkv"]
        parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in features]
        self.__signature__ = inspect.Signature(parameters)
        self.__name__ = Path(facts["entry"]).stem
        self._entry = self._solution() if facts["entry"] in files else None

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Any:
        """The submission's output."""
        assert self._entry is not None
        return self.converted(self._entry, q, k, v, **given)

    def _ordered(self, function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        """Call a function on Q, K and V in the order of the task's arrays; O as [B, H, S, D]."""
        form = self._facts.get("form", "bhsd")
        given = [self._placed(number, from_dense(each, form)) for number, each in enumerate(tensors)]
        output = function(*given)
        if form == "bhsd" or not isinstance(output, torch.Tensor):
            return output
        self.written = [output]
        return as_dense(output, form).contiguous() if output.dim() == given[0].dim() else output

    def _placed(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor, at the same address for each input of that shape."""
        if tensor.is_contiguous():
            return tensor
        key = number, tuple(tensor.shape), tensor.dtype
        if key not in self._places:
            self._places[key] = torch.empty(tensor.shape, dtype=tensor.dtype)
        return self._places[key].copy_(tensor)

    def facts(self) -> dict[str, Any]:
        """With the task alone its problem; with the submission the verdict of the format's own check."""
        with OnCpu():
            return self._task() if self._entry is None else self._own()

    @abstractmethod
    def converted(self, function: Callable[..., Any], q: Any, k: Any, v: Any, **given: Any) -> Any:
        """Call a function of the format; the output is O, or O and the natural logarithm of the sums."""

    @abstractmethod
    def _solution(self) -> Callable[..., Any]:
        """The entry point of the submission."""

    @abstractmethod
    def _task(self) -> dict[str, Any]:
        """``problem``: fields of the task's problem; or ``refused``."""

    @abstractmethod
    def _own(self) -> dict[str, Any]:
        """``own``: the verdict of the format's own check in a few words, and whether it ``accepts``."""

    def _module(self, name: str) -> ModuleType:
        return importlib.import_module(name.removesuffix(".py").replace("/", "."))


class OnCpu(TorchFunctionMode):
    """Mode in which ``device="cuda"`` is the CPU, and factories create at most ``most`` elements on each axis but the
    last (0: no limit)."""

    def __init__(self, most: Sequence[int] = ()) -> None:
        super().__init__()
        self._most = tuple(most)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Intercept one call of torch."""
        kwargs = {name: _cpu(value) for name, value in (kwargs or {}).items()}
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if self._most and getattr(func, "__name__", "") in ("rand", "randn", "zeros", "ones", "empty", "full"):
            nested = bool(args) and isinstance(args[0], (tuple, list, torch.Size))
            sizes = list(args[0] if nested else [each for each in args if isinstance(each, int)])
            if len(sizes) == len(self._most) + 1:
                sizes[:-1] = map(min, sizes[:-1], self._most)
                args = (sizes, *(args[1:] if nested else args[len(sizes) :]))
        return func(*map(_cpu, args), **kwargs)


def _cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value
