"""Which code the result of a job rests on."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

from sdpalab.version import __version__

__all__ = ["code_version", "judge_version"]

_PACKAGE = Path(__file__).resolve().parents[1]
_JUDGE = ("judge", "inputs", "sim", "compile", "run")
"""Rooms whose code decides what passes: judge, inputs, simulator, builds and the executors of plans."""


@cache
def judge_version() -> str:
    """The first 16 hex digits of a sha256 over the source of the judge, and of all that a verdict rests on."""
    digest = sha256()
    for room in _JUDGE:
        for path in sorted((_PACKAGE / room).rglob("*.py")):
            text = path.read_bytes()
            digest.update(f"{path.relative_to(_PACKAGE)} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:16]


def code_version() -> str:
    """Versions of the lab and of the judge: what a job's result depends on besides its inputs."""
    return f"{__version__} {judge_version()}"
