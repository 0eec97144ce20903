"""The interface of adapters for other implementations of attention, with their supported problems as data."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sdpalab.problem import HALF_DTYPES, Problem
from sdpalab.run import torch_gpu

if TYPE_CHECKING:
    import torch

    from sdpalab.inputs import Inputs

__all__ = ["Envelope", "Peer", "library_missing"]


@dataclass(frozen=True)
class Envelope:
    """Problems that a peer supports, according to its documentation; with the feature ``backward``, both passes.

    Attributes
    ----------
    dtypes : tuple of str
    head_dims : range or tuple of int
    archs : range
        Compute capabilities, major times ten plus minor.
    gqa : bool
        Whether K and V may have fewer heads than Q.
    causal_square_only : bool
        Whether a causal mask requires Sq = Skv: otherwise the peer rejects it, or aligns the mask to the bottom right,
        which is another problem.
    batches : bool
        Whether the batch may be larger than 1.
    features : tuple of str
        Supported features (:data:`sdpalab.problem.FEATURES`) of the adapter.
    """

    dtypes: tuple[str, ...] = HALF_DTYPES
    head_dims: range | tuple[int, ...] = range(1, 257)
    archs: range = range(80, 130)
    gqa: bool = True
    causal_square_only: bool = False
    batches: bool = True
    features: tuple[str, ...] = ()

    def why_not(self, name: str, problem: Problem, arch: int) -> str | None:
        """None if ``problem`` is supported, otherwise the reason in one sentence."""
        if arch not in self.archs:
            return f"{name} needs sm_{self.archs.start} to sm_{self.archs.stop - 1}, and this GPU is sm_{arch}"
        if problem.dtype not in self.dtypes:
            return f"{name} takes {' and '.join(self.dtypes)}, not {problem.dtype}"
        if problem.head_dim not in self.head_dims:
            return f"{name} takes head_dim {_in_words(self.head_dims)}, not {problem.head_dim}"
        if problem.group > 1 and not self.gqa:
            return f"{name} needs as many K/V heads as query heads, not {problem.kv_heads} for {problem.heads}"
        lacking = [each for each in problem.features if each not in self.features]
        if lacking:
            return f"{name} is called without {' and '.join(lacking)} here"
        aligned = "causal mask" if problem.causal else "window" if problem.window_size or problem.alibi_slopes else ""
        if aligned and self.causal_square_only and problem.seq_q != problem.seq_kv:
            return f"{name} has this {aligned} only for equal lengths, not {problem.seq_q} and {problem.seq_kv}"
        if problem.batch > 1 and not self.batches:
            return f"{name} is called for one sequence at a time, not for a batch of {problem.batch}"
        return None


def _in_words(dims: range | tuple[int, ...]) -> str:
    if not isinstance(dims, range):
        return ", ".join(map(str, dims))
    steps = f" in steps of {dims.step}" if dims.step > 1 else ""
    return f"{dims.start} to {dims[-1]}{steps}"


def library_missing(peer: str, module: str, package: str) -> str | None:
    """None if ``module`` loads, otherwise one sentence: ``package`` is missing, or installed and does not load."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            return f"{peer}: the package {package} is not installed"
        return f"{peer}: {package} is installed but lacks {error.name}"
    except Exception as error:  # libraries built for another torch raise various exceptions
        message = " ".join(str(error).split())[:200]
        return f"{peer}: {package} is installed but does not load ({type(error).__name__}: {message})"
    return None


class Peer(ABC):
    """Another implementation of attention, called in its usual way.

    Attributes
    ----------
    name : str
        Name in tables and records.
    module : str
        Module that must be importable.
    package : str
        Package that provides the module.
    envelope : Envelope
    precision : str
        Fastest precision of its products: ``fp16``, or ``fp8`` for any 8-bit type.
    """

    name: str
    module: str
    package: str
    envelope: Envelope
    precision: str = "fp16"

    def why_not_there(self) -> str | None:
        """None if the library is installed and loads, otherwise one sentence."""
        return library_missing(self.name, self.module, self.package)

    def why_not(self, problem: Problem, arch: int) -> str | None:
        """None if ``problem`` is supported on compute capability ``arch`` (90 for 9.0), otherwise one sentence."""
        return self.envelope.why_not(self.name, problem, arch)

    def prepared(
        self, problem: Problem, inputs: Inputs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        """A call on these tensors, a copy of those of ``inputs``; a required mask is created here, untimed."""
        return partial(self.run, q, k, v, scale=problem.scale, causal=problem.causal)

    def prepared_gradients(
        self, problem: Problem, inputs: Inputs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor
    ) -> Callable[[], tuple[torch.Tensor, ...]]:
        """A call of the backward pass alone: dQ, dK and dV by autograd, after a forward pass on the same stream.

        torch runs a backward pass on the stream of its forward pass, so the first call on a stream runs both; a graph
        is captured on a stream with earlier calls (:class:`sdpalab.measure.clocks.GraphClock`).
        """
        import torch

        leaves = [each.detach().requires_grad_() for each in (q, k, v)]
        forward, outs = self.prepared(problem, inputs, *leaves), {}

        def call() -> tuple[torch.Tensor, ...]:
            stream = torch_gpu.stream() if q.is_cuda else 0
            if stream not in outs:
                outs[stream] = forward()
            return torch.autograd.grad(outs[stream], leaves, do, retain_graph=True)

        return call

    def library(self) -> Any:
        """The module; raises the exceptions of its import."""
        return importlib.import_module(self.module)

    def scope(self) -> AbstractContextManager[Any]:
        """A context in which :meth:`run` must be called; entered once around many calls, outside their times."""
        return nullcontext()

    @abstractmethod
    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
        """Attention of ``q`` [B, H, Sq, D] over ``k`` and ``v`` [B, Hkv, Skv, D], contiguous; a tensor like ``q``.

        Libraries with the layout [B, S, H, D] get transposed views: copies that users would not make are not timed.
        """
