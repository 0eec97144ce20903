"""``pytest packages/warpsan/tests --replay-on-gpu FOLDER``: every clean launch of the simulator's tests, repeated on a
GPU.

The plugin stands in for ``warpsan.launch``. A launch that the simulator ends without a hazard, all default checks
on, is repeated on the GPU from the same PTX and the same buffers, and a record is appended to ``FOLDER/golden.jsonl``
(:mod:`golden`). Launches that the file has a result of are not repeated, so a run that was cut off can be taken up
again; those that had an error are, and the last record of a launch counts. If a launch has an error, or differs by more
than its instructions may (:func:`golden.allowed`), pytest's exit status is 1.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpsan
from golden import Job, allowed, make_record, read_records

__all__ = ["Replay", "job_of", "summary"]

PER_TEST = 60
"""Launches of one test that are repeated; fuzzing makes thousands."""

Runner = Callable[[Job], "tuple[list[np.ndarray] | None, str | None]"]


class Replay:
    """The plugin.

    Parameters
    ----------
    folder : Path
        Where ``golden.jsonl`` is, or will be.
    run : callable
        Repeats a launch: the arrays after it and None, or None and why there are none.
    header : dict
        What the file says first: the GPU, its driver, who assembled the PTX.

    Raises
    ------
    pytest.UsageError
        If the file is there and was recorded with another header.
    """

    def __init__(self, folder: Path, run: Runner, header: dict[str, Any]) -> None:
        self.path = folder / "golden.jsonl"
        self._run, self._test = run, ""
        self._launch = warpsan.launch
        self._by_test: Counter[str] = Counter()
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and (known := read_records(self.path)):
            if known[0] != header:
                raise pytest.UsageError(f"{self.path} was recorded on {known[0]}, not on {header}")
            self._drop_cut_line(known)
        else:
            known = [header]
            self._append(header)
        self._seen = {digest for digest, record in _latest(known).items() if not record["error"]}

    def launch(
        self, ptx: Any, entry: str, grid: Any, block: Any, args: Sequence[Any], **options: Any
    ) -> warpsan.Report:
        """As :func:`warpsan.launch`; then the same on the GPU."""
        if not all(map(_fits_a_job, args)):
            return self._launch(ptx, entry, grid, block, args, **options)
        before = [_copy(value) for value in args]
        report = self._launch(ptx, entry, grid, block, args, **options)
        if report.hazards or not set(warpsan.CHECKS) <= set(options.get("checks", warpsan.CHECKS)):
            return report
        job, simulated = job_of(ptx, entry, grid, block, args, before, options)
        if self._by_test[self._test] < PER_TEST and job.digest not in self._seen:
            self._by_test[self._test] += 1
            self._seen.add(job.digest)
            golden, error = self._run(job)
            self._append(make_record(self._test, job, simulated, golden, error))
        return report

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Launches belong to this test from now on."""
        self._test = item.nodeid

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail if launches do not agree: the tests themselves have only seen the simulator."""
        wrong = [record for record in _latest(read_records(self.path)).values() if not allowed(record)]
        if wrong and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The table of what came out."""
        terminalreporter.write_sep("=", "replay on the GPU")
        for line in summary(read_records(self.path)):
            terminalreporter.write_line(line)

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _drop_cut_line(self, known: Sequence[dict[str, Any]]) -> None:
        """A record that a crash has cut off would spoil the next one."""
        lines = self.path.read_text().splitlines(keepends=True)
        if len(lines) > len(known):
            self.path.write_text("".join(lines[: len(known)]))


def summary(records: Sequence[dict[str, Any]]) -> list[str]:
    """A line for all launches, and one for each group of those that did not agree, by test."""
    launches = list(_latest(records).values())
    equal = [record for record in launches if record.get("equal")]
    opcodes = {opcode for record in equal for opcode in record["opcodes"]}
    lines = [f"{len(equal)} of {len(launches)} launches equal bit for bit, with {len(opcodes)} forms of instructions"]
    groups: dict[tuple[str, str], int] = Counter()
    for record in launches:
        test = record["test"].partition("[")[0]
        if record["error"]:
            groups[test, record["error"].partition(" (")[0]] += 1
        elif not record["equal"]:
            ulps = record["worst_ulp"]
            what = {None: "other bits", 0: "only other NaNs or signs of zero"}.get(ulps, f"up to {ulps} ulp")
            groups[test, what if allowed(record) else f"{what}, which its instructions do not allow"] += 1
    return lines + [f"{count:5d}  {test}: {what}" for (test, what), count in sorted(groups.items())]


def _latest(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The last record of each launch, by its digest."""
    return {record["digest"]: record for record in records[1:]}


def job_of(
    ptx: str | bytes,
    entry: str,
    grid: Any,
    block: Any,
    args: Sequence[Any],
    before: Sequence[Any],
    options: dict[str, Any],
) -> tuple[Job, list[np.ndarray]]:
    """The launch as data, with the buffers ``before`` it, and the buffers as the simulator left them in ``args``."""
    places: dict[tuple[int, int], int] = {}
    contents: list[np.ndarray] = []
    after: list[np.ndarray] = []

    def place(now: np.ndarray, then: np.ndarray) -> int:
        key = now.ctypes.data, now.nbytes
        if key not in places:
            places[key] = len(contents)
            contents.append(then)
            after.append(now.copy())
        return places[key]

    described: list[dict[str, Any]] = []
    for now, then in zip(args, before, strict=True):
        if isinstance(now, np.ndarray):
            described.append({"array": place(now, then)})
        elif isinstance(now, warpsan.TensorMap):
            described.append({"array": place(now.array, then), **_map_options(now)})
        elif isinstance(now, warpsan.Pointer):
            described.append({"array": place(now.array, then), "pointer": now.offset})
        elif isinstance(now, bytes):
            described.append({"bytes": now.hex()})
        else:
            described.append({"value": now.item() if isinstance(now, np.generic) else now})
    text = (ptx.decode() if isinstance(ptx, bytes) else ptx).rstrip("\0")
    cluster = _dims(options.get("cluster", 1))
    geometry = _dims(grid), _dims(block), cluster, options.get("dynamic_smem", 0)
    return Job(text, entry, *geometry, tuple(contents), tuple(described)), after


def _fits_a_job(value: Any) -> bool:
    """Whether a job can have this argument. It has no structures but bytes, and no tables of pointers."""
    if isinstance(value, warpsan.Pointer):
        return isinstance(value.array, np.ndarray)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.names is None
    return isinstance(value, (warpsan.TensorMap, bytes, int, float))


def _copy(value: Any) -> Any:
    if isinstance(value, (warpsan.TensorMap, warpsan.Pointer)):
        return value.array.copy()
    return value.copy() if isinstance(value, np.ndarray) else value


def _map_options(tensor: warpsan.TensorMap) -> dict[str, Any]:
    """The keyword arguments with which the map is made again."""
    return {
        "box": tensor.tiling.box[::-1],
        "swizzle": tensor.tiling.swizzle,
        "shape": tensor.tiling.dims[::-1],
        "strides": tensor.tiling.strides[::-1],
        "element_strides": tensor.tiling.steps[::-1],
        "oob_fill": "nan" if any(tensor.tiling.fill) else "zero",
        "offset": tensor.offset,
    }


def _dims(size: Any) -> tuple[int, int, int]:
    dims = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    x, y, z = (*(int(dim) for dim in dims), 1, 1)[:3]
    return x, y, z
