"""Which of Nsight Compute's metrics are read, and what they mean.

A metric has other names on other architectures, and a version of ncu may lack one: each figure lists the names it may
have, best first, and is absent where none is reported. Of the tensor cores the largest counts: a metric of one kind of
instruction reads 0 on a kernel that has only another (``hmma`` need not count wgmma, which is ``gmma``). Sources:
Nsight Compute, "Profiling Guide" (metrics decoder, "Warp Scheduler States") and the sections that ``--set full``
collects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FIGURES", "STALLS", "STALL_PATTERN", "WGMMA_METRICS", "Figure"]


@dataclass(frozen=True)
class Figure:
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
        ncu's names for it, the first that is reported counts.
    largest : bool
        The largest that is reported counts instead.
    counter : str
        What the simulator counts of the same, by its name in :func:`sdpalab.profile.simulated.simulated_counts`; empty
        if it counts nothing of the kind.
    """

    key: str
    title: str
    unit: str
    metrics: tuple[str, ...]
    counter: str = ""
    largest: bool = False


_SUSTAINED = ".avg.pct_of_peak_sustained_active"
_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"

FIGURES: tuple[Figure, ...] = (
    Figure("time", "time under the profiler", "us", ("gpu__time_duration.sum",)),
    Figure(
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
    Figure("issue", "issue slots busy", "%", (f"smsp__issue_active{_SUSTAINED}", f"sm__inst_issued{_SUSTAINED}")),
    Figure("exp", "exponential unit (XU) busy", "%", (f"sm__inst_executed_pipe_xu{_SUSTAINED}",)),
    Figure(
        "fma",
        "FMA pipe busy",
        "%",
        (f"sm__pipe_fma_cycles_active{_SUSTAINED}", f"sm__inst_executed_pipe_fma{_SUSTAINED}"),
    ),
    Figure(
        "alu",
        "ALU pipe busy",
        "%",
        (f"sm__pipe_alu_cycles_active{_SUSTAINED}", f"sm__inst_executed_pipe_alu{_SUSTAINED}"),
    ),
    Figure("l1", "L1 and shared memory busy", "%", (f"l1tex__throughput{_SUSTAINED}", f"l1tex__throughput{_ELAPSED}")),
    Figure("l2", "L2 busy", "%", (f"lts__throughput{_ELAPSED}",)),
    Figure("l2_hit", "L2 hit rate", "%", ("lts__t_sector_hit_rate.pct",)),
    Figure("dram", "DRAM busy", "%", (f"dram__throughput{_ELAPSED}", f"gpu__dram_throughput{_ELAPSED}")),
    Figure("dram_read", "read from DRAM", "bytes", ("dram__bytes_read.sum",), counter="read_bytes"),
    Figure("dram_write", "written to DRAM", "bytes", ("dram__bytes_write.sum",), counter="write_bytes"),
    Figure("occupancy", "occupancy achieved", "%", (f"sm__warps_active{_SUSTAINED}",)),
    Figure("occupancy_limit", "occupancy possible", "%", ("sm__maximum_warps_per_active_cycle_pct",)),
    Figure("waves", "waves of blocks", "ratio", ("launch__waves_per_multiprocessor",)),
    Figure("registers", "registers a thread", "count", ("launch__registers_per_thread",)),
    Figure(
        "instructions",
        "warp instructions",
        "count",
        ("smsp__inst_executed.sum", "sm__inst_executed.sum"),
        counter="warp_instructions",
    ),
    Figure(
        "wavefronts",
        "shared wavefronts",
        "count",
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
        counter="wavefronts",
    ),
    Figure(
        "conflicts",
        "shared bank conflicts",
        "count",
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
        counter="conflicts",
    ),
    Figure(
        "local",
        "local memory instructions",
        "count",
        ("smsp__inst_executed_op_local.sum", "sass__inst_executed_local_loads"),
        counter="local",
    ),
)
"""What is read of each launch, in the order in which it is shown."""

WGMMA_METRICS = (
    f"sm__pipe_tensor_cycles_active{_SUSTAINED}",
    f"sm__pipe_tensor_op_gmma_cycles_active{_SUSTAINED}",
    f"sm__inst_executed_pipe_tensor_op_gmma{_SUSTAINED}",
)
"""Asked for on sm_90 beside what ``--set full`` collects. ``sm__pipe_tensor_cycles_active`` and
``sm__inst_executed_pipe_tensor_op_gmma`` are in full reports of H100s that others published; the second name is not
known from any, and an ncu may lack each of them."""

STALL_PATTERN = r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio"
"""Warps that wait for a reason, on average, whenever an instruction is issued."""

STALLS: Mapping[str, str] = {
    "barrier": "for the other warps of the block at a barrier",
    "branch_resolving": "for a branch's target",
    "dispatch_stall": "for the dispatcher",
    "drain": "at the end, for stores to leave",
    "gmma": "for wgmma products",
    "imc_miss": "for constants that are not in their cache",
    "lg_throttle": "because the queue for global and local memory is full",
    "long_scoreboard": "for data from L2 or DRAM, or at a barrier that they poll",
    "math_pipe_throttle": "because the pipe that they want is busy",
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
"""What warps of each state wait for, by ncu's names ("Warp Scheduler States")."""
