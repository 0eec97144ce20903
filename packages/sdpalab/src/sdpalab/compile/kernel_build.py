"""Completion of launches with values from their builds, and the lab's device headers for every source."""

from __future__ import annotations

from dataclasses import replace

from sdpalab.kernels.plan import INCLUDE_DIR, Launch
from warpsan.build import Build, share_headers

__all__ = ["completed"]

share_headers(INCLUDE_DIR)


def completed(launch: Launch, build: Build) -> Launch:
    """``launch`` with the compiler's values: Triton's block, shared memory, and null scratch pointers."""
    if not build.triton:
        return launch
    scratch = (0,) * build.triton["scratch_params"]
    block, smem = (build.triton["threads"], 1, 1), build.triton["dynamic_smem"]
    return replace(launch, block=block, args=(*launch.args, *scratch), dynamic_smem=smem)
