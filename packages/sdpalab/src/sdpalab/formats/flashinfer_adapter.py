"""Adapter of the solutions of flashinfer-bench and SOL-ExecBench."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sdpalab.formats.adapter import COMPILED, Adapter
from sdpalab.formats.sequences import cut, indptr, joined, pages_of
from sdpalab.formats.tasks import TaskProblem

__all__ = ["FlashInferSolution"]


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
        if self._facts["entry"].endswith(COMPILED):
            from torch.utils import cpp_extension

            sources = [str(each) for each in sorted(self._folder.rglob("*")) if each.suffix in COMPILED]
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
