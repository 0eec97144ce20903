"""The application without workers: tokens, bodies, limits, and the requests that it accepts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from sdpalab import Evaluation, Status
from sdpalab.service.app import Service, application
from sdpalab.service.pool import Pool
from sdpalab.service.store import JobStore

TOKEN, OTHER = "a token of one tenant", "a token of another tenant"
GOOD = {"source": "def attention(q, k, v):\n    return q\n", "task": "small", "stages": ["tiny", "compile"]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path, "1", queue=3)
    yield store
    store.close()


@pytest.fixture
def client(store: JobStore) -> TestClient:
    pool = Pool(store, [], 1 << 30)
    limits: dict[str, Any] = {"most_body": 4000, "body_seconds": 0.2, "tokens": (TOKEN, OTHER)}
    service = Service(store, pool, "1", "none", confined=True, workers=1, **limits)
    pool.on_end = service.ended
    headers = {"Authorization": f"Bearer {TOKEN}"}
    client = TestClient(application(service), headers=headers, raise_server_exceptions=False)
    client.app_state["service"] = service
    return client


def finish(store: JobStore) -> None:
    """Give the oldest job a result, as a worker does."""
    job = store.claim()
    assert job is not None
    evaluation = Evaluation(Status.INCORRECT, "wrong", {"tiny": "INCORRECT"}).to_dict()
    result = {"evaluation": evaluation, "confinement": "namespaces", "cpu_seconds": 0.5}
    assert store.finish(job, result, repeatable=True)


def test_a_job_is_accepted_polled_and_answered_from_the_record(client: TestClient, store: JobStore) -> None:
    answer = client.post("/jobs", json=GOOD)
    assert answer.status_code == 202
    job = answer.json()
    assert (job["state"], job["evaluation"], job["stages"]) == ("queued", None, ["compile", "tiny"])
    place = answer.headers["location"]
    begin = time.monotonic()
    threading.Timer(0.3, finish, [store]).start()
    done = client.get(place, params={"wait": 20}).json()
    assert time.monotonic() - begin < 10
    assert (done["state"], done["evaluation"]["status"], done["confinement"]) == ("done", "INCORRECT", "namespaces")
    assert done["text"] == "INCORRECT at tiny; wrong"
    again = client.post("/jobs", json=GOOD)
    assert (again.status_code, again.json()["answered_from"]) == (200, job["id"])
    assert client.post("/jobs", json={**GOOD, "budget_s": 61}).json()["state"] == "queued"
    listed = client.get("/jobs", params={"state": "done", "limit": 1}).json()["jobs"]
    assert [each["id"] for each in listed] == [again.json()["id"]]


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}"])
@pytest.mark.parametrize("ask", ["POST /jobs", "GET /jobs", "GET /tasks", "GET /metrics"])
def test_a_request_needs_a_token(client: TestClient, header: str | None, ask: str) -> None:
    client.headers.pop("Authorization")
    headers = {} if header is None else {"Authorization": header}
    answer = client.request(*ask.split(), headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert client.get("/health").status_code == 200


def test_a_tenant_sees_its_own_jobs_only(client: TestClient) -> None:
    place = client.post("/jobs", json=GOOD).headers["location"]
    assert client.get(place).status_code == 200
    client.headers["Authorization"] = f"Bearer {OTHER}"
    assert client.get(place).status_code == 404
    assert client.get("/jobs").json() == {"jobs": []}


BAD: list[tuple[Any, str]] = [
    ([], "valid dictionary"),
    ({}, "a submission has either source or files"),
    ({**GOOD, "files": {}}, "a submission has either source or files"),
    ({**GOOD, "task": "none"}, "task: there is no task 'none'; the tasks are mission"),
    ({**GOOD, "task": {"batch": 1}}, "task: a problem missing"),
    ({**GOOD, "task": {"batch": 1, "heads": 1, "seq_q": -1, "head_dim": 64}}, "task: "),
    ({**GOOD, "stages": ["slow"]}, "stages: there is no stage 'slow'"),
    ({**GOOD, "budget_s": 1e9}, "budget_s: "),
    ({**GOOD, "more": 1}, "more: "),
    ({**GOOD, "entry": "../x"}, "entry 'candidate.py:../x' is not"),
    ({"files": {"../x.py": ""}}, "files: '../x.py' is not a plain file name"),
    ({"files": {"x.sh": ""}}, "files: 'x.sh' is not a plain file name"),
    ({"files": {"a.py": "", "b.py": ""}}, "entry must name one of the 2 Python files"),
    ({"files": {"a.py": ""}, "entry": "/etc/x.py"}, "entry '/etc/x.py' is not"),
    ({"submissions": []}, "a batch is one list"),
    ({"submissions": [GOOD, {}]}, "submissions.1: a submission has"),
]


@pytest.mark.parametrize(("body", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_an_invalid_submission_is_one_sentence(client: TestClient, body: Any, sentence: str) -> None:
    answer = client.post("/jobs", json=body)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]
    assert client.get("/jobs").json() == {"jobs": []}


def test_hostile_bodies(client: TestClient) -> None:
    long = json.dumps({**GOOD, "source": "x" * 4000}).encode()
    pieces = (long[n : n + 500] for n in range(0, len(long), 500))
    for content, code in ((long, 413), (pieces, 413), (b"[" * 3000, 400), (b"\xff", 400), (b"", 400)):
        answer = client.post("/jobs", content=content)
        assert (answer.status_code, list(answer.json())) == (code, ["error"]), content
    assert client.post("/jobs", content=b"{}", headers={"Content-Length": "9" * 5000}).status_code == 413
    assert client.get("/jobs", params={"limit": "nan"}).status_code == 400
    assert client.get("/metrics").text.count('sdpalab_refused_total{code="413"} 3\n') == 1


def test_a_full_queue_is_429_and_a_batch_is_whole(client: TestClient) -> None:
    many = [{**GOOD, "budget_s": n} for n in range(1, 5)]
    full = client.post("/jobs", json={"submissions": many})
    assert full.status_code == 429
    assert 1 <= int(full.headers["retry-after"]) <= 600
    assert client.get("/jobs").json() == {"jobs": []}
    answer = client.post("/jobs", json={"submissions": many[:3]})
    assert answer.status_code == 202
    assert [each["budget_s"] for each in answer.json()["jobs"]] == [1, 2, 3]
    assert client.post("/jobs", json=many[3]).status_code == 429


def test_a_service_that_stops_accepts_nothing(client: TestClient) -> None:
    service = client.app_state["service"]
    service.stopping = lambda: True
    assert client.post("/jobs", json=GOOD).status_code == 503
    assert client.get("/health").status_code == 503
    assert client.get("/jobs").json() == {"jobs": []}


def test_tasks(client: TestClient) -> None:
    tasks = client.get("/tasks").json()
    assert tasks["stages"] == ["compile", "tiny", "quick", "full"]
    assert {"name", "problem"} == set(tasks["tasks"][0])
