"""The shipped kernels, in reading order, and their look-up by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from sdpalab.errors import UserError
from sdpalab.kernels.blackwell import BLACKWELL
from sdpalab.kernels.cp_async import CP_ASYNC
from sdpalab.kernels.cublas import CUBLAS
from sdpalab.kernels.flash import FLASH
from sdpalab.kernels.flash_backward import FLASH_BACKWARD
from sdpalab.kernels.flash_backward_two_pass import FLASH_BACKWARD_TWO_PASS
from sdpalab.kernels.flash_decode import FLASH_DECODE, FLASH_DECODE_E4M3
from sdpalab.kernels.flash_varlen import FLASH_VARLEN
from sdpalab.kernels.fp8 import FP8
from sdpalab.kernels.fp8_simulated import FP8_SIMULATED
from sdpalab.kernels.hopper import HOPPER
from sdpalab.kernels.hopper_backward import HOPPER_BACKWARD
from sdpalab.kernels.hopper_fp8 import HOPPER_FP8
from sdpalab.kernels.kernel import CudaKernel, Kernel
from sdpalab.kernels.scalar import SCALAR
from sdpalab.kernels.userfile import is_user_file, load_user_kernel
from sdpalab.kernels.warp_specialized import WARP_SPECIALIZED
from sdpalab.kernels.wmma import WMMA

__all__ = [
    "CUDA_KERNELS",
    "GRADIENT_KERNELS",
    "KERNELS",
    "SEQUENCE_KERNELS",
    "SHIPPED",
    "get",
    "is_shipped",
    "load_kernel",
    "needs",
]

CUDA_KERNELS: Mapping[str, CudaKernel] = MappingProxyType(
    {
        kernel.name: kernel
        for kernel in (
            SCALAR,
            CUBLAS,
            WMMA,
            CP_ASYNC,
            WARP_SPECIALIZED,
            FLASH,
            FP8_SIMULATED,
            FP8,
            HOPPER,
            HOPPER_FP8,
            BLACKWELL,
        )
    }
)
"""The kernels in CUDA C++, from the baseline up: name to kernel."""

GRADIENT_KERNELS: Mapping[str, CudaKernel] = MappingProxyType(
    {kernel.name: kernel for kernel in (FLASH_BACKWARD_TWO_PASS, FLASH_BACKWARD, HOPPER_BACKWARD)}
)
"""The kernels of the backward pass, in CUDA C++, from the simplest up: name to kernel. They take other problems than
the ladder's, so the campaigns over the ladder leave them out."""

SEQUENCE_KERNELS: Mapping[str, CudaKernel] = MappingProxyType(
    {kernel.name: kernel for kernel in (FLASH_VARLEN, FLASH_DECODE, FLASH_DECODE_E4M3)}
)
"""The kernels for packed sequences and for pages of a cache, in CUDA C++: name to kernel. They take other problems than
the ladder's, too."""

_TRITON_KERNELS = {"triton_flash": "TRITON_FLASH"}
"""Kernels in Triton, an optional extra that is slow to import: kernel name to module and name in the module."""


class _Ladder(Mapping[str, Kernel]):
    """Mapping with cheap keys: a Triton kernel is imported on first use, which raises UserError without Triton."""

    def __getitem__(self, name: str) -> Kernel:
        if name not in _TRITON_KERNELS:
            return CUDA_KERNELS[name]
        try:
            module = import_module(f"sdpalab.kernels.{name}")
        except ImportError as error:
            raise UserError(f"kernel {name} needs Triton: pip install 'sdpalab[triton]' ({error})") from None
        kernel: Kernel = getattr(module, _TRITON_KERNELS[name])
        return kernel

    def __iter__(self) -> Iterator[str]:
        yield from CUDA_KERNELS
        yield from _TRITON_KERNELS

    def __len__(self) -> int:
        return len(CUDA_KERNELS) + len(_TRITON_KERNELS)

    def __contains__(self, name: object) -> bool:
        return name in CUDA_KERNELS or name in _TRITON_KERNELS  # Mapping's own method would import it


KERNELS: Mapping[str, Kernel] = _Ladder()
"""The ladder from the baseline up, followed by the kernels in Triton: name to kernel."""

_OTHERS = {**SEQUENCE_KERNELS, **GRADIENT_KERNELS}
SHIPPED = (*KERNELS, *_OTHERS)
"""Names of all shipped kernels."""


def get(name: str) -> Kernel:
    """The shipped kernel of that name.

    Raises
    ------
    UserError
        If there is none (the message has the nearest name and the list), or a required package is not installed.
    """
    if name in SHIPPED:
        return _OTHERS[name] if name in _OTHERS else KERNELS[name]
    if name.endswith((".cu", ".cuh")):
        raise UserError(
            f"{name} is source without a launch: a CudaKernel in a Python file names the source, entry, grid, block "
            "and arguments; 'sdpalab new cuda NAME' writes such a pair to start from, and the lab then takes NAME.py"
        )
    near = difflib.get_close_matches(name.lower(), SHIPPED, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise UserError(
        f"there is no kernel {name!r}{hint}: the kernels are {', '.join(SHIPPED)}, and your own is FILE.py[:NAME]"
    )


def needs(name: str) -> str | None:
    """None if the shipped kernel of that name is available here, otherwise one sentence with the missing package."""
    try:
        get(name)
    except UserError as error:
        return str(error)
    return None


def is_shipped(kernel: object) -> bool:
    """Whether the object is the shipped kernel of its name."""
    return isinstance(kernel, Kernel) and kernel.name in SHIPPED and get(kernel.name) is kernel


def load_kernel(text: str) -> Kernel | Callable[..., Any]:
    """The kernel that a command line names: a shipped one, or a user's ``FILE.py[:NAME]``, which is imported.

    Raises
    ------
    UserError
        As :func:`get` and :func:`~sdpalab.kernels.userfile.load_user_kernel`.
    """
    return load_user_kernel(text) if is_user_file(text) else get(text)
