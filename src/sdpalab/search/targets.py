"""What a search is for: a kernel by name, the GPUs, and what identifies a configuration on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256

from sdpalab.compile import Build
from sdpalab.errors import UserError
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.plan import Launch, LaunchPlan
from sdpalab.kernels.registry import KERNELS, load_kernel
from sdpalab.kernels.userfile import absolute_spec

__all__ = ["identity_of", "kernel_of", "spec_of"]


def kernel_of(spec: str) -> Kernel:
    """The kernel that a job's ``spec`` names: of the registry, or in a file.

    Raises
    ------
    UserError
        If there is none, or it is a Python callable, which has no knobs.
    """
    kernel = load_kernel(spec)
    if not isinstance(kernel, Kernel):
        raise UserError(f"{spec} is a Python callable: it has no knobs and no PTX to search, but it can be judged")
    return kernel


def spec_of(kernel: str | Kernel) -> str:
    """How a job names ``kernel``, on any machine: a registry name, or an absolute ``FILE.py[:NAME]``.

    Raises
    ------
    UserError
        If it is an object that no name leads to: jobs carry names, never pickled objects.
    """
    if isinstance(kernel, Kernel):
        if kernel.name in KERNELS and KERNELS[kernel.name] is kernel:
            return kernel.name
        raise UserError(
            f"a search takes a kernel by its name, so that other processes find it: give {kernel.name} as FILE.py:NAME"
        )
    return absolute_spec(kernel)


def identity_of(plan: LaunchPlan, builds: Sequence[Build]) -> str:
    """Sha256 of what runs: each launch's PTX, grid, block, cluster, shared memory and arguments, and matrix products.

    Two configurations with one identity are the same kernel.
    """
    ready = iter(builds)
    parts: list[object] = []
    for step in plan.steps:
        if isinstance(step, Launch):
            build = next(ready)
            launch = build.completed(step)
            place = [launch.grid, launch.block, launch.cluster, launch.dynamic_smem, list(map(str, launch.args))]
            parts.append([build.ptx_sha256, build.entry, *place])
        else:
            parts.append(repr(step))
    return sha256(json.dumps(parts).encode()).hexdigest()
