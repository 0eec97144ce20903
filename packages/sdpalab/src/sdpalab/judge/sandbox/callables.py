"""Runs ``fn(q, k, v, *, scale, causal)`` on torch CPU tensors in poisoned memory that the judge chooses.

The function always receives ``scale`` and ``causal`` by the names of its parameters (:mod:`sdpalab.judge.parameters`).
It receives the fields of :data:`sdpalab.scoring.EXTRAS` only for problems that set them: a window as two integers, a
soft cap as a float, all others as tensors (:attr:`sdpalab.problem.Problem.array_shapes`; a boolean mask has dtype
bool). ``enable_gqa`` is True where K and V have fewer heads than Q.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.judge.layouts import Layout, guarded, lay_out
from sdpalab.judge.parameters import arguments, parameter_names
from sdpalab.problem import Problem

if TYPE_CHECKING:
    import torch

__all__ = ["BadOutput", "CallableRunner"]

Array = npt.NDArray[Any]


class BadOutput(Exception):
    """The returned value is not an output of this problem."""


class CallableRunner:
    """The function, and the memory of its last call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        import torch

        torch.set_num_threads(1)
        self._function = function
        self._storage: dict[str, Array] = {}
        self._arrays: dict[str, Array] = {}
        self._tensors: list[torch.Tensor] = []
        self._extra: dict[str, torch.Tensor] = {}
        self._out: torch.Tensor | None = None

    def describe(self) -> dict[str, Any]:
        """Name of the function, and the features that its parameters name."""
        name = getattr(self._function, "__name__", type(self._function).__name__)
        return {"kind": "callable", "name": str(name)[:200], "takes": list(parameter_names(self._function))}

    def run(
        self, problem: Problem, inputs: Mapping[str, Array], poison: int, reuse: bool, layout: Layout
    ) -> tuple[Array, dict[str, Any]]:
        """Call the function once; return an immediate copy of its output, and the observations.

        Parameters
        ----------
        problem, inputs
            The computation.
        poison : int
            Byte that fills all memory that malloc returns to the function.
        reuse : bool
            Put the inputs into the tensors and the layout of the last call; otherwise into separate memory.
        layout : Layout
            Layout of the inputs in that memory.

        Raises
        ------
        BadOutput
            If the result has the wrong type, layout, shape or dtype.
        """
        from sdpalab.judge.tensors import extra_tensor, from_torch, laid_out_tensor

        if reuse:
            for name, array in inputs.items():
                np.copyto(self._arrays[name], array)
        else:  # the old arrays still exist, so the new ones are elsewhere
            laid = {
                name: lay_out(array, layout) if name in ("q", "k", "v") else guarded(array)
                for name, array in inputs.items()
            }
            self._storage = {name: storage for name, (storage, _) in laid.items()}
            self._arrays = {name: view for name, (_, view) in laid.items()}
            self._tensors = [laid_out_tensor(*laid[name], layout) for name in ("q", "k", "v")]
            self._extra = {name: extra_tensor(self._arrays[name]) for name in problem.array_shapes}
        before = {name: _digest(storage) for name, storage in self._storage.items()}
        poisoned = _poison_new_memory(poison)
        try:
            out = self._function(*self._tensors, **arguments(self._function, problem, self._extra))
        finally:
            _poison_new_memory(None)
        self._out = _checked(out, problem, self._tensors[0].dtype)
        copied: Array = from_torch(self._out).copy()
        changed = [name for name, storage in self._storage.items() if _digest(storage) != before[name]]
        return copied, {"changed": changed, "memory_poisoned": poisoned}

    def look_again(self) -> Array:
        """Current content of the last call's output."""
        from sdpalab.judge.tensors import from_torch

        assert self._out is not None, "nothing was run"
        now: Array = from_torch(self._out).copy()
        return now


def _checked(out: Any, problem: Problem, dtype: torch.dtype) -> torch.Tensor:
    import torch

    # A subclass could compute its values on access.
    if type(out) is not torch.Tensor:
        raise BadOutput(f"the candidate returned {type(out).__name__}, not a torch.Tensor")
    if out.device.type != "cpu" or out.layout != torch.strided:
        raise BadOutput(f"the candidate returned a tensor on {out.device} in layout {out.layout}")
    if tuple(out.shape) != problem.o_shape:
        raise BadOutput(f"the output has shape {tuple(out.shape)}, not {problem.o_shape}")
    if out.dtype != dtype:
        raise BadOutput(f"the output has dtype {out.dtype}, not {dtype}")
    return out


def _digest(storage: Array) -> bytes:
    return hashlib.sha256(storage.reshape(-1).view(np.uint8).data).digest()


def _poison_new_memory(fill: int | None) -> bool:
    """Make malloc fill the memory that it returns with a byte (None: no fill). False if the C library cannot."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    # glibc fills with the complement of the low byte, and 0 means off: 0x100 gives the fill 0xFF.
    return bool(mallopt(-6, 0 if fill is None else 0x100 | (fill ^ 0xFF)))  # -6: M_PERTURB
