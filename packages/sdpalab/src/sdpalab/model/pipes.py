"""Rates and latencies of the units of an SM: figures of ``pipes.json`` with their sources, for one GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from sdpalab.errors import UserError
from warpsan.gpus import Gpu

__all__ = ["SUB_CORES", "Pipes", "pipes_of"]

SUB_CORES = 4
"""Sub-cores of an SM: each has a scheduler and its own tensor, float and integer units; they share shared memory."""


@dataclass(frozen=True)
class Pipes:
    """Rates and latencies of one GPU.

    Attributes
    ----------
    intervals : mapping of str to float
        Clocks of a sub-core from one warp instruction of a unit to the next, by unit.
    latencies : mapping of str to float
        Clocks from issue to the result, by unit.
    l2_bytes_per_clk_sm : float
        L2 bandwidth of each SM when all SMs read.
    launch_us : float
        Time of an empty kernel in a graph, microseconds.
    flops_per_clk : mapping of str to float
        Tensor-core FLOPs of a sub-core, ``fp16`` and ``fp8``; multiplied by mma_sync_share for ``mma.sync``.
    mma_sync_share : float
    wgmma : mapping of str to mapping of int to float
        Clocks of a wgmma by its N, with A from ``shared`` memory or from ``registers``.
    """

    intervals: Mapping[str, float]
    latencies: Mapping[str, float]
    l2_bytes_per_clk_sm: float
    launch_us: float
    flops_per_clk: Mapping[str, float]
    mma_sync_share: float
    wgmma: Mapping[str, Mapping[int, float]]

    def mma_interval(self, flops: int, precision: str) -> float:
        """Clocks of a sub-core for one warp's ``mma.sync``.

        Raises
        ------
        UserError
            If the GPU has no tensor unit for the precision.
        """
        if precision not in self.flops_per_clk:
            raise UserError(f"the GPU has no {precision} tensor unit")
        return flops / self.flops_per_clk[precision] / self.mma_sync_share

    def wgmma_interval(self, n: int, operand: str) -> float:
        """Clocks of the tensor cores for one warpgroup's ``wgmma`` of 32 bytes along K."""
        known = self.wgmma[operand]
        return float(np.interp(n, list(known), list(known.values())))


@lru_cache
def pipes_of(gpu: Gpu) -> Pipes:
    """The figures of a GPU in ``gpus.json``.

    Raises
    ------
    UserError
        Without figures for its architecture.
    """
    data = json.loads((Path(__file__).parent / "pipes.json").read_text(encoding="utf-8"))
    if gpu.arch not in data["architectures"]:
        known = ", ".join(data["architectures"])
        raise UserError(f"no latencies are known for {gpu.arch} ({gpu.name}); they are for {known}")
    of_arch = data["architectures"][gpu.arch]
    per_clk = {
        name: tflops * 1e6 / gpu.clock_mhz / gpu.sms / SUB_CORES
        for name, tflops in (("fp16", gpu.fp16_tflops), ("fp8", gpu.fp8_tflops))
        if tflops is not None
    }
    return Pipes(
        of_arch["intervals"],
        of_arch["latencies"],
        min(float(gpu.l2_bytes_per_clk_sm), of_arch["l2_bytes_per_clk_mib"] * gpu.l2_mib / gpu.sms),
        of_arch["launch_us"],
        per_clk,
        of_arch["mma_sync_share"],
        {operand: {int(n): clocks for n, clocks in by_n.items()} for operand, by_n in data["wgmma"].items()},
    )
