"""The figures of one launch as rows of text, for a terminal and for a page."""

from __future__ import annotations

from sdpalab.profile.simulated_profile import LaunchFigures

__all__ = ["summary_rows"]


def summary_rows(launch: LaunchFigures) -> tuple[tuple[str, str, str], ...]:
    """Name, value and kind of each figure."""
    used, counters, step, issue = launch.resources, launch.counters, launch.step, launch.issue
    moved = f"{counters.compulsory_read_bytes:,} + {counters.compulsory_write_bytes:,}"
    rows = [
        ("registers a thread", f"{used.registers}", "compiled"),
        ("shared memory a block, bytes", f"{used.shared_bytes:,}", "compiled"),
    ]
    if launch.loop:
        rows += [
            ("main loop, machine instructions", f"{len(launch.loop):,}", "compiled"),
            ("main loop, stall counts of a turn, clocks", f"{launch.stall_clocks:,}", "compiled"),
        ]
    rows += [
        ("warp instructions of PTX", f"{counters.total('warps'):,}", "simulated"),
        ("lanes switched off", f"{counters.divergence:.1%}", "simulated"),
        ("shared wavefronts", _over(counters.total("wavefronts"), counters.total("ideal_wavefronts")), "simulated"),
        ("global sectors", _over(counters.total("sectors"), counters.total("ideal_sectors")), "simulated"),
        ("bytes read and written, each once", moved, "simulated"),
    ]
    if issue is not None and issue.turn_clocks is not None:
        warps = issue.resident * len(counters.by_warp)
        rows.append((f"turn of the longest loop, {warps} warps, clocks", f"{issue.turn_clocks:,.0f}", "modelled"))
    if step is not None:
        schedule = "-" if step.schedule_us is None else f"{step.schedule_us:.2f}"
        rows += [
            ("issue schedule, us", schedule, "modelled"),
            (f"floor by counts ({step.binds}), us", f"{step.floor_us:.2f}", "modelled"),
            ("time with its launch, us", f"{step.microseconds:.2f}", "modelled"),
        ]
    return tuple(rows)


def _over(count: int, ideal: int) -> str:
    return f"{count:,} ({count / ideal:.2f}x)" if ideal else "none"
