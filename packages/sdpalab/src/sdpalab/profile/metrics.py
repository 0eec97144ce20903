"""Metrics of Nsight Compute in profiles, and their meaning.

Metric names differ between architectures, and a version of ncu may lack one: each figure lists possible names, best
first, and is absent if none is reported. For tensor cores the largest value counts: a metric of one kind of
instruction is 0 for a kernel with another kind (``hmma`` need not count wgmma, which is ``gmma``). Sources: Nsight
Compute, "Profiling Guide" (metrics decoder, "Warp Scheduler States") and the sections that ``--set full`` collects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["METRICS", "STALLS", "STALL_PATTERN", "WGMMA_METRICS", "Metric"]


@dataclass(frozen=True)
class Metric:
    """One figure of a profile.

    Attributes
    ----------
    key : str
        Name in records.
    title : str
        Name in tables.
    unit : str
        ``us``, ``%``, ``bytes``, ``count`` or ``ratio``.
    metrics : tuple of str
        Names in ncu; the first reported one counts.
    largest : bool
        Use the largest reported value instead.
    counter : str
        Corresponding count of the simulator, by its name in :func:`sdpalab.profile.simulated.simulated_counts`; empty
        without one.
    """

    key: str
    title: str
    unit: str
    metrics: tuple[str, ...]
    counter: str = ""
    largest: bool = False


_SUSTAINED = ".avg.pct_of_peak_sustained_active"
_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"

METRICS: tuple[Metric, ...] = (
    Metric("time", "time under the profiler", "us", ("gpu__time_duration.sum",)),
    Metric(
        "tensor",
        "tensor cores busy",
        "%",
        (
            f"sm__pipe_tensor_cycles_active{_SUSTAINED}",
            f"sm__pipe_tensor_op_gmma_cycles_active{_SUSTAINED}",
            f"sm__pipe_tensor_op_hmma_cycles_active{_SUSTAINED}",
            f"sm__inst_executed_pipe_tensor{_SUSTAINED}",
            f"sm__inst_executed_pipe_tensor_op_gmma{_SUSTAINED}",
        ),
        largest=True,
    ),
    Metric("issue", "issue slots busy", "%", (f"smsp__issue_active{_SUSTAINED}", f"sm__inst_issued{_SUSTAINED}")),
    Metric("exp", "exponential unit (XU) busy", "%", (f"sm__inst_executed_pipe_xu{_SUSTAINED}",)),
    Metric(
        "fma",
        "FMA pipe busy",
        "%",
        (f"sm__pipe_fma_cycles_active{_SUSTAINED}", f"sm__inst_executed_pipe_fma{_SUSTAINED}"),
    ),
    Metric(
        "alu",
        "ALU pipe busy",
        "%",
        (f"sm__pipe_alu_cycles_active{_SUSTAINED}", f"sm__inst_executed_pipe_alu{_SUSTAINED}"),
    ),
    Metric("l1", "L1 and shared memory busy", "%", (f"l1tex__throughput{_SUSTAINED}", f"l1tex__throughput{_ELAPSED}")),
    Metric("l2", "L2 busy", "%", (f"lts__throughput{_ELAPSED}",)),
    Metric("l2_hit", "L2 hit rate", "%", ("lts__t_sector_hit_rate.pct",)),
    Metric("dram", "DRAM busy", "%", (f"dram__throughput{_ELAPSED}", f"gpu__dram_throughput{_ELAPSED}")),
    Metric("dram_read", "read from DRAM", "bytes", ("dram__bytes_read.sum",), counter="read_bytes"),
    Metric("dram_write", "written to DRAM", "bytes", ("dram__bytes_write.sum",), counter="write_bytes"),
    Metric("occupancy", "occupancy achieved", "%", (f"sm__warps_active{_SUSTAINED}",)),
    Metric("occupancy_limit", "occupancy possible", "%", ("sm__maximum_warps_per_active_cycle_pct",)),
    Metric("waves", "waves of blocks", "ratio", ("launch__waves_per_multiprocessor",)),
    Metric("registers", "registers a thread", "count", ("launch__registers_per_thread",)),
    Metric(
        "instructions",
        "warp instructions",
        "count",
        ("smsp__inst_executed.sum", "sm__inst_executed.sum"),
        counter="warp_instructions",
    ),
    Metric(
        "wavefronts",
        "shared wavefronts",
        "count",
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
        counter="wavefronts",
    ),
    Metric(
        "conflicts",
        "shared bank conflicts",
        "count",
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
        counter="conflicts",
    ),
    Metric(
        "local",
        "local memory instructions",
        "count",
        ("smsp__inst_executed_op_local.sum", "sass__inst_executed_local_loads"),
        counter="local",
    ),
)
"""Figures of each launch, in display order."""

WGMMA_METRICS = (
    f"sm__pipe_tensor_cycles_active{_SUSTAINED}",
    f"sm__pipe_tensor_op_gmma_cycles_active{_SUSTAINED}",
    f"sm__inst_executed_pipe_tensor_op_gmma{_SUSTAINED}",
)
"""Metrics collected on sm_90 in addition to ``--set full``. ``sm__pipe_tensor_cycles_active`` and
``sm__inst_executed_pipe_tensor_op_gmma`` occur in published full reports of H100s,
``sm__pipe_tensor_op_gmma_cycles_active`` in none; any ncu may lack each of them."""

STALL_PATTERN = r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio"
"""Average number of warps that wait for a reason, per issued instruction."""

STALLS: Mapping[str, str] = {
    "barrier": "for the other warps of the block at a barrier",
    "branch_resolving": "for a branch's target",
    "dispatch_stall": "for the dispatcher",
    "drain": "at the end, for stores to leave",
    "gmma": "for wgmma products",
    "imc_miss": "for constants that are not in their cache",
    "lg_throttle": "because the queue for global and local memory is full",
    "long_scoreboard": "for data from L2 or DRAM, or at a barrier that they poll",
    "math_pipe_throttle": "because the pipe that they need is busy",
    "membar": "at a memory fence",
    "mio_throttle": "because the queue for shared memory and special functions is full",
    "misc": "for something else",
    "no_instruction": "for instructions that are not in their cache",
    "not_selected": "ready, while another warp was issued",
    "selected": "being issued",
    "short_scoreboard": "for shared memory or special functions",
    "sleeping": "asleep, by their own wish",
    "tex_throttle": "because the queue for textures is full",
    "wait": "a fixed number of cycles between dependent instructions",
}
"""Wait reasons of warps by ncu's state names ("Warp Scheduler States")."""
