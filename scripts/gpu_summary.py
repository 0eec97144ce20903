"""``summary.txt`` and ``summary.json`` of the GPU suite: the parts, their outcomes, what was dropped and why."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_archive import Packed
from gpu_records import Workspace, write_text

__all__ = ["write_summary"]


def write_summary(
    out: Path,
    work: Workspace,
    gpu: Mapping[str, Any],
    halves: Sequence[str],
    dropped: Mapping[str, str],
    packed: Packed,
) -> None:
    """Write both files into ``out``; ``dropped`` has the reason for each kernel that is not timed."""
    parts = _parts(work)
    environment = _read(work.evidence / "environment.json")
    commit = environment.get("harness", {}).get("commit")
    report = {
        "gpu": gpu["gpu"],
        "arch": gpu["arch"],
        "commit": commit,
        "dirty": environment.get("harness", {}).get("dirty"),
        "confinement": environment.get("confinement"),
        "halves": list(halves),
        "refused": gpu["refused"],
        "parts": parts,
        "dropped": dict(dropped),
        "comparisons": _comparisons(work),
        "files": {path.name: path.stat().st_size for path in packed.archives},
        "left_out": packed.left_out,
    }
    write_text(out / "summary.json", json.dumps(report, indent=1) + "\n")
    lines = [f"{gpu['gpu']} ({gpu['arch']}), commit {commit or 'unknown: pass --commit'}, {' and '.join(halves)}", ""]
    for part in parts:
        seconds = f"{part['seconds']:6.1f} s" if part["seconds"] else " " * 8
        lines.append(f"{part['name']:26} {part['state']:12} {seconds}  {part['reason'] or part['last_line']}".rstrip())
    lines += ["", *_headline(report), ""]
    lines += [f"{name} {size:,} bytes" for name, size in report["files"].items()]
    lines += packed.left_out
    write_text(out / "summary.txt", "\n".join(lines) + "\n")


def _headline(report: Mapping[str, Any]) -> list[str]:
    """The most important results."""
    lines = [f"not for this GPU: {reason}" for reason in report["refused"]]
    lines += [f"{name} is not timed: {why}" for name, why in report["dropped"].items()]
    for name, comparison in report["comparisons"].items():
        lines.append(f"{name}: {comparison}")
    open_parts = [part["name"] for part in report["parts"] if part["state"] not in ("passed", "failed", "skipped")]
    if open_parts:
        lines.append(f"not complete, and done by the next call: {', '.join(open_parts)}")
    return lines or ["every part passed"]


def _parts(work: Workspace) -> list[dict[str, Any]]:
    """The record of each part, in the order in which they ended, with the last line of its log."""
    states = [state for path in sorted((work.path / "parts").glob("*.json")) if (state := work.state(path.stem))]
    for state in states:
        state["last_line"] = _last_line(work.log(state["name"]))
    return sorted(states, key=lambda state: float(state.get("when", 0.0)))


def _comparisons(work: Workspace) -> dict[str, str]:
    """How many cases of each kernel agreed with the simulator, and how many launches of the replay."""
    comparisons: dict[str, str] = {}
    for path in sorted(work.evidence.glob("parity_*.jsonl")):
        records = [record for record in _lines(path) if "agrees" in record]
        good = sum(record["agrees"] for record in records)
        equal = sum(record.get("different_elements") == 0 for record in records)
        comparisons[path.stem] = f"{good} of {len(records)} cases agree with the simulator, {equal} bit for bit"
    launches = _lines(work.evidence / "golden.jsonl")[1:]
    if launches:
        equal = sum(bool(record.get("equal")) for record in launches)
        errors = sum(bool(record.get("error")) for record in launches)
        comparisons["replay"] = f"{equal} of {len(launches)} launches equal bit for bit, {errors} without a result"
    return comparisons


def _lines(path: Path) -> list[dict[str, Any]]:
    records = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            break  # cut off
    return records


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
