"""Adapters in the candidate's process: a submission, called in the convention of its format."""

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

from sdpalab.formats.sequences import cut, indptr, joined, pages_of
from sdpalab.formats.tasks import TaskProblem, as_dense, close, from_dense, recognised

__all__ = ["ADAPTERS", "Adapter"]

_COMPILED = (".cu", ".cpp", ".cc")


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
        if any("cpp_extension" in text for text in files.values()) or facts["entry"].endswith(_COMPILED):
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


_SMALL = (1, 2, 512)
"""Most batch, heads and sequence of the inputs of a format's own check."""


class KernelBench(Adapter):
    """``ModelNew(*get_init_inputs())(*get_inputs())``, with Q, K and V as the three inputs."""

    names: tuple[str, ...] = ("ModelNew",)

    def converted(self, function: Callable[..., Any], q: Any, k: Any, v: Any, **given: Any) -> Any:
        return self._ordered(function, q, k, v)

    def _solution(self) -> Callable[..., Any]:
        module = self._module(self._facts["entry"])
        name = next((each for each in self.names if hasattr(module, each)), self.names[0])
        with OnCpu():
            model = getattr(module, name)(*self._facts.get("init", ()))
        return model.eval() if isinstance(model, torch.nn.Module) else model

    def _task(self) -> dict[str, Any]:
        module = self._module("reference.py")
        init = list(module.get_init_inputs()) if hasattr(module, "get_init_inputs") else []
        if not all(isinstance(each, (int, float, bool, str)) for each in init):
            return {"refused": "its get_init_inputs returns more than numbers and texts"}
        with OnCpu(_SMALL):
            inputs = list(module.get_inputs())
        model = module.Model(*init).eval()
        numbers = [each for each in (*init, *vars(model).values()) if type(each) is int]
        return {**recognised(model, inputs, numbers), "init": init}

    def _own(self) -> dict[str, Any]:
        module = self._module("reference.py")
        init = list(module.get_init_inputs()) if hasattr(module, "get_init_inputs") else []
        torch.manual_seed(42)
        with OnCpu(_SMALL):
            inputs = list(module.get_inputs())
        torch.manual_seed(42)
        expected = module.Model(*init).eval()(*inputs)
        assert self._entry is not None
        output = self._entry(*inputs)
        tolerance = self._tolerance(expected.dtype)
        return close(output, expected, tolerance, tolerance, f"allclose {tolerance:g}")

    def _tolerance(self, dtype: torch.dtype) -> float:
        return 1e-4 if dtype == torch.float32 else 1e-2


class Pair(KernelBench):
    """``Model`` or ``ModelNew`` of solution.py against ``Model`` of reference.py."""

    names = ("ModelNew", "Model")

    def _tolerance(self, dtype: torch.dtype) -> float:
        path = self._folder / "problem.yaml"
        lines = path.read_text().splitlines() if path.is_file() else []
        stated = [line.partition(":")[2] for line in lines if line.strip().startswith(("tolerance:", "atol:"))]
        return float(stated[0]) if stated else super()._tolerance(dtype)


class GpuMode(Adapter):
    """``custom_kernel(data)``, where data begins with Q, K and V; an output tensor behind them is written in place."""

    def converted(self, function: Callable[..., Any], q: Any, k: Any, v: Any, **given: Any) -> Any:
        more = self._facts.get("inputs", 3) == 4
        return self._ordered(lambda *each: function((*each, *([torch.empty_like(each[0])] if more else []))), q, k, v)

    def _solution(self) -> Callable[..., Any]:
        function: Callable[..., Any] = self._module(self._facts["entry"]).custom_kernel
        return function

    def _data(self) -> tuple[ModuleType, list[Any]]:
        module = self._module("reference.py")
        names = inspect.signature(module.generate_input).parameters
        small = {"batch": 1, "b": 1, "heads": 2, "h": 2, "nheads": 2, "seq": 128, "s": 128, "n": 128, "seq_len": 128}
        sizes = {**small, "seqlen": 128, "dim": 64, "d": 64, "head_dim": 64, "seed": 42, "causal": False}
        unknown = [name for name in names if name.lower() not in sizes]
        if unknown:
            raise ValueError(f"generate_input has the parameter {unknown[0]}, which is no size of attention")
        return module, list(module.generate_input(**{name: sizes[name.lower()] for name in names}))

    def _task(self) -> dict[str, Any]:
        try:
            module, data = self._data()
        except ValueError as error:
            return {"refused": str(error)}
        stated = recognised(lambda *tensors: module.ref_kernel((*tensors, *data[3:])), data[:3])
        return {**stated, "inputs": len(data)}

    def _own(self) -> dict[str, Any]:
        module, data = self._data()
        copies = [each.clone() for each in data]
        assert self._entry is not None
        output = self._entry(tuple(data))
        if hasattr(module, "check_implementation"):
            answer = module.check_implementation(tuple(copies), output)
            wrong = answer if isinstance(answer, str) else "" if answer in (True, None) else str(answer)
            return {"accepts": not wrong, "own": "check_implementation"}
        return close(output, module.ref_kernel(tuple(copies)), 1e-2, 1e-2, "allclose 0.01")


class FlashInferSolution(Adapter):
    """``run(...)`` by the names of a definition: dense, packed or paged sequences; the log-sum-exp is in base 2."""

    def __init__(self, files: Mapping[str, str], facts: Mapping[str, Any], features: Sequence[str]) -> None:
        self._definition = facts["definition"]
        self._inputs, self._outputs = self._definition["inputs"], list(self._definition["outputs"])
        self._given: dict[str, Any] = {}
        super().__init__(files, facts, features)
        self.lse = "lse" in self._outputs

    def converted(self, function: Callable[..., Any], q: Any, k: Any, v: Any, **given: Any) -> Any:
        rows = [int(n) for n in given["q_lengths"]] if "q_lengths" in given else [q.shape[2]] * q.shape[0]
        keys = [int(n) for n in given["kv_lengths"]] if "kv_lengths" in given else [k.shape[2]] * k.shape[0]
        scale = given.get("scale", q.shape[-1] ** -0.5)
        values: dict[str, Any] = {"q": joined(q, rows), "k": joined(k, keys), "v": joined(v, keys), "sm_scale": scale}
        values |= {"qo_indptr": indptr(rows), "kv_indptr": indptr(keys)}
        if "k_cache" in self._inputs:
            size = self._page_size()
            values |= pages_of(k, v, keys, size)
            if len(self._inputs["q"]["shape"]) == 3 and "qo_indptr" not in self._inputs:
                values["q"] = q[:, :, 0]  # one query for each entry of the batch
        self._given = {name: values[name] for name in self._inputs}
        given_values = list(self._given.values())
        if self._facts["in_place"] and function is self._entry:
            outputs = self._empty(values["q"])
            function(*given_values, *outputs)
        else:
            returned = function(*given_values)
            outputs = list(returned) if isinstance(returned, (tuple, list)) else [returned]
            if isinstance(returned, dict):
                outputs = [returned[name] for name in self._outputs]
        self.written = outputs
        decode = values["q"].shape[0] == q.shape[0] and "qo_indptr" not in self._inputs and "k_cache" in self._inputs
        o = outputs[0].unsqueeze(2) if decode else cut(outputs[0], rows, q)
        if not self.lse:
            return o
        lse = outputs[1].float() * 0.6931471805599453  # base 2 in FlashInfer
        lse = lse.unsqueeze(2) if decode else cut(lse.unsqueeze(-1), rows, q[..., :1].float()).squeeze(-1)
        return o, lse.contiguous()

    def _solution(self) -> Callable[..., Any]:
        name = self._facts["function"]
        if self._facts["entry"].endswith(_COMPILED):
            from torch.utils import cpp_extension

            sources = [str(each) for each in sorted(self._folder.rglob("*")) if each.suffix in _COMPILED]
            module = cpp_extension.load(name="solution", sources=sources, extra_include_paths=[str(self._folder)])
        else:
            module = self._module(self._facts["entry"])
        function: Callable[..., Any] = getattr(module, name)
        return function

    def _page_size(self) -> int:
        axes = self._definition.get("axes", {})
        return int(axes.get("page_size", {}).get("value", 1))

    def _empty(self, q: torch.Tensor) -> list[torch.Tensor]:
        outputs = [torch.empty_like(q)]
        return [*outputs, *([torch.empty(q.shape[:2], dtype=torch.float32)] if self.lse else [])]

    def _reference(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {}
        exec(compile(self._definition["reference"], "reference", "exec"), scope)
        function: Callable[..., Any] = scope["run"]
        return function

    def _task(self) -> dict[str, Any]:
        known = {
            "q",
            "k",
            "v",
            "k_cache",
            "v_cache",
            "qo_indptr",
            "kv_indptr",
            "kv_indices",
            "kv_last_page_len",
            "sm_scale",
        }
        if unknown := [name for name in self._inputs if name not in known]:
            return {"refused": f"its input {unknown[0]} is none of attention on dense, packed or paged sequences"}
        problem = TaskProblem.of_definition(self._definition)
        q, k, v, given = problem.sample()
        reference = self._reference()
        return problem.checked(lambda: self.converted(reference, q, k, v, **given), q, k, v, given)

    def _own(self) -> dict[str, Any]:
        problem = TaskProblem.of_definition(self._definition)
        q, k, v, given = problem.sample()
        output = self(q, k, v, **given)
        expected = self.converted(self._reference(), q, k, v, **given)
        pairs = zip(output, expected, strict=True) if self.lse else [(output, expected)]
        least = float(self._facts.get("matched", 1.0))
        shares, errors = [], []
        for out, ref in pairs:
            apart, size = (out.float() - ref.float()).abs(), ref.float().abs()
            wrong = (apart > 1e-2) & (apart > 1e-2 * size)
            shares.append(0.0 if not out.isfinite().all() else 1.0 - float(wrong.float().mean()))
            errors.append((float(apart.max()), float((apart / (size + 1e-8)).max())))
        says = "abs and rel 0.01" + (f", {least:.0%} matched" if least < 1 else "")
        absolute, relative = (max(each) for each in zip(*errors, strict=True))
        return {
            "accepts": min(shares) >= least,
            "own": says,
            "absolute_error": absolute,
            "relative_error": relative,
            "axes": self._axes(),
        }

    def _axes(self) -> dict[str, int]:
        """Sizes of the last call's inputs, by the names of the definition."""
        axes: dict[str, int] = {}
        for name, value in self._given.items():
            for axis, size in zip(self._inputs[name]["shape"] or (), getattr(value, "shape", ()), strict=False):
                axes[axis] = int(size)
        variable = {name for name, axis in self._definition.get("axes", {}).items() if axis.get("type") == "var"}
        return {axis: size for axis, size in axes.items() if not variable or axis in variable}


ADAPTERS: Mapping[str, Callable[..., Adapter]] = {
    "kernelbench": KernelBench,
    "gpumode": GpuMode,
    "pair": Pair,
    "flashinfer": FlashInferSolution,
}
"""The adapter of each format."""
