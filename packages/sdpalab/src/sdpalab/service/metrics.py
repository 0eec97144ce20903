"""The service's counters in Prometheus's text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sdpalab.service.pool import Pool
from sdpalab.service.store import JobStore
from warpsan.host import usable_cpus

__all__ = ["metrics_text"]

Sample = tuple[Mapping[str, str], float]


def metrics_text(store: JobStore, pool: Pool, refused: Mapping[int, int]) -> str:
    """All metrics: those of the store are of all servers, the others of this process."""
    jobs = [({"state": state}, count) for state, count in store.counts().items()]
    ended = [({"stage": stage, "status": status}, count) for (stage, status), count in sorted(pool.ended.items())]
    cpu = [({"stage": stage}, seconds) for stage, seconds in sorted(pool.cpu_seconds.items())]
    codes = [({"code": str(code)}, count) for code, count in sorted(refused.items())]
    parts = [
        _metric("sdpalab_jobs", "gauge", "Jobs in the database.", jobs),
        _metric("sdpalab_running_jobs", "gauge", "Jobs in workers of this process.", [({}, len(pool.running))]),
        _metric("sdpalab_judged_total", "counter", "Judged jobs by last stage and status.", ended),
        _metric("sdpalab_cpu_seconds_total", "counter", "CPU seconds of judged jobs by last stage.", cpu),
        _metric(
            "sdpalab_wait_seconds_total", "counter", "Seconds from acceptance to begin.", [({}, pool.waited_seconds)]
        ),
        _metric("sdpalab_refused_total", "counter", "Refused requests by HTTP status.", codes),
        _metric("sdpalab_usable_cpus", "gauge", "CPUs of this process.", [({}, usable_cpus())]),
    ]
    return "".join(parts)


def _metric(name: str, kind: str, about: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        stated = ",".join(f'{key}="{text}"' for key, text in labels.items())
        lines.append(f"{name}{{{stated}}} {value:g}" if stated else f"{name} {value:g}")
    return "\n".join(lines) + "\n"
