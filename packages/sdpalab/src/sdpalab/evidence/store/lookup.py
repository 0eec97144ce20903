"""Lookup in the stored records: certificates, comparisons with torch, and tuned defaults, by GPU.

Two roots have one folder per model of GPU: shipped records (:data:`~sdpalab.evidence.store.folders.EVIDENCE`), and the
user's. Folders are read once per process, until :func:`forget`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sdpalab.errors import UserError
from sdpalab.evidence.store.certificate import Certificate, certificate_of
from sdpalab.evidence.store.folders import evidence_folder, folder_of, records_folder
from sdpalab.evidence.store.record import RecordWarning, StoredRecord, read_records
from sdpalab.evidence.store.timings import Timing, timings_of
from sdpalab.judge.verdict import Verdict
from sdpalab.search.tuned import TunedEntry

__all__ = ["Records", "forget", "own_records", "recorded_verdicts", "records_in", "records_on", "shipped_records"]


@dataclass(frozen=True)
class Records:
    """Verdicts and comparisons from GPUs, and tuned defaults in the order of their age."""

    certificates: tuple[Certificate, ...] = ()
    timings: tuple[Timing, ...] = ()
    tuned: tuple[TunedEntry, ...] = ()

    def __add__(self, other: Records) -> Records:
        return Records(self.certificates + other.certificates, self.timings + other.timings, self.tuned + other.tuned)


@cache
def records_in(folder: Path, *, own: bool = False) -> Records:
    """Records in the folder of one model of GPU; ``own`` as :func:`~sdpalab.evidence.store.read_records` takes it.

    Warns
    -----
    RecordWarning
        For each damaged or foreign file, which is ignored.
    """
    certificates: list[Certificate] = []
    timings: list[Timing] = []
    tuned: list[StoredRecord] = []
    for path, record in read_records(folder, own=own):
        name = str(path) if own else f"evidence/{path.parent.name}/{path.name}"
        try:
            certificate = certificate_of(record, name, own=own)
            timings += list(timings_of(record, name, own=own))
        except (ValueError, KeyError, TypeError, UserError) as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            warnings.warn(f"{path} is not a valid record and is ignored: {message}", RecordWarning, stacklevel=2)
            continue
        certificates += [certificate] if certificate is not None else []
        tuned += [record] if isinstance(record, StoredRecord) else []
    by_age = sorted(tuned, key=lambda record: record.when)
    entries = tuple(record.tuned for record in by_age if record.tuned is not None)
    return Records(tuple(certificates), tuple(timings), entries)


def records_on(gpu: str) -> Records:
    """Records of the GPU with that driver name: shipped records, then the user's."""
    folder = folder_of(gpu)
    records = records_in(evidence_folder() / folder) + records_in(records_folder() / folder, own=True)
    # Two models may share a folder name, and a file may be in the wrong folder.
    return Records(
        tuple(each for each in records.certificates if each.gpu == gpu),
        tuple(each for each in records.timings if each.gpu == gpu),
        records.tuned,
    )


def shipped_records() -> Records:
    """Shipped records from all GPUs."""
    return _below(evidence_folder())


def own_records() -> Records:
    """The user's records from all GPUs."""
    return _below(records_folder(), own=True)


def _below(root: Path, *, own: bool = False) -> Records:
    return sum((records_in(path, own=own) for path in sorted(root.glob("*")) if path.is_dir()), Records())


def recorded_verdicts(more: Path | None = None) -> dict[str, Verdict]:
    """PASSED verdicts from GPUs by their records (``<gpu>/<file>``): shipped ones, and those in the subfolders of
    ``more``.

    They are an argument of :func:`sdpalab.measure.timing_gate.judge_for_timing`.
    """
    records = shipped_records() + (_below(more) if more else Records())
    return {
        each.record.removeprefix("evidence/"): each.verdict
        for each in records.certificates
        if each.verdict is not None and not each.failure
    }


def forget() -> None:
    """Drop the records from memory; the next use reads them again."""
    records_in.cache_clear()
