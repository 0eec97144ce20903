"""Accepted jobs in an SQLite database: none is lost, and each has one result.

A job is ``queued``, ``running`` or ``done``. A running job has a lease: the name of the server process that runs it. A
server holds a lock on a file of its name; the lock of a process that ended is free, and its jobs are queued again.
Several servers can share one database on one machine. Transactions are synchronous: an accepted job survives a crash.

See sqlite.org/wal.html and sqlite.org/isolation.html.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpalab.errors import MachineError

__all__ = ["JobStore", "QueueFull", "StoredJob"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    digest TEXT NOT NULL,
    request TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued',
    lease TEXT,
    starts INTEGER NOT NULL DEFAULT 0,
    accepted REAL NOT NULL,
    begun REAL,
    ended REAL,
    versions TEXT,
    repeatable INTEGER NOT NULL DEFAULT 0,
    answered_from TEXT,
    result TEXT
);
CREATE INDEX IF NOT EXISTS by_state ON jobs (state, number);
CREATE INDEX IF NOT EXISTS by_digest ON jobs (digest, state);
CREATE INDEX IF NOT EXISTS by_tenant ON jobs (tenant, number);
"""
_COLUMNS = "id, tenant, digest, request, state, starts, accepted, begun, ended, answered_from, result"
_NEXT = """
UPDATE jobs SET state = 'running', lease = ?, starts = starts + 1, begun = ? WHERE number = (
    SELECT number FROM jobs WHERE state = 'queued'
    AND digest NOT IN (SELECT digest FROM jobs WHERE state = 'running') ORDER BY number LIMIT 1
) RETURNING """
_PRUNED_AT_ONCE = 1000


class QueueFull(Exception):
    """The queue has no space for a submission."""


@dataclass(frozen=True)
class StoredJob:
    """One job.

    Attributes
    ----------
    id : str
        Unguessable.
    tenant : str
        The owner of the job.
    digest : str
        Digest of the request: equal requests have equal digests.
    request : mapping
        Plain JSON values.
    state : {"queued", "running", "done"}
    starts : int
        How often a worker began it: more than once after the end of a server process.
    accepted, begun, ended : float
        Seconds since 1970; None if that has not happened.
    answered_from : str, optional
        The job whose result this one shares.
    result : mapping, optional
        Plain JSON values of a job that is done.
    """

    id: str
    tenant: str
    digest: str
    request: Mapping[str, Any]
    state: str
    starts: int
    accepted: float
    begun: float | None
    ended: float | None
    answered_from: str | None
    result: Mapping[str, Any] | None


class JobStore:
    """The jobs of a folder, for one server process.

    Parameters
    ----------
    folder : Path
        Has the database and the locks of its servers; created if missing.
    versions : str
        Versions of the code behind a result. A recorded result answers a request only under equal versions.
    queue : int
        Most queued jobs.
    keep : int
        Most jobs that are done; older ones are removed.

    Attributes
    ----------
    name : str
        The name of this server process.
    work : Path
        Has a folder for each server's running jobs.

    Raises
    ------
    MachineError
        If the folder or the database cannot be opened.
    """

    def __init__(self, folder: Path, versions: str, *, queue: int = 10_000, keep: int = 100_000) -> None:
        self._versions, self._queue, self._keep = versions, queue, keep
        self._lock = threading.Lock()
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._servers, self.work = folder / "servers", folder / "work"
        try:
            self._servers.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._alive = os.open(self._servers / self.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _lock_file(self._alive, wait=True)
            self._database = sqlite3.connect(
                folder / "jobs.sqlite", timeout=30.0, isolation_level=None, check_same_thread=False
            )
            for line in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"):
                self._database.execute(line).fetchall()
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise MachineError(f"the jobs in {folder} cannot be opened: {error}") from None

    def accept(self, tenant: str, submissions: Sequence[tuple[str, Mapping[str, Any]]]) -> list[StoredJob]:
        """Store jobs, all or none; one whose result is recorded under the same versions is done at once.

        Parameters
        ----------
        submissions : sequence of (str, mapping)
            Digest and request of each.

        Raises
        ------
        QueueFull
            If there is no space for all of them.
        """
        jobs = [(secrets.token_urlsafe(12), *each) for each in submissions]
        with self._transaction() as run:
            answers = {digest: self._recorded(digest) for _, digest, _ in jobs}
            waiting = sum(answers[digest] is None for _, digest, _ in jobs)
            if waiting and self._count("queued") + waiting > self._queue:
                raise QueueFull(f"{self._count('queued')} jobs wait, and at most {self._queue} may")
            now = time.time()
            for identifier, digest, request in jobs:
                row = identifier, tenant, digest, json.dumps(request), now
                run("INSERT INTO jobs (id, tenant, digest, request, accepted) VALUES (?, ?, ?, ?, ?)", row)
                if (answer := answers[digest]) is not None:
                    self._answer("id", identifier, *answer)
            return [self._get(identifier) for identifier, _, _ in jobs]

    def claim(self) -> StoredJob | None:
        """Lease the oldest queued job; None if there is none. A request equal to a running one waits for its result."""
        with self._transaction() as run:
            row = run(_NEXT + _COLUMNS, (self.name, time.time())).fetchone()
            return _job(row) if row else None

    def finish(self, job: StoredJob, result: Mapping[str, Any], *, repeatable: bool) -> bool:
        """Store the result of a job that this process leased; False if it has lost the lease.

        ``repeatable``: the result also answers equal requests, including those that wait.
        """
        text = json.dumps(result)
        with self._transaction() as run:
            ended = run(
                "UPDATE jobs SET state = 'done', lease = NULL, ended = ?, versions = ?, repeatable = ?, result = ? "
                "WHERE id = ? AND state = 'running' AND lease = ?",
                (time.time(), self._versions, repeatable, text, job.id, self.name),
            ).rowcount
            if ended and repeatable:
                self._answer("digest", job.digest, job.id, text)
            if ended and self._count("done") >= self._keep + _PRUNED_AT_ONCE:
                oldest = "SELECT number FROM jobs WHERE state = 'done' ORDER BY number LIMIT ?"
                run(f"DELETE FROM jobs WHERE number IN ({oldest})", (_PRUNED_AT_ONCE,))
            return bool(ended)

    def give_back(self, job: StoredJob) -> None:
        """Queue a job again that this process leased and did not finish."""
        with self._transaction() as run:
            back = "UPDATE jobs SET state = 'queued', lease = NULL, begun = NULL WHERE id = ? AND lease = ?"
            run(back, (job.id, self.name))

    def recover(self) -> int:
        """Queue the running jobs of server processes that ended, and remove their folders; returns their number."""
        with self._transaction() as run:
            names = {row[0] for row in run("SELECT DISTINCT lease FROM jobs WHERE state = 'running'")}
            names |= {each.name for each in self._servers.iterdir()}
            ended = [name for name in sorted(names) if self._ended(name)]
            marks = ", ".join("?" * len(ended))
            back = f"UPDATE jobs SET state = 'queued', lease = NULL, begun = NULL WHERE lease IN ({marks})"
            count: int = run(back, ended).rowcount
        for name in ended:
            (self._servers / name).unlink(missing_ok=True)
            shutil.rmtree(self.work / name, ignore_errors=True)
        return count

    def get(self, identifier: str, tenant: str) -> StoredJob | None:
        """A tenant's job."""
        with self._lock:
            row = self._database.execute(
                f"SELECT {_COLUMNS} FROM jobs WHERE id = ? AND tenant = ?", (identifier, tenant)
            ).fetchone()
        return _job(row) if row else None

    def listed(
        self, tenant: str, *, state: str | None = None, limit: int = 100, before: str | None = None
    ) -> list[StoredJob]:
        """A tenant's jobs, the newest first; those older than ``before``."""
        wanted, values = ["tenant = ?"], [tenant]
        if state is not None:
            wanted, values = [*wanted, "state = ?"], [*values, state]
        if before is not None:
            wanted, values = [*wanted, "number < (SELECT number FROM jobs WHERE id = ?)"], [*values, before]
        text = f"SELECT {_COLUMNS} FROM jobs WHERE {' AND '.join(wanted)} ORDER BY number DESC LIMIT ?"
        with self._lock:
            rows = self._database.execute(text, (*values, limit)).fetchall()
        return [_job(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """Jobs by state."""
        with self._lock:
            return {state: self._count(state) for state in ("queued", "running", "done")}

    def oldest_seconds(self) -> float:
        """Age of the oldest queued job; 0 if none is queued."""
        with self._lock:
            oldest = self._database.execute("SELECT MIN(accepted) FROM jobs WHERE state = 'queued'").fetchone()[0]
        return 0.0 if oldest is None else max(0.0, time.time() - oldest)

    def close(self) -> None:
        """Close the database, and free this process's lock."""
        with self._lock:
            self._database.close()
            with contextlib.suppress(OSError):
                (self._servers / self.name).unlink()
                os.close(self._alive)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database.execute
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def _recorded(self, digest: str) -> tuple[str, str] | None:
        """Identifier and result of a job whose result answers this request."""
        answer: tuple[str, str] | None = self._database.execute(
            "SELECT id, result FROM jobs WHERE digest = ? AND state = 'done' AND repeatable AND versions = ? LIMIT 1",
            (digest, self._versions),
        ).fetchone()
        return answer

    def _answer(self, column: str, value: str, source: str, result: str) -> None:
        """Answer queued jobs from the record of another."""
        self._database.execute(
            "UPDATE jobs SET state = 'done', ended = ?, versions = ?, answered_from = ?, result = ? "
            f"WHERE {column} = ? AND state = 'queued'",
            (time.time(), self._versions, source, result, value),
        )

    def _count(self, state: str) -> int:
        count: int = self._database.execute("SELECT COUNT(*) FROM jobs WHERE state = ?", (state,)).fetchone()[0]
        return count

    def _get(self, identifier: str) -> StoredJob:
        return _job(self._database.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (identifier,)).fetchone())

    def _ended(self, name: str) -> bool:
        """Whether a server process has ended: its lock is free, or its file is gone. The own lock is not free."""
        try:
            file = os.open(self._servers / name, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            _lock_file(file, wait=False)
        except OSError:
            return False
        finally:
            os.close(file)
        return True


def _lock_file(file: int, *, wait: bool) -> None:
    """Lock an open file; OSError if another process has its lock and ``wait`` is false."""
    import fcntl  # not on Windows, where no server starts

    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _job(row: Sequence[Any]) -> StoredJob:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    values["request"] = json.loads(values["request"])
    values["result"] = values["result"] and json.loads(values["result"])
    return StoredJob(**values)
