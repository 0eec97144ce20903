"""Records of campaigns, which are long runs: the result with its time, commit and command."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

from sdpalab.errors import UserError
from sdpalab.evidence.environment import git, repository

__all__ = ["Campaign"]


class Campaign:
    """A campaign that begins now, on the current source.

    Parameters
    ----------
    name : str
        Name, such as ``deletion``.
    command : str
        The command that repeats it.
    sources : sequence of str
        Paths in the repository that determine the result; uncommitted changes there are recorded.
    packages : sequence of str
        Packages whose versions affect the result.
    """

    def __init__(
        self, name: str, command: str, *, sources: Sequence[str] = ("packages",), packages: Sequence[str] = ("numpy",)
    ) -> None:
        self._start = time.monotonic()
        self._root = repository()
        commit, changes = None, ""
        if self._root is not None:
            commit = (git(self._root, "rev-parse", "--short", "HEAD") or "").strip()
            changes = git(self._root, "status", "--porcelain", "--", *sources) or ""
        self._name, self._commit = name, commit or "unknown"
        self._head = {
            "campaign": name,
            "commit": self._commit,
            "changed_since": bool(changes),
            "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": command,
            "python": python_version(),
            **{package: metadata.version(package) for package in packages},
        }

    def record(self, **content: Any) -> dict[str, Any]:
        """The record: its provenance, the seconds until now, and ``content``."""
        return {**self._head, "seconds": round(time.monotonic() - self._start, 1), **content}

    def place(self, out: Path | None = None, *, folder: str = "campaigns") -> Path:
        """``out``, or by default ``evidence/FOLDER/NAME-COMMIT.json`` of the repository.

        Raises
        ------
        UserError
            If there is neither a repository nor ``out``.
        """
        if out is not None:
            return out
        if self._root is None:
            raise UserError("there is no repository to keep the record in: say where with --out FILE")
        return self._root / "evidence" / folder / f"{self._name}-{self._commit}.json"

    def write(self, record: dict[str, Any], out: Path | None = None, *, folder: str = "campaigns") -> Path:
        """Write a record to :meth:`place`, and return that path."""
        path = self.place(out, folder=folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")
        return path
