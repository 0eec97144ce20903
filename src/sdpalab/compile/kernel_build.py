"""The build of a kernel: a source with the lab's device headers, and launches completed by what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sdpalab.compile.builder import Build
from sdpalab.compile.builder import build as build_source
from sdpalab.compile.cache import Cache
from sdpalab.kernels.plan import INCLUDE_DIR, Launch
from sdpalab.source import DEFAULT_ARCH, Source

__all__ = ["build", "completed"]


def build(
    module: Source, arch: str = DEFAULT_ARCH, *, cache: Cache | None = None, options: Sequence[str] = ()
) -> Build:
    """:func:`sdpalab.compile.builder.build` of a source that may include the lab's device headers."""
    return build_source(module, arch, cache=cache, options=options, include_dirs=(INCLUDE_DIR,))


def completed(launch: Launch, build: Build) -> Launch:
    """``launch`` with the compiler's values: Triton's block, shared memory, and null scratch pointers."""
    if not build.triton:
        return launch
    scratch = (0,) * build.triton["scratch_params"]
    block, smem = (build.triton["threads"], 1, 1), build.triton["dynamic_smem"]
    return replace(launch, block=block, args=(*launch.args, *scratch), dynamic_smem=smem)
