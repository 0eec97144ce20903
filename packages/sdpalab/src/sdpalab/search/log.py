"""The log of a search: append-only JSON Lines, a head and then one record per line, each with a checksum.

A record is on the disk before the search continues, so a kill at any byte loses at most the line in progress. Lines
with a right checksum are valid. A truncated last line is dropped, and its configuration is tried again. Damage in the
middle is skipped with a warning; all intact lines are valid.

A resumed search runs the same strategy with the same seed from the start, and takes results from the log for equal
keys: PTX and launches (the identity), GPU, clock, version of the judge and of the lab.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic.dataclasses import dataclass

from sdpalab.errors import MachineError, UserError
from sdpalab.problem import Problem
from sdpalab.record import RECORD, JsonRecord, ProblemField
from sdpalab.search.outcome import Finalist, Standing, Trial
from sdpalab.user_folder import data_folder
from warpsan.locks import lock_file

__all__ = ["FORMAT", "Head", "LogWarning", "SearchLog", "default_log", "read_log"]

R = TypeVar("R", Trial, Finalist)

FORMAT = 1
"""Version of the line format, raised with every change of meaning."""


class LogWarning(UserWarning):
    """Lines of a log are damaged and ignored."""


@dataclass(frozen=True, config=RECORD)
class Head(JsonRecord):
    """Definition of a search: its first line. A log continues a search with an equal head, ``when`` excepted.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    problems : tuple of Problem
    gpus : tuple of str
    clock : str
        ``modelled``, or the clock of measured times.
    strategy : str
    seed : int
    knobs : mapping of str to tuple of values
        Values of each knob in the space.
    configurations : int
        Number of valid configurations in the space.
    judge : str
        Digest of the judge's source (:func:`sdpalab.jobs.versions.judge_version`).
    lab : str
        Version of the lab.
    when : str
        UTC time of the log's creation.
    source : str
        Digest of the kernel's source (:func:`sdpalab.kernels.source.source_digest`); empty in logs of older versions.
    """

    added = ("source",)

    kernel: str
    problems: tuple[ProblemField, ...]
    gpus: tuple[str, ...]
    clock: str
    strategy: str
    seed: int
    knobs: Mapping[str, tuple[int | str, ...]]
    configurations: int
    judge: str
    lab: str
    when: str = ""
    source: str = ""

    def differs_from(self, other: Head) -> str:
        """The first difference between the two searches, in words; empty if they are the same."""
        for name, value in self.to_dict().items():
            theirs = other.to_dict()[name]
            if name != "when" and value != theirs:
                shown = f"{_short(theirs)}, and this search has {_short(value)}"
                return f"it is of another {_NAMED.get(name, name)}: {shown}"
        return ""


_NAMED = {"lab": "version of the lab", "judge": "version of the judge", "knobs": "space", "configurations": "space"}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class SearchLog:
    """The records of one search: in a file if there is a path, otherwise in memory only.

    Parameters
    ----------
    path : Path or None
    head : Head
        Head of the search to run.
    resume : bool
        Whether to continue an existing log. Otherwise an existing log is an error: nothing is overwritten.

    Attributes
    ----------
    notes : list of str
        Problems of the log, in one sentence each.

    Raises
    ------
    UserError
        If the log is of another search or version, another process writes to it, or it exists and is not resumed.
    MachineError
        If the log cannot be written.
    """

    def __init__(self, path: Path | None, head: Head, *, resume: bool = False) -> None:
        self.head, self.path = head, path
        self.notes: list[str] = []
        self._file: IO[bytes] | None = None
        self._trials: dict[tuple[tuple[str, str], ...], Trial] = {}
        self._unbuilt: dict[str, Trial] = {}
        self._finalists: dict[tuple[tuple[str, str], ...], Finalist] = {}
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            lock_file(self._file.fileno(), wait=False)
            self._continue(path, resume)
        except BlockingIOError:
            self.close()
            raise UserError(f"another search writes to {path}: wait for it, or give another --log") from None
        except OSError as error:
            self.close()
            raise MachineError(f"the log {path} cannot be written: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All records, in order of their numbers."""
        return tuple(sorted((*self._trials.values(), *self._unbuilt.values()), key=lambda trial: trial.number))

    @property
    def finalists(self) -> tuple[Finalist, ...]:
        """Records of the finalists."""
        return tuple(self._finalists.values())

    def known(self, identity: Mapping[str, str]) -> Trial | None:
        """The record with this identity on every GPU; None without one, or for LOST."""
        return _unless_lost(self._trials.get(_key(identity))) if identity else None

    def known_finalist(self, identity: Mapping[str, str]) -> Finalist | None:
        """Result of the last gates for this identity; None without one, or for LOST."""
        return _unless_lost(self._finalists.get(_key(identity)))

    def keep(self, record: Trial | Finalist) -> None:
        """Store a record: it is on the disk on return. A record without news is not written again.

        Raises
        ------
        MachineError
            If the record cannot be written.
        """
        if self._note(record):
            self._write(type(record).__name__.lower(), record.to_dict())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _note(self, record: Trial | Finalist) -> bool:
        """Add the record to the index; returns whether it is new."""
        if isinstance(record, Finalist):
            known: object = self._finalists.get(_key(record.identity))
            self._finalists[_key(record.identity)] = record
        elif record.identity and record.standing is not Standing.DUPLICATE:
            known = self._trials.get(_key(record.identity))
            self._trials[_key(record.identity)] = record
        else:
            name = str(record.knobs)
            known = self._unbuilt.get(name)
            self._unbuilt[name] = record
        return known != record

    def _continue(self, path: Path, resume: bool) -> None:
        assert self._file is not None, "it was just opened"
        data = path.read_bytes()
        if not data:
            self._write("head", {**self.head.to_dict(), "when": _now()})
            return
        if not resume:
            raise UserError(f"the log {path} is there already: continue it with --resume, or give another --log")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", LogWarning)
            head, records = read_log(path)
        self.notes += [str(each.message) for each in caught]
        difference = self.head.differs_from(head)
        if difference:
            raise UserError(f"the log {path} does not belong to this search: {difference}; give another --log")
        self.head = head
        for record in records:
            self._note(record)
        if not data.endswith(b"\n"):
            # Truncated line: the intact part stays, and the next record begins on a new line.
            whole = data.rpartition(b"\n")[0] + b"\n"
            if _record(data[len(whole) :]) is not None:
                self._file.write(b"\n")
            else:
                self._file.truncate(len(whole))
            self._sync()

    def _write(self, kind: str, record: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(_line(kind, record))
            self._sync()
        except OSError as error:
            raise MachineError(f"the log {self.path} cannot be written: {error.strerror}") from None

    def _sync(self) -> None:
        assert self._file is not None, "the caller has a file"
        self._file.flush()
        os.fsync(self._file.fileno())


def default_log(kernel: str, gpus: Sequence[str], problems: Sequence[Problem], *, resume: bool = False) -> Path:
    """``search/KERNEL-GPU-PROBLEM.jsonl`` in the user's data folder; to start a search, with the first free number.

    Raises
    ------
    UserError
        If 999 logs exist.
    """
    stem = "-".join([Path(kernel).name, *(gpus or ("default",)), *(problem.label for problem in problems)])
    path = data_folder() / "search" / f"{re.sub(r'[^A-Za-z0-9.]+', '-', stem).strip('-').lower()[:150]}.jsonl"
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(2, 1000))
    free = next((each for each in (path, *others) if resume or not each.exists()), None)
    if free is None:
        raise UserError(f"there are 999 logs beside {path}: give one with --log")
    return free


def read_log(path: Path) -> tuple[Head, tuple[Trial | Finalist, ...]]:
    """The head and all intact records of a log, in the order of writing.

    Warns
    -----
    LogWarning
        In one sentence, if lines are damaged: their number, and the first of them.

    Raises
    ------
    UserError
        If it cannot be read, is not a log of a search, or has another format.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"the log {path} cannot be read: {error.strerror}") from None
    cut = lines.pop()
    head: Head | None = None
    records: list[Trial | Finalist] = []
    damaged: list[int] = []
    for number, line in enumerate((*lines, cut), 1):
        if number > len(lines) and not line:
            break
        record = _record(line)
        if record is None:
            if number <= len(lines):  # a partial last line is not damage: it was being written
                damaged.append(number)
        elif isinstance(record, Head):
            head = head or record
        else:
            records.append(record)
    if head is None:
        raise UserError(f"{path} is no log of a search, or its head is damaged: give another --log")
    if damaged:
        many = f"{len(damaged)} lines are" if len(damaged) > 1 else "one line is"
        warnings.warn(
            f"{path}: {many} damaged, the first is line {damaged[0]}; the {len(records)} whole records count",
            LogWarning,
            stacklevel=2,
        )
    return head, tuple(records)


_KINDS: Mapping[str, type[Head] | type[Trial] | type[Finalist]] = {"head": Head, "trial": Trial, "finalist": Finalist}


def _line(kind: str, record: Mapping[str, Any]) -> bytes:
    body = json.dumps({"format": FORMAT, "kind": kind, **record}, sort_keys=True, allow_nan=False)
    return f'{{"sha256": "{_digest(body)}", "body": {body}}}\n'.encode()


def _record(line: bytes) -> Head | Trial | Finalist | None:
    """The record of a line; None for a truncated line or a wrong checksum."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        parsed = json.loads(line)
        body = parsed["body"]
        if _digest(json.dumps(body, sort_keys=True)) != parsed["sha256"]:
            return None
        if body.pop("format") != FORMAT:
            raise _OtherFormat
        return _KINDS[body.pop("kind")].from_dict(body)
    return None


class _OtherFormat(UserError):
    """The log has another format."""

    def __init__(self) -> None:
        super().__init__(f"the log is of another format than {FORMAT}, which this version reads: give another --log")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _key(identity: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(identity.items()))


def _unless_lost(record: R | None) -> R | None:
    return None if record is None or record.standing is Standing.LOST else record


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
