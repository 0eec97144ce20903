"""NumPy arrays as torch CPU tensors and back, bit for bit, bfloat16 included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

__all__ = ["from_torch", "to_torch"]


def to_torch(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor on the memory of ``array`` (float16 or bfloat16, contiguous): no copy."""
    import torch

    kind = torch.float16 if array.dtype == np.float16 else torch.bfloat16
    return torch.from_numpy(array.view(np.int16)).view(kind)


def from_torch(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The values of a float16 or bfloat16 CPU tensor, of any strides, as a contiguous array."""
    import torch

    bits = tensor.detach().contiguous().view(torch.int16).numpy()
    return bits.view(np.float16 if tensor.dtype == torch.float16 else ml_dtypes.bfloat16)
