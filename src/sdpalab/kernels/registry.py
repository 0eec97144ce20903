"""The kernels that are shipped, in the order in which they are best read, and how one is found by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sdpalab.errors import UserError
from sdpalab.kernels.flash import FLASH
from sdpalab.kernels.kernel import CudaKernel, Kernel
from sdpalab.kernels.scalar import SCALAR
from sdpalab.kernels.userfile import is_user_file, load_user_kernel
from sdpalab.kernels.wmma import WMMA

__all__ = ["KERNELS", "get", "resolve"]

KERNELS: Mapping[str, CudaKernel] = MappingProxyType({kernel.name: kernel for kernel in (SCALAR, WMMA, FLASH)})
"""The ladder, from the baseline up: name to kernel."""


def get(name: str) -> CudaKernel:
    """The shipped kernel of that name.

    Raises
    ------
    UserError
        If there is none; the message has the nearest name and the list.
    """
    if name in KERNELS:
        return KERNELS[name]
    near = difflib.get_close_matches(name.lower(), KERNELS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise UserError(
        f"there is no kernel {name!r}{hint}: the kernels are {', '.join(KERNELS)}, and your own is FILE.py[:NAME]"
    )


def resolve(text: str) -> Kernel | Callable[..., Any]:
    """What a command line names: a shipped kernel, or a user's own as ``FILE.py[:NAME]``, which is imported.

    Raises
    ------
    UserError
        As :func:`get` and :func:`~sdpalab.kernels.userfile.load_user_kernel`.
    """
    return load_user_kernel(text) if is_user_file(text) else get(text)
