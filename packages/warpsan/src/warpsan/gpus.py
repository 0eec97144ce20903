"""GPUs of the data file ``gpus.json``: peak rates with sources, and default GPUs by architecture.

Kernels that size their grid take the number of SMs from here where no GPU is at hand; the floors and the modelled times
(:mod:`sdpalab.measure`) take the rates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from warpsan.errors import UserError

__all__ = ["GPUS", "Gpu", "default_gpu", "default_sms", "device_name", "gpu_named", "gpu_of_device"]


@dataclass(frozen=True)
class Gpu:
    """Peak rates of one GPU, from ``gpus.json``; None for values without a source.

    Attributes
    ----------
    name, arch : str
        Marketing name, and target architecture.
    sms : int
        Streaming multiprocessors.
    clock_mhz : float
        Clock of the tensor peak, MHz.
    fp16_tflops, fp8_tflops : float
        Dense tensor peak with FP32 accumulation, TFLOPS.
    dram_gb_s : float
        DRAM bandwidth, GB/s (1e9).
    l2_mib : float
        Size of L2, MiB.
    exp_per_clk_sm : int
        Results of ``ex2.approx.f32`` per clock and SM.
    l2_bytes_per_clk_sm : int
        L2 read bandwidth of one SM in bytes per clock (an assumption, see the data file).
    graph_node_us : float
        Time of one kernel node in a replayed CUDA graph, microseconds.
    unverified : tuple of str
        Names of the values above without a second source.
    source : str
        Source of the values.
    """

    name: str
    arch: str
    sms: int
    clock_mhz: float
    fp16_tflops: float
    fp8_tflops: float | None
    dram_gb_s: float
    l2_mib: float
    exp_per_clk_sm: int
    l2_bytes_per_clk_sm: int
    graph_node_us: float | None
    unverified: tuple[str, ...]
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "unverified", tuple(self.unverified))
        if not self.source:
            raise ValueError(f"GPU {self.name}: figures need a source")
        unknown = set(self.unverified) - {field.name for field in fields(self)}
        if unknown:
            raise ValueError(f"GPU {self.name}: there are no figures {', '.join(sorted(unknown))}")


def _load() -> Mapping[str, Gpu]:
    data = json.loads((Path(__file__).parent / "gpus.json").read_text(encoding="utf-8"))
    return {entry["name"]: Gpu(**entry) for entry in data["gpus"]}


GPUS: Mapping[str, Gpu] = _load()
"""GPUs of the data file by name."""

_DEFAULTS = ("A100 SXM", "L4", "H200", "B200")
"""Default GPU of each architecture, in ascending order."""

_DEVICES = {
    "L4": r"\bL4\b",
    "A100 SXM": r"\bA100-SXM4-80GB\b",
    "RTX 4090": r"\bRTX 4090$",
    "H100 SXM": r"\bH100 80GB HBM3\b",
    "H200": r"\bH200$",
    "B200": r"\bB200\b",
}
"""Driver name of each GPU of the data file. Other models (H100 PCIe, L40, 4090 D) have other rates."""


def gpu_named(name: str) -> Gpu:
    """The GPU with a name, or with a unique word of its name (``h100``, ``4090``), case-insensitive.

    Raises
    ------
    UserError
        If the data file has no such GPU.
    """
    named = [gpu for known, gpu in GPUS.items() if name.lower() in (known.lower(), *known.lower().split())]
    if len(named) == 1:
        return named[0]
    raise UserError(f"unknown GPU {name!r}; known are {', '.join(GPUS)}")


def gpu_of_device(name: str) -> Gpu | None:
    """The GPU of the data file with a driver name; None for other names."""
    return next((GPUS[gpu] for gpu, pattern in _DEVICES.items() if re.search(pattern, name)), None)


_DEVICE_NAMES = {
    "L4": "NVIDIA L4",
    "A100 SXM": "NVIDIA A100-SXM4-80GB",
    "RTX 4090": "NVIDIA GeForce RTX 4090",
    "H100 SXM": "NVIDIA H100 80GB HBM3",
    "H200": "NVIDIA H200",
    "B200": "NVIDIA B200",
}


def device_name(gpu: Gpu) -> str:
    """Driver name of the GPU, such as ``NVIDIA H200``: the inverse of :func:`gpu_of_device`."""
    return _DEVICE_NAMES[gpu.name]


def default_gpu(arch: str) -> Gpu:
    """Default GPU for ``arch`` (such as ``sm_89`` or ``sm_90a``) without a physical one.

    A100 for sm_80, L4 for sm_89, H200 for sm_90, B200 for sm_100; for any other architecture the GPU of the nearest
    lower one, and the A100 below sm_80.
    """
    known = [GPUS[name] for name in _DEFAULTS]
    return next((gpu for gpu in reversed(known) if _number(gpu.arch) <= _number(arch)), known[0])


def default_sms(arch: str) -> int:
    """Streaming multiprocessors of :func:`default_gpu`."""
    return default_gpu(arch).sms


def _number(arch: str) -> int:
    """90 for ``sm_90a``; 0 for any other text."""
    return int("".join(filter(str.isdigit, arch)) or 0)
