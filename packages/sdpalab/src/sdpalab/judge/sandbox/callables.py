"""Runs ``fn(q, k, v, *, scale, causal)`` on torch CPU tensors in poisoned memory that the judge chooses.

A function with the attribute ``lse`` returns O and the natural logarithm of each row's sum, float32 [B, H, Sq].

The function always receives ``scale`` and ``causal`` by the names of its parameters (:mod:`sdpalab.judge.parameters`).
It receives the fields of :data:`sdpalab.scoring.FEATURES` only for problems that set them: a window as two integers, a
soft cap as a float, all others as tensors (:attr:`sdpalab.packing.Packing.inputs`; a boolean mask has dtype
bool). ``enable_gqa`` is True where K and V have fewer heads than Q.

The gradients of a backward problem are those of torch's autograd, ``torch.autograd.grad(fn(q, k, v, ...), (q, k, v),
do)``; or ``dq, dk, dv = fn(q, k, v, do=..., ...)`` of a function with a parameter for dO, which also receives O and the
log-sum-exp if it has parameters for them.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.judge.parameters import arguments, needed_features, parameter_names
from sdpalab.judge.strides import Strides, guarded, lay_out
from sdpalab.packing import Packing
from sdpalab.problem import Problem

if TYPE_CHECKING:
    import torch

    from sdpalab.judge.sandbox.kernel_calls import KernelCalls

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
        self._lse = bool(getattr(function, "lse", False))
        self._kernels = _kernel_calls()
        self._storage: dict[str, Array] = {}
        self._arrays: dict[str, Array] = {}
        self._tensors: list[torch.Tensor] = []
        self._extra: dict[str, torch.Tensor] = {}
        self._outputs: dict[str, torch.Tensor] = {}

    def describe(self) -> dict[str, Any]:
        """Name of the function, and the features that its parameters name."""
        name = getattr(self._function, "__name__", type(self._function).__name__)
        features = getattr(self._function, "claims", None) or list(parameter_names(self._function))
        needs = needed_features(self._function)
        return {"kind": "callable", "name": str(name)[:200], "features": features, "needs": needs, "lse": self._lse}

    def facts(self) -> dict[str, Any]:
        """Facts that a submission in a public format states (:mod:`sdpalab.formats`)."""
        with self._kernels.gpu() if self._kernels else nullcontext():
            stated: dict[str, Any] = self._function.facts()  # type: ignore[attr-defined]
        return stated

    def run(
        self, problem: Problem, inputs: Mapping[str, Array], poison: int, reuse: bool, strides: Strides
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Call the function once; return immediate copies of its outputs by name, and the observations.

        Parameters
        ----------
        problem, inputs
            The computation.
        poison : int
            Byte that fills all memory that malloc returns to the function.
        reuse : bool
            Put the inputs into the tensors and the strides of the last call; otherwise into separate memory.
        strides : Strides
            Strides of the inputs in that memory.

        Raises
        ------
        BadOutput
            If the result has the wrong type, layout, shape or dtype.
        """
        import torch

        from sdpalab.judge.tensors import extra_tensor, from_torch, laid_out_tensor

        if reuse:
            for name, array in inputs.items():
                np.copyto(self._arrays[name], array)
        else:  # the old arrays still exist, so the new ones are elsewhere
            own = self._strides(strides) if problem.layout_form.dense else {}
            laid = {
                name: lay_out(array, own[name]) if name in own else guarded(array) for name, array in inputs.items()
            }
            self._storage = {name: storage for name, (storage, _) in laid.items()}
            self._arrays = {name: view for name, (_, view) in laid.items()}
            self._tensors = [laid_out_tensor(*laid[name], own.get(name)) for name in ("q", "k", "v")]
            self._extra = {name: extra_tensor(self._arrays[name]) for name in inputs if name not in ("q", "k", "v")}
            if "do" in own and problem.backward:
                self._extra["do"] = laid_out_tensor(*laid["do"], own["do"])
        appended = problem.seq_q if strides is Strides.APPENDED else 0
        before = {name: _digest(storage) for name, storage in self._storage.items()}
        poisoned = _poison_new_memory(poison)
        observing = self._kernels.observing([*self._tensors, *self._extra.values()]) if self._kernels else nullcontext()
        try:
            with observing:
                outputs = self._call(problem, appended)
        finally:
            _poison_new_memory(None)
        shapes = {name: shape for name, (shape, _) in Packing(problem).outputs.items() if name != "lse"}
        outputs, lse = outputs[0] if self._lse and isinstance(outputs[0], tuple) else (outputs, None)
        self._outputs = _checked(outputs if lse is None else (outputs,), shapes, self._tensors[0].dtype)
        if lse is not None:
            self._outputs |= _checked((lse,), {"lse": tuple(self._outputs["o"].shape[:3])}, torch.float32)
        copied = {name: from_torch(tensor).copy() for name, tensor in self._outputs.items()}
        changed = [name for name, storage in self._storage.items() if _digest(storage) != before[name]]
        notes = {"changed": changed, "memory_poisoned": poisoned}
        return copied, {**notes, **self._stated()}

    def _stated(self) -> dict[str, Any]:
        """Origin of the outputs, and executed code; empty without kernels."""
        kernels = self._kernels
        outputs = getattr(self._function, "written", None) or self._outputs.values()
        return {"provenance": kernels.stated(outputs), "code": kernels.code()} if kernels else {}

    def _strides(self, strides: Strides) -> dict[str, Strides]:
        """Strides of the dense arrays by name, for a function that expects [B, H, S, D] or [B, S, H, D] in memory."""
        heads_last = getattr(self._function, "heads_last", False)
        natural, turned = (Strides.BSHD, Strides.CONTIGUOUS) if heads_last else (Strides.CONTIGUOUS, Strides.BSHD)
        own = {Strides.CONTIGUOUS: natural, Strides.APPENDED: natural, Strides.BSHD: turned}.get(strides, strides)
        queries = own if own.shared_axis is None else natural
        return {"q": queries, "k": own, "v": own, "do": queries}

    def _call(self, problem: Problem, appended: int) -> tuple[Any, ...]:
        """The outputs of the function, or their gradients, in the order of :attr:`Problem.outputs`."""
        import torch

        given = arguments(self._function, problem, self._extra) | ({"append": appended} if appended else {})
        if not problem.backward:
            return (self._function(*self._tensors, **given),)
        if "do" in parameter_names(self._function):
            results = self._function(*self._tensors, **given)
            if not isinstance(results, (tuple, list)):
                raise BadOutput(f"the candidate returned {type(results).__name__}, not dQ, dK and dV")
            return tuple(results)
        leaves = [tensor.detach().requires_grad_() for tensor in self._tensors]
        out = self._function(*leaves, **given)
        _checked((out,), {"o": tuple(self._extra["do"].shape)}, self._tensors[0].dtype)
        if not out.requires_grad:
            raise BadOutput("the output of the candidate has no gradient: autograd cannot differentiate it")
        gradients = torch.autograd.grad(out, leaves, self._extra["do"], allow_unused=True)
        if missing := [name for name, each in zip("qkv", gradients, strict=True) if each is None]:
            raise BadOutput(f"autograd finds no gradient of {' and '.join(missing)}")
        return gradients

    def look_again(self) -> dict[str, Array]:
        """Current content of the last call's outputs."""
        from sdpalab.judge.tensors import from_torch

        assert self._outputs, "nothing was run"
        return {name: from_torch(tensor).copy() for name, tensor in self._outputs.items()}


def _kernel_calls() -> KernelCalls | None:
    """The simulator as this process's GPU, if Triton or extensions of torch are loaded."""
    if "triton" not in sys.modules and "warpsan.program.extension" not in sys.modules:
        return None
    from sdpalab.judge.sandbox.kernel_calls import kernel_calls

    return kernel_calls()


def _checked(
    outputs: Sequence[Any], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The outputs by name.

    Raises
    ------
    BadOutput
        If one is no plain CPU tensor of its shape and of ``dtype``, or their number is wrong.
    """
    import torch

    if len(outputs) != len(shapes):
        raise BadOutput(f"the candidate returned {len(outputs)} tensors, not {', '.join(shapes)}")
    for out, (name, shape) in zip(outputs, shapes.items(), strict=True):
        called = "the output" if name == "o" else name
        # A subclass could compute its values on access.
        if type(out) is not torch.Tensor:
            raise BadOutput(f"the candidate returned {type(out).__name__}, not a torch.Tensor")
        if out.device.type != "cpu" or out.layout != torch.strided:
            raise BadOutput(f"the candidate returned a tensor on {out.device} in layout {out.layout}")
        if tuple(out.shape) != shape:
            raise BadOutput(f"{called} has shape {tuple(out.shape)}, not {shape}")
        if out.dtype != dtype:
            raise BadOutput(f"{called} has dtype {out.dtype}, not {dtype}")
    return dict(zip(shapes, outputs, strict=True))


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
