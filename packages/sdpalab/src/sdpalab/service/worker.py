"""The process of a service's worker: ``worker.main(read_fd, write_fd)``, a worker of jobs with a warm fork server."""

from __future__ import annotations

from sdpalab.jobs.worker import run_worker

__all__ = ["main"]


def main(read_fd: int, write_fd: int) -> None:
    """Serve the service until it closes the wire."""
    run_worker(read_fd, write_fd, warm=True)
