"""Adapters in the candidate's process: a submission, called in the convention of its format."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from sdpalab.formats.adapter import Adapter, OnCpu
from sdpalab.formats.flashinfer_adapter import FlashInferSolution
from sdpalab.formats.tasks import close, recognised

__all__ = ["ADAPTERS"]

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


ADAPTERS: Mapping[str, Callable[..., Adapter]] = {
    "kernelbench": KernelBench,
    "gpumode": GpuMode,
    "pair": Pair,
    "flashinfer": FlashInferSolution,
}
"""The adapter of each format."""
