"""Targets of a search: a kernel by name, the GPUs, and the identity of a configuration on them."""

from __future__ import annotations

import atexit
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from hashlib import sha256
from pathlib import Path

from sdpalab.compile import Build, completed
from sdpalab.errors import UserError
from sdpalab.jobs.judging import source_of
from sdpalab.judge.sandbox.sandboxed import SandboxedKernel, kernel_in_sandbox
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.plan import Launch, LaunchPlan
from sdpalab.kernels.registry import is_shipped
from sdpalab.kernels.userfile import absolute_spec

__all__ = ["KernelHolder", "identity_of", "searched_kernel", "spec_of"]


def searched_kernel(spec: str, include_dirs: Sequence[Path] = ()) -> AbstractContextManager[Kernel]:
    """The kernel named by ``spec``: of the registry, or in a file, whose Python runs in a guarded process.

    Raises
    ------
    UserError
        For an unknown name, or a Python callable, which has no knobs.
    """
    return kernel_in_sandbox(spec, else_say="it has no knobs and no PTX to search", include_dirs=include_dirs)


class KernelHolder:
    """Cache of the kernel of this process's jobs; a user's kernel stays in its process between jobs."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._kernel: Kernel | None = None
        self._process = ExitStack()
        atexit.register(self.close)

    def get(self, spec: str, include_dirs: Sequence[Path] = ()) -> Kernel:
        """The kernel of :func:`searched_kernel`; reloaded after a change of its source or the end of its process."""
        key = (spec, tuple(include_dirs), source_of(spec))
        broken = isinstance(self._kernel, SandboxedKernel) and not self._kernel.usable
        if self._kernel is None or broken or key != self._key:
            self.close()
            self._kernel, self._key = self._process.enter_context(searched_kernel(spec, include_dirs)), key
        return self._kernel

    def close(self) -> None:
        """End the kernel's process."""
        self._kernel = None
        self._process.close()


def spec_of(kernel: str | Kernel) -> str:
    """Name of ``kernel`` in jobs, for any machine: a registry name, or an absolute ``FILE.py[:NAME]``.

    Raises
    ------
    UserError
        For an object without a name: jobs carry names, never pickled objects.
    """
    if isinstance(kernel, Kernel):
        if is_shipped(kernel):
            return kernel.name
        raise UserError(
            f"a search takes a kernel by its name, so that other processes find it: give {kernel.name} as FILE.py:NAME"
        )
    return absolute_spec(kernel)


def identity_of(plan: LaunchPlan, builds: Sequence[Build]) -> str:
    """Sha256 of the executed code: PTX, grid, block, cluster, shared memory and arguments of launches, and matrix
    products.

    Configurations with equal identities are the same kernel.
    """
    ready = iter(builds)
    parts: list[object] = []
    for step in plan.steps:
        if isinstance(step, Launch):
            build = next(ready)
            launch = completed(step, build)
            place = [launch.grid, launch.block, launch.cluster, launch.dynamic_smem, list(map(str, launch.args))]
            parts.append([build.ptx_sha256, build.entry, *place, *(["programmatic"] if launch.programmatic else [])])
        else:
            parts.append(repr(step))
    return sha256(json.dumps(parts).encode()).hexdigest()
