"""The store of records: a verdict, a measurement or a tuned default, with its machine and a digest.

Each file is written atomically (:func:`~sdpalab.evidence.store.files.write_atomically`) under a unique name. Concurrent
processes therefore need no lock, and existing records are never changed. A file counts only if it is a valid record
with the right digest; other files are skipped with a warning.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from sdpalab.errors import MachineError
from sdpalab.evidence.records import AttemptRecord, Sha256
from sdpalab.evidence.store.files import write_atomically
from sdpalab.evidence.store.folders import folder_of, records_folder
from sdpalab.evidence.store.measured import BenchRecord
from sdpalab.evidence.verifier.archive import canonical
from sdpalab.record import RECORD, JsonRecord, ProblemField, dataclass
from sdpalab.search.tuned import TunedEntry
from warpsan.gpus import gpu_of_device

__all__ = [
    "AnyRecord",
    "RecordWarning",
    "SampledRecord",
    "StoredRecord",
    "check_writable",
    "keep",
    "read_records",
    "sealed",
]


class RecordWarning(UserWarning):
    """A file among the records is not a record, or was modified; it is ignored."""


@dataclass(frozen=True, config=RECORD, kw_only=True)
class SampledRecord(JsonRecord):
    """A large problem that was launched once, with its output compared with float64 in some rows of each head.

    Attributes
    ----------
    problem : Problem
        The launched problem.
    small : Problem
        A fully judged problem that compiles to the same code.
    rows : int
        Compared query rows of each head (:mod:`sdpalab.measure.outputs`); other rows are only checked to be finite.
    seed : int
        Seed of the inputs and of the sample.
    wrong : str
        The error; empty if the output is right.
    """

    problem: ProblemField
    small: ProblemField
    rows: int
    seed: int
    wrong: str = ""


@dataclass(frozen=True, config=RECORD, kw_only=True)
class StoredRecord(JsonRecord):
    """A judgement (``attempt``) or a timing (``bench``) on one machine, or the result of a search (``tuned``).

    Attributes
    ----------
    gpu, driver, lab : str
        The GPU's name, and the versions of the driver (empty for a search) and of the lab.
    when : datetime
    code : mapping of str to str
        For a verdict: the digest of each build's PTX, and its :attr:`~sdpalab.compile.Build.code_sha256`.
    sampled : tuple of SampledRecord
        For a verdict: large problems that were checked beside the judged ones.
    attempt : AttemptRecord or None
    bench : BenchRecord or None
    tuned : TunedEntry or None

    Raises
    ------
    ValueError
        If not exactly one of ``attempt``, ``bench`` and ``tuned`` is given, for this GPU.
    """

    derived = ("sha256",)
    sparse = ("tuned",)

    record: Literal["kept"] = "kept"
    gpu: str
    driver: str
    lab: str
    when: datetime
    code: Mapping[Sha256, Sha256] = field(default_factory=dict)
    sampled: tuple[SampledRecord, ...] = ()
    attempt: AttemptRecord | None = None
    bench: BenchRecord | None = None
    tuned: TunedEntry | None = None

    def __post_init__(self) -> None:
        if [self.attempt, self.bench, self.tuned].count(None) != 2:
            raise ValueError("a record holds a verdict, a measurement or a tuned default, one of the three")
        if self.attempt is not None:
            verdict = self.attempt.verdict
            if verdict is None or verdict.device != self.gpu:
                raise ValueError(f"the verdict is not from {self.gpu}")
            without = {build.ptx_sha256 for build in self.attempt.builds} - self.code.keys()
            if without:
                raise ValueError(f"there is no digest of the code of PTX {min(without)[:12]}")
        if self.bench is not None and self.bench.gpu != self.gpu:
            raise ValueError(f"the times are not from {self.gpu}")
        gpu = gpu_of_device(self.gpu)
        if self.tuned is not None and (gpu is None or self.tuned.gpu != gpu.name):
            raise ValueError(f"the tuned default is not for {self.gpu}")

    @property
    def sha256(self) -> Sha256:
        """Digest of all fields of the JSON in canonical form; detects damage, not deliberate changes."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        written = {name: value for name, value in values.items() if value or name not in self.sparse}
        return hashlib.sha256(canonical(to_jsonable_python(written))).hexdigest()


AnyRecord = StoredRecord | AttemptRecord | BenchRecord
"""Contents of a folder of records; the other two are the outputs of ``repro`` and ``bench --json``."""


def sealed(**about: Any) -> StoredRecord:
    """A record made now by this version of the lab; ``about`` has the other fields of :class:`StoredRecord`."""
    from sdpalab.version import __version__

    now = datetime.now(timezone.utc).replace(microsecond=0)
    return StoredRecord(**{"lab": __version__, "when": now, **about})


def check_writable(folder: Path | None = None) -> Path:
    """The folder of records, created if missing. Called first, so that a long job fails early.

    Raises
    ------
    MachineError
        If the folder is not writable.
    """
    folder = folder or records_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{secrets.token_hex(4)}"
        write_atomically(probe, b"\n")
        probe.unlink()
    except OSError as error:
        raise _unwritable(folder, error) from None
    return folder


def keep(record: StoredRecord, name: str, folder: Path | None = None) -> Path:
    """Write the record to ``<folder>/<gpu>/<name>-<time>-<random>.json`` and return its path.

    Parameters
    ----------
    record : StoredRecord
    name : str
        Subject of the record, such as the kernel's name.
    folder : Path, optional
        Default: the user's, :func:`~sdpalab.evidence.store.folders.records_folder`.

    Raises
    ------
    MachineError
        If it cannot be written, for lack of space or permission.
    """
    folder = (folder or records_folder()) / folder_of(record.gpu)
    path = folder / f"{name}-{record.when:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, canonical(record.to_dict()))
    except OSError as error:
        raise _unwritable(folder, error) from None
    return path


def _unwritable(folder: Path, error: OSError) -> MachineError:
    return MachineError(
        f"records cannot be kept in {folder}: {error.strerror}; SDPALAB_DATA_DIR names another data folder"
    )


def read_records(folder: Path, *, own: bool = False) -> Iterator[tuple[Path, AnyRecord]]:
    """All records among the JSON files of one GPU's folder, sorted by file name.

    Parameters
    ----------
    folder : Path
        Such as ``evidence/h200``; it need not exist.
    own : bool
        Whether the folder is the user's: only records with a digest count there, and other files are foreign.

    Warns
    -----
    RecordWarning
        For each file that is damaged or foreign.
    """
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError as error:
        warnings.warn(f"{folder} cannot be read: {error.strerror}", RecordWarning, stacklevel=2)
        return
    for path in paths:
        try:
            record = _read(path, own)
        except (OSError, ValueError) as error:
            message = " ".join(str(error).split())[:300]
            warnings.warn(f"{path} is not a valid record and is ignored: {message}", RecordWarning, stacklevel=2)
            continue
        if record is not None:
            yield path, record


def _read(path: Path, own: bool) -> AnyRecord | None:
    """The record of a file; None for another known kind of file."""
    data = json.loads(path.read_bytes())
    if isinstance(data, dict) and data.get("record") == "kept":
        return StoredRecord.from_dict(data)
    if own:
        raise ValueError("it is not a record that sdpalab prove keeps")
    if isinstance(data, dict) and {"kernel", "builds", "verdict"} <= data.keys():
        return AttemptRecord.from_dict(data)
    if isinstance(data, dict) and data.get("record") == "bench":
        return BenchRecord.from_dict(data)
    return None
