"""Version of this machine's NVIDIA driver."""

from __future__ import annotations

import re
from pathlib import Path

from sdpalab.errors import MachineError
from sdpalab.run.gpu_driver import gpu_device

__all__ = ["driver_version"]

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def driver_version() -> str:
    """Version of the driver as printed by ``nvidia-smi``, such as ``580.65.06``.

    If the kernel module does not report it (WSL, a container without ``/proc/driver``), it is the newest CUDA that the
    driver supports, such as ``CUDA 13.0``, which is coarser but differs between most drivers.

    Source: CUDA Driver API, "Version Management" (cuDriverGetVersion); NVIDIA Accelerated Linux Graphics Driver README,
    "The /proc Filesystem Interface".

    Raises
    ------
    MachineError
        If there is no driver.
    """
    try:
        text = _KERNEL_MODULE.read_text()
    except OSError:
        text = ""
    match = re.search(r"Kernel Module\b[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    if match is not None:
        return match[1]
    gpu = gpu_device()
    number = int(gpu.check(gpu.driver.cuDriverGetVersion(), "give the driver's version"))
    if number <= 0:
        raise MachineError(f"the NVIDIA driver gives no version: {number}")
    return f"CUDA {number // 1000}.{number % 1000 // 10}"
