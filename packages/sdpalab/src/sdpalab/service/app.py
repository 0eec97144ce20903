"""HTTP in front of the queue: a Starlette application.

``POST /jobs`` submits one submission or a batch; ``GET /jobs/ID`` polls, ``?wait=S`` until it is done; ``GET /jobs``
lists; ``GET /tasks``, ``GET /health`` and ``GET /metrics`` describe the service. Each answer is JSON, but that of
``/metrics``. Refusals are ``{"error": sentence}``: 400 for an invalid submission, 401 without a valid token, 404, 408
for a slow body, 413 for a long one, 429 with ``Retry-After`` for a full queue, 503 while the service stops.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sdpalab.service.answers import MOST_BATCH, Health, JobList, Refusal, answer_of, tasks
from sdpalab.service.metrics import metrics_text
from sdpalab.service.pool import Pool
from sdpalab.service.request import BadRequest, EvaluationRequest, digest_of
from sdpalab.service.store import JobStore, QueueFull

__all__ = ["Service", "application"]

MOST_WAIT = 60.0
"""Longest wait of one poll, in seconds."""
_SLICE = 1.0
"""Seconds after which a waiting poll looks again by itself."""
_MOST_LISTED = 1000
_ANYBODY = "anybody"
"""Tenant of a service without tokens."""


@dataclass
class Service:
    """State of the application.

    Attributes
    ----------
    store, pool
    versions, confinement : str
        As the workers stated them.
    confined : bool
        Whether the candidates' processes are confined.
    tokens : sequence of str
        Bearer tokens; each is a tenant, who sees only its own jobs. Empty: requests need none.
    most_body : int
        Most bytes of a request's body.
    body_seconds : float
        Most seconds in which a body arrives.
    stopping : callable
        Whether the server has been asked to stop.
    """

    store: JobStore
    pool: Pool
    versions: str
    confinement: str
    confined: bool
    workers: int
    tokens: Sequence[str] = ()
    most_body: int = 16 << 20
    body_seconds: float = 30.0
    stopping: Callable[[], bool] = lambda: False
    refused: Counter[int] = field(default_factory=Counter)
    waiting: dict[str, asyncio.Event] = field(default_factory=dict)
    loop: asyncio.AbstractEventLoop | None = None

    def ended(self, identifier: str) -> None:
        """A job has ended: wake its polls; called in any thread."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._wake, identifier)

    def _wake(self, identifier: str) -> None:
        if identifier in self.waiting:
            self.waiting.pop(identifier).set()

    def tenant(self, request: Request) -> str:
        """The tenant of a request; raises 401."""
        if not self.tokens:
            return _ANYBODY
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        stated = hashlib.sha256(given.strip().encode()).hexdigest()
        known = [hashlib.sha256(token.encode()).hexdigest() for token in self.tokens]
        matches = [hmac.compare_digest(stated, each) for each in known]  # all of them, in equal time
        if kind.lower() != "bearer" or not any(matches):
            raise HTTPException(401, "a request needs the header Authorization: Bearer TOKEN with a valid token")
        return stated[:32]

    async def body(self, request: Request) -> Any:
        """The JSON body of a request, of bounded size; raises 400, 408 and 413."""
        length = request.headers.get("content-length", "0")
        too_long = HTTPException(413, f"the body is longer than {self.most_body} bytes")
        if not length.isdigit() or len(length) > 18 or int(length) > self.most_body:
            raise too_long
        data = bytearray()

        async def receive() -> None:
            async for chunk in request.stream():
                if len(data) + len(chunk) > self.most_body:
                    raise too_long
                data.extend(chunk)

        try:
            await asyncio.wait_for(receive(), self.body_seconds)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {self.body_seconds:g} s") from None
        except ClientDisconnect:
            raise HTTPException(400, "the body ended early") from None
        try:
            return await run_in_threadpool(json.loads, bytes(data))
        except (ValueError, RecursionError):
            raise HTTPException(400, "the body is not JSON") from None

    def retry_seconds(self) -> int:
        """Seconds in which a full queue probably has space."""
        judged = max(1, sum(self.pool.ended.values()))
        each = sum(self.pool.cpu_seconds.values()) / judged or 1.0
        return min(600, max(1, math.ceil(each * self.store.counts()["queued"] / self.workers / 10)))


def application(service: Service) -> Starlette:
    """The application of a service."""

    async def submit(request: Request) -> Response:
        tenant = service.tenant(request)
        if service.stopping():
            raise HTTPException(503, "the service stops", {"Retry-After": "10"})
        body = await service.body(request)
        batch = isinstance(body, dict) and "submissions" in body

        def accept() -> list[Any]:
            submissions = _submissions(body) if batch else [EvaluationRequest.of(body)]
            requests = [each.request() for each in submissions]
            pairs = [(digest_of(each, service.confined, service.pool.memory_bytes), each) for each in requests]
            return [answer_of(job) for job in service.store.accept(tenant, pairs)]

        try:
            answers = await run_in_threadpool(accept)
        except BadRequest as error:
            raise HTTPException(400, str(error)) from None
        except QueueFull as full:
            raise HTTPException(429, str(full), {"Retry-After": str(service.retry_seconds())}) from None
        service.pool.wake()
        code = 200 if all(each.state == "done" for each in answers) else 202
        if batch:
            return _json(JobList(jobs=answers), code)
        return _json(answers[0], code, {"Location": f"/jobs/{answers[0].id}"})

    async def poll(request: Request) -> Response:
        tenant, identifier = service.tenant(request), request.path_params["id"]
        deadline = asyncio.get_running_loop().time() + _number(request, "wait", MOST_WAIT)
        while True:
            event = service.waiting.setdefault(identifier, asyncio.Event())
            job = await run_in_threadpool(service.store.get, identifier, tenant)
            left = deadline - asyncio.get_running_loop().time()
            if job is None or job.state == "done" or left <= 0 or service.stopping():
                service.waiting.pop(identifier, None)
                event.set()
                break
            try:
                await asyncio.wait_for(event.wait(), min(left, _SLICE))
            except asyncio.TimeoutError:
                continue
        if job is None:
            raise HTTPException(404, "there is no such job")
        return _json(await run_in_threadpool(answer_of, job))

    async def listed(request: Request) -> Response:
        tenant, query = service.tenant(request), request.query_params
        state, before = query.get("state"), query.get("before")
        if state not in (None, "queued", "running", "done"):
            raise HTTPException(400, "state must be queued, running or done")
        limit = int(_number(request, "limit", _MOST_LISTED, 100))

        def answers() -> JobList:
            jobs = service.store.listed(tenant, state=state, limit=limit, before=before)
            return JobList(jobs=[answer_of(job) for job in jobs])

        return _json(await run_in_threadpool(answers))

    async def described(request: Request) -> Response:
        service.tenant(request)
        return _json(tasks())

    async def health(_: Request) -> Response:
        answer = await run_in_threadpool(_health, service)
        return _json(answer, 200 if answer.status == "ok" else 503)

    async def metrics(request: Request) -> Response:
        service.tenant(request)
        text = await run_in_threadpool(metrics_text, service.store, service.pool, service.refused)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        service.refused[error.status_code] += 1
        challenge = {"WWW-Authenticate": "Bearer"} if error.status_code == 401 else {}
        # The rest of a body that was not read must not be taken for a request.
        ending = {"Connection": "close"} if error.status_code in (401, 408, 413, 503) else {}
        headers = {**(error.headers or {}), **challenge, **ending}
        return _json(Refusal(error=error.detail), error.status_code, headers)

    async def failed(_: Request, error: Exception) -> Response:
        service.refused[500] += 1
        return _json(Refusal(error=f"the service failed: {type(error).__name__}"), 500)

    return Starlette(
        routes=[
            Route("/jobs", submit, methods=["POST"]),
            Route("/jobs", listed),
            Route("/jobs/{id}", poll),
            Route("/tasks", described),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        exception_handlers={HTTPException: refuse, Exception: failed},
    )


def _submissions(body: dict[str, Any]) -> list[EvaluationRequest]:
    many = body["submissions"]
    if len(body) != 1 or not isinstance(many, list) or not 1 <= len(many) <= MOST_BATCH:
        raise BadRequest(f"a batch is one list, submissions, of 1 to {MOST_BATCH} entries")
    requests = []
    for number, each in enumerate(many):
        try:
            requests.append(EvaluationRequest.of(each))
        except BadRequest as error:
            raise BadRequest(f"submissions.{number}: {error}") from None
    return requests


def _health(service: Service) -> Health:
    counts = service.store.counts()
    failed, stopping = bool(service.pool.failure), service.stopping()
    return Health(
        status="failed" if failed else "stopping" if stopping else "ok",
        reason=service.pool.failure,
        versions=service.versions,
        confinement=service.confinement,
        workers=service.workers,
        running=len(service.pool.running),
        queued=counts["queued"],
        oldest_s=service.store.oldest_seconds(),
    )


def _number(request: Request, name: str, most: float, default: float = 0.0) -> float:
    text = request.query_params.get(name)
    try:
        value = float(text) if text is not None else default
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise HTTPException(400, f"{name} must be a number from 0 to {most:g}")
    return value


def _json(answer: BaseModel, code: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(answer.model_dump_json(), code, headers, "application/json")
