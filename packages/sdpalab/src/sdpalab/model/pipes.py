"""How long the units of an SM take: the figures of ``pipes.json``, each with its source, for one GPU."""

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
"""Of an SM: each has a scheduler and its own tensor, float and integer units; shared memory serves all four."""


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
        What each SM gets from L2 if all read.
    launch_us : float
        What a kernel takes that does nothing, microseconds, in a graph.
    flops_per_clk : mapping of str to float
        Of a sub-core's tensor cores, ``fp16`` and ``fp8``; mma_sync_share of it for ``mma.sync``.
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
    """The figures for a GPU of ``gpus.json``.

    Raises
    ------
    UserError
        If there are none for its architecture.
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
