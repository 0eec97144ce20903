"""All queries to torch about a GPU: devices, the device of a tensor, streams, graph capture.

Call the functions through the module (``torch_gpu.stream()``): the tests replace them where a GPU is emulated without
torch. Timing (:mod:`sdpalab.measure.clocks`) and the torch backends (:mod:`sdpalab.judge.torch_backends`) make
their own calls.

Source: PyTorch documentation, ``torch.cuda``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = [
    "GpuProperties",
    "address",
    "available",
    "capturing",
    "current_ordinal",
    "device",
    "ordinal_of",
    "properties",
    "stream",
    "synchronize",
]


@dataclass(frozen=True)
class GpuProperties:
    """A GPU as torch describes it.

    Attributes
    ----------
    ordinal : int
    name : str
        Name, such as ``NVIDIA H200``.
    capability : (int, int)
        Compute capability, such as (9, 0).
    sm_count : int
        Streaming multiprocessors.
    l2_bytes : int
        Size of its L2 cache.
    uuid : str
        UUID in NVML's form, with the prefix ``GPU-``.
    """

    ordinal: int
    name: str
    capability: tuple[int, int]
    sm_count: int
    l2_bytes: int
    uuid: str


def available() -> bool:
    """Whether torch has CUDA and a usable GPU."""
    import torch

    return torch.cuda.is_available()


def current_ordinal() -> int:
    """The number of this thread's current GPU, in torch's order."""
    import torch

    return int(torch.cuda.current_device())


def device(ordinal: int) -> torch.device:
    """torch's device of GPU ``ordinal``."""
    import torch

    return torch.device("cuda", ordinal)


def properties(ordinal: int) -> GpuProperties:
    """torch's properties of GPU ``ordinal``."""
    import torch

    about = torch.cuda.get_device_properties(ordinal)
    return GpuProperties(
        ordinal=ordinal,
        name=str(about.name),
        capability=(int(about.major), int(about.minor)),
        sm_count=int(about.multi_processor_count),
        l2_bytes=int(about.L2_cache_size),
        uuid=f"GPU-{about.uuid}",
    )


def ordinal_of(tensor: torch.Tensor) -> int | None:
    """Number of the GPU whose memory contains the tensor; None for other memory."""
    return tensor.device.index if tensor.device.type == "cuda" else None


def address(tensor: torch.Tensor) -> int:
    """Device address of the tensor's first element."""
    return int(tensor.data_ptr())


def stream(ordinal: int | None = None) -> int:
    """Handle of this thread's current stream on GPU ``ordinal``, by default the current GPU."""
    import torch

    return int(torch.cuda.current_stream(ordinal).cuda_stream)


def capturing() -> bool:
    """Whether this thread's current stream is being captured into a CUDA graph."""
    import torch

    return bool(torch.cuda.is_current_stream_capturing())


def synchronize(ordinal: int | None = None) -> None:
    """Wait for all work on GPU ``ordinal``, by default the current GPU."""
    import torch

    torch.cuda.synchronize(ordinal)
