"""NumPy arrays as torch CPU tensors and back, bit for bit, bfloat16 included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.judge.strides import Strides

if TYPE_CHECKING:
    import torch


__all__ = [
    "buffer_tensors",
    "extra_tensor",
    "from_torch",
    "laid_out_tensor",
    "to_torch",
    "to_torch_mask",
]


def to_torch(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor on the memory of ``array`` (float16, bfloat16 or float32, contiguous), without a copy."""
    import torch

    if array.dtype == np.float32:
        return torch.from_numpy(array)
    kind = torch.float16 if array.dtype == np.float16 else torch.bfloat16
    return torch.from_numpy(array.view(np.int16)).view(kind)


def to_torch_mask(mask: npt.NDArray[Any]) -> torch.Tensor:
    """A mask as a tensor: a boolean mask unchanged, an additive one as in :func:`to_torch`."""
    import torch

    return torch.from_numpy(mask) if mask.dtype == np.bool_ else to_torch(mask)


def extra_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """An array of :attr:`sdpalab.problem.Problem.array_shapes` as a tensor on its memory: bytes are a boolean mask."""
    import torch

    if array.dtype == np.uint8:
        return torch.from_numpy(array).view(torch.bool)
    return torch.from_numpy(array) if array.dtype in (np.float32, np.int32) else to_torch(array)


def buffer_tensors(buffers: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
    """The input buffers of a plan as tensors on their memory: a boolean mask is bytes."""
    import torch

    tensors = {name: extra_tensor(array) for name, array in buffers.items()}
    return {name: each.view(torch.uint8) if each.dtype == torch.bool else each for name, each in tensors.items()}


def laid_out_tensor(storage: npt.NDArray[Any], view: npt.NDArray[Any], strides: Strides | None) -> torch.Tensor:
    """A tensor that shows ``view``, a part of ``storage``. None: contiguous."""
    if strides in (Strides.CONTIGUOUS, None):
        return to_torch(view)
    if strides is Strides.BSHD:
        return to_torch(view.swapaxes(1, 2)).transpose(1, 2)
    start = view.__array_interface__["data"][0] - storage.__array_interface__["data"][0]
    steps = [stride // storage.itemsize for stride in view.strides]
    if strides is Strides.PADDED:
        return to_torch(storage).as_strided(view.shape, steps, start // storage.itemsize)
    return to_torch(storage.reshape(-1)[start // storage.itemsize :]).as_strided(view.shape, steps)


def from_torch(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The values of a float16, bfloat16 or float32 CPU tensor, of any strides, as a contiguous array."""
    import torch

    if tensor.dtype == torch.float32:
        return tensor.detach().contiguous().numpy()
    bits = tensor.detach().contiguous().view(torch.int16).numpy()
    return bits.view(np.float16 if tensor.dtype == torch.float16 else ml_dtypes.bfloat16)
