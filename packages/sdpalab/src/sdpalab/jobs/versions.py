"""Versions of the code that determines the result of a job."""

from __future__ import annotations

from functools import cache

from sdpalab.kernels.import_graph import digest_of
from sdpalab.version import __version__

__all__ = ["code_version", "judge_version"]


@cache
def judge_version() -> str:
    """The first 16 hex digits of a sha256 over the source of the judge, and of all modules that it imports."""
    return digest_of("sdpalab.judge.session")[:16]


@cache
def code_version() -> str:
    """Version of the lab and of all code that jobs run, including the judge."""
    return f"{__version__} {digest_of('sdpalab.jobs.kinds')[:16]}"
