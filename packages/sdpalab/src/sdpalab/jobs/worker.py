"""The process that runs jobs: ``worker.main(read_fd, write_fd)``, started under guard by the local executor.

Workers of other executors also call :func:`answer`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from typing import Any

from sdpalab.errors import MachineError, UserError

__all__ = ["STICKY_EXIT", "answer", "main", "run_worker"]

STICKY_EXIT = 75
"""Exit code of a worker whose GPU is unusable: after a CUDA error every further call of the process fails."""


def main(read_fd: int, write_fd: int) -> None:
    """Serve one executor until it closes the wire."""
    run_worker(read_fd, write_fd, warm=False)


def run_worker(read_fd: int, write_fd: int, *, warm: bool) -> None:
    """:func:`main`; ``warm`` as of :func:`sdpalab.judge.sandbox.guarded.fork_server`."""
    from sdpalab.judge.sandbox.guarded import fork_server
    from sdpalab.judge.sandbox.wire import serve

    def reply(order: Mapping[str, Any], arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        if order["cache"]:
            os.environ["WARPSAN_CACHE_DIR"] = order["cache"]
        return answer(order["kind"], order["inputs"], order["code"]), {}

    with fork_server(warm=warm):  # a job may judge, and a worker runs many jobs
        serve(read_fd, write_fd, reply)


def answer(kind: str, inputs: Mapping[str, Any], code: str) -> dict[str, Any]:
    """Run a job; the reply has its result as ``value``, or the reason as ``bad_input`` or ``machine``.

    After an error that makes the GPU unusable the process exits at once: the job is LOST, and a new worker starts.
    """
    from sdpalab.jobs.kinds import function_of
    from sdpalab.jobs.versions import code_version
    from sdpalab.run import KernelFault

    if code != code_version():
        return {"bad_input": f"the worker runs version {code_version()} of the lab, and the job is of {code}"}
    try:
        return {"value": function_of(kind)(inputs)}
    except KernelFault:
        os._exit(STICKY_EXIT)
    except UserError as error:
        return {"bad_input": str(error)}
    except MachineError as error:
        return {"machine": str(error)}
    except Exception as error:  # from the kernel's Python, or a defect of the lab: not a verdict
        traceback.print_exc()
        return {"machine": f"{type(error).__name__}: {error}"}
