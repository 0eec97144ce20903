"""Facts that a candidate of a public format states, from a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.sandbox.candidate import Candidate, prepare
from sdpalab.judge.sandbox.candidate_server import SERVER
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota
from sdpalab.judge.sandbox.messages import CandidateReply
from sdpalab.judge.sandbox.wire import WireError
from sdpalab.status import Status
from warpsan.build import Cache
from warpsan.folders import NATIVE, SHARED_CACHE

__all__ = ["facts_of"]


def facts_of(candidate: Candidate, *, seconds: float = 120.0) -> Mapping[str, Any]:
    """The facts of a candidate whose function has ``facts``; the candidate is not trusted.

    Raises
    ------
    UserError
        If it does not load, or raises.
    MachineError
        If its process does not start.
    """
    spec, shared = prepare(candidate), Cache().root
    process = GuardedProcess(
        SERVER,
        Quota(cpu_seconds=int(2 * seconds)),
        untrusted=True,
        read=(*spec.files, shared / NATIVE),
        environment={SHARED_CACHE: str(shared)},
    ).await_ready()
    deadline = time.monotonic() + seconds
    try:
        for order in ({"do": "load", "kind": spec.kind, "spec": spec.spec}, {"do": "facts"}):
            arrays = {"pickle": spec.pickle} if order["do"] == "load" else {}
            try:
                reply, _ = process.ask(CandidateReply, order, arrays, 0, deadline)
            except WireError as error:
                raise process.no_answer(error, "the submission does not answer", seconds) from None
            if reply.status is not None:
                kind = MachineError if reply.status == Status.INFRA_ERROR else UserError
                raise kind(f"it {reply.reason}" if reply.status == Status.CRASHED else reply.reason)
        return reply.facts or {}
    finally:
        process.close()
