"""torch on the CPU for programs that need a GPU: ``device="cuda"`` is the CPU, and torch describes one GPU.

Source: PyTorch documentation, ``torch.overrides.TorchFunctionMode`` (intercepts all calls of torch functions) and
``torch.cuda``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from warpsan.gpus import Gpu, device_name
from warpsan.program.properties import device_properties
from warpsan.report.groups import SanitizedHazard

__all__ = ["CpuTensors", "describe_gpu"]


class CpuTensors(TorchFunctionMode):
    """Mode that creates CPU tensors in place of GPU tensors."""

    @property
    def hazards(self) -> list[SanitizedHazard]:
        """Hazards of all launches in this mode."""
        return []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Intercept one call of torch."""
        kwargs = {name: _on_cpu(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*map(_on_cpu, args), **kwargs)

    def in_backward(self) -> None:
        """Activate the mode in backward functions of the program: torch disables a mode while it handles a call, such
        as ``backward``.
        """
        # torch has no public hook here. mypy does not see this name, nor the replacement of modules and classes.
        run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

        def run_with_mode(*args: Any, **kwargs: Any) -> Any:
            with self:
                return run_backward(*args, **kwargs)

        torch.autograd._engine_run_backward = run_with_mode  # type: ignore[attr-defined]


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")) else value


def describe_gpu(gpu: Gpu, arch: str, memory: int) -> None:
    """Make ``torch.cuda`` describe a simulated GPU that holds every tensor and is always ready."""
    facts = device_properties(gpu, arch, memory)
    properties = SimpleNamespace(
        name=device_name(gpu),
        major=facts["major"],
        minor=facts["minor"],
        total_memory=memory,
        multi_processor_count=facts["multiProcessorCount"],
        shared_memory_per_block=facts["sharedMemPerBlock"],
        shared_memory_per_block_optin=facts["sharedMemPerBlockOptin"],
        shared_memory_per_multiprocessor=facts["sharedMemPerMultiprocessor"],
        regs_per_multiprocessor=facts["regsPerMultiprocessor"],
        max_threads_per_multi_processor=facts["maxThreadsPerMultiProcessor"],
        warp_size=facts["warpSize"],
        L2_cache_size=facts["l2CacheSize"],
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": properties.name,
        "get_device_capability": (properties.major, properties.minor),
        "get_device_properties": properties,
        "synchronize": None,
        "set_device": None,
        "empty_cache": None,
        "manual_seed": None,
        "manual_seed_all": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, _constant(answer))
    torch.Tensor.is_cuda = property(lambda tensor: True)  # type: ignore[assignment]
    torch.cuda.device = _OnlyGpu  # type: ignore[assignment,misc]


def _constant(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


class _OnlyGpu:
    """``with torch.cuda.device(...)`` for a single device."""

    def __init__(self, device: Any) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass
