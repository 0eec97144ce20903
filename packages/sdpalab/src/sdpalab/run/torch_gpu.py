"""All queries to torch about a GPU: devices, the device of a tensor, streams, graph capture.

Call the functions through the module (``torch_gpu.stream()``): the tests replace them where a GPU is emulated, and
torch has no part in that. Timing has its own calls (:mod:`sdpalab.measure.clocks`); so have torch's own backends, which
are witnesses (:mod:`sdpalab.judge.witness`).

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
        Such as ``NVIDIA H200``.
    capability : (int, int)
        Compute capability, such as (9, 0).
    sm_count : int
        Streaming multiprocessors.
    l2_bytes : int
        Size of its L2 cache.
    uuid : str
        As NVML writes it, with ``GPU-`` before it.
    """

    ordinal: int
    name: str
    capability: tuple[int, int]
    sm_count: int
    l2_bytes: int
    uuid: str


def available() -> bool:
    """Whether torch has CUDA, and a GPU to use it on."""
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
    """The number of the GPU whose memory holds the tensor; None if it lies elsewhere."""
    return tensor.device.index if tensor.device.type == "cuda" else None


def address(tensor: torch.Tensor) -> int:
    """Where the tensor's first element lies in its GPU's memory."""
    return int(tensor.data_ptr())


def stream(ordinal: int | None = None) -> int:
    """The handle of this thread's current stream on GPU ``ordinal``, by default the current one."""
    import torch

    return int(torch.cuda.current_stream(ordinal).cuda_stream)


def capturing() -> bool:
    """Whether this thread's current stream is being captured into a CUDA graph."""
    import torch

    return bool(torch.cuda.is_current_stream_capturing())


def synchronize(ordinal: int | None = None) -> None:
    """Wait for all work on GPU ``ordinal``, by default the current one."""
    import torch

    torch.cuda.synchronize(ordinal)
