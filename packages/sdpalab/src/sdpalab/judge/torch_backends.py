"""The output of each backend of torch's scaled_dot_product_attention on the same inputs, for comparison.

The reference is float64 (:mod:`sdpalab.inputs.reference`), not a backend, so a change of torch never appears as a
change of a kernel. The backend ``None`` is torch's own choice, which a user of ``scaled_dot_product_attention`` gets;
this choice may change between torch versions even if no backend changes.

Works with every torch from 2.0 on, including versions that the lab itself does not accept, for comparisons of versions.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError
from sdpalab.inputs import may_see_none, score_bias, visible_keys, with_padding
from sdpalab.inputs.reference import Rows
from sdpalab.judge.tensors import from_torch, to_torch, to_torch_mask

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = [
    "BACKENDS",
    "BEYOND_TORCH",
    "Backend",
    "BackendUnavailable",
    "backend_device",
    "backend_output",
    "joined_mask",
    "sdpa_backend",
]

Array = npt.NDArray[Any]


class Backend(str, Enum):
    """A backend of torch's scaled_dot_product_attention; the value is its name in tables and records."""

    MATH = "math"
    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"


BACKENDS: dict[str, tuple[Backend, ...]] = {"cpu": (Backend.MATH, Backend.FLASH), "cuda": tuple(Backend)}
"""Backends of a device. A given torch build need not have all of them."""

_IN_TORCH = {
    Backend.MATH: "MATH",
    Backend.FLASH: "FLASH_ATTENTION",
    Backend.EFFICIENT: "EFFICIENT_ATTENTION",
    Backend.CUDNN: "CUDNN_ATTENTION",
}


BEYOND_TORCH = ("softcap", "alibi_slopes", "sinks")
"""Features that no backend supports. (ALiBi would be a mask, whose type rounds it.)"""

_CHOICE = threading.Lock()
"""Lock of torch's backend setting, which applies to the whole process."""


class BackendUnavailable(MachineError):
    """This torch has no such backend on this device, or the backend does not support these inputs."""


def backend_device() -> str:
    """``cuda`` where torch finds a GPU, otherwise ``cpu``."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def backend_output(
    q: Array,
    k: Array,
    v: Array,
    *,
    backend: Backend | None,
    device: str = "cpu",
    rows: Rows = None,
    **scoring: Unpack[Scoring],
) -> Array:
    """torch's attention by one backend, in the inputs' own dtype.

    Parameters
    ----------
    q : ndarray of float16 or bfloat16, [B, H, Sq, D]
    k, v : ndarray of the same dtype, [B, Hkv, Skv, D] and [B, Hkv, Skv, Dv]
        Hkv divides H; each head is repeated for its group, because some backends of some torch versions do not. Padding
        is passed to torch as zeros, because a backend multiplies it by weights of 0.
    backend : Backend, optional
        Default: torch's own choice.
    device : {"cpu", "cuda"}
    rows : ndarray of int, optional
        Query rows to compute, the same in every head; with ``causal`` their mask is passed to torch. Default: all.
    **scoring
        As in :meth:`sdpalab.inputs.Inputs.scoring`; a window and lengths are passed to torch as a mask, combined with
        the problem's own.

    Returns
    -------
    ndarray of the dtype of ``q``, [B, H, Sq, Dv], or of the chosen rows only

    Raises
    ------
    BackendUnavailable
        If this torch has no such backend on the device, it fails on these inputs (with torch's message), or the problem
        has one of :data:`BEYOND_TORCH`.
    """
    import torch

    for name in BEYOND_TORCH:
        if name in scoring:
            raise BackendUnavailable(f"torch {torch.__version__} has no attention with {name}")
    group, scale, causal = q.shape[1] // k.shape[1], scoring["scale"], scoring["causal"]
    mask = None
    if may_see_none(scoring) or (causal and rows is not None):
        wanted = np.arange(q.shape[2]) if rows is None else rows
        mask = to_torch_mask(joined_mask(q, k, wanted, scoring)).to(device)
        causal = False
    k, v = (with_padding(array, scoring.get("kv_lengths"), 0.0) for array in (k, v))
    q = with_padding(q, scoring.get("q_lengths"), 0.0)
    if rows is not None:
        q = np.ascontiguousarray(q[:, :, rows])
    # torch scales after it masks, and -inf times a negative number or 0 is no mask: Q is rescaled instead.
    if scale <= 0.0:
        q, scale = (-q, -scale) if scale else (0 * q, 1.0)
    try:
        query = to_torch(q).to(device)
        key, value = (to_torch(array).to(device).repeat_interleave(group, dim=1) for array in (k, v))
        with torch.no_grad(), sdpa_backend(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=causal, scale=scale
            )
        return from_torch(out.cpu())
    except (RuntimeError, AssertionError) as error:  # the latter from a build without CUDA
        named = "own choice of" if backend is None else backend.value
        message = (str(error) or type(error).__name__).splitlines()[0]
        raise BackendUnavailable(f"torch {torch.__version__} has no {named} attention on {device}: {message}") from None


def joined_mask(q: Array, k: Array, rows: npt.NDArray[np.intp], scoring: Scoring) -> Array:
    """All masks of the rows combined, [1 or B, 1 or H, rows, Skv]: boolean, or in the dtype of an additive mask."""
    shape = scoring["attn_mask"].shape[:2] if "attn_mask" in scoring else (1, 1)
    by_entry = "kv_lengths" in scoring or "q_lengths" in scoring
    shape = (q.shape[0] if by_entry else shape[0], shape[1])
    parts = []
    for head in np.ndindex(*shape):
        visible = visible_keys(rows, k.shape[2], head=head, **scoring)
        bias = score_bias(rows, k.shape[2], head=head, **scoring)
        parts.append(visible if bias is None else np.where(visible, bias, -np.inf).astype(q.dtype))
    return np.stack(parts).reshape(*shape, len(rows), k.shape[2])


@contextmanager
def sdpa_backend(backend: Backend | None) -> Iterator[None]:
    """Restrict torch to one backend of its scaled_dot_product_attention, or leave it its own choice.

    Raises
    ------
    RuntimeError
        If this torch does not have it.
    """
    with _CHOICE, warnings.catch_warnings(), _only(backend):
        warnings.simplefilter("ignore")  # torch warns with its reasons, then raises
        yield


def _only(backend: Backend | None) -> AbstractContextManager[Any]:
    if backend is None:
        return nullcontext()
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:  # before torch 2.3
        from torch.backends.cuda import sdp_kernel

        if backend is Backend.CUDNN:
            raise RuntimeError("it is older than that backend") from None
        old: AbstractContextManager[Any] = sdp_kernel(
            enable_math=backend is Backend.MATH,
            enable_flash=backend is Backend.FLASH,
            enable_mem_efficient=backend is Backend.EFFICIENT,
        )
        return old
    if not hasattr(SDPBackend, _IN_TORCH[backend]):
        raise RuntimeError("it is older than that backend")
    only: AbstractContextManager[Any] = sdpa_kernel(getattr(SDPBackend, _IN_TORCH[backend]))
    return only
