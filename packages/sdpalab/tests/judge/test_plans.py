"""A launch plan as data: what is sent arrives, and what is no plan of the problem is refused with a reason."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_candidates import right
from pydantic import ValidationError

from sdpalab.compile import Build, Cache, build
from sdpalab.compile import completed as with_launch_values
from sdpalab.errors import UserError
from sdpalab.judge.sandbox.plan_server import _PlanServer
from sdpalab.judge.sandbox.plans import PlanError, SentPlan, read_plan, send_plan
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.plan import Buffer, Gemm, Launch, LaunchPlan, PtxSource, TiledMap, problem_buffers
from sdpalab.problem import Problem
from sdpalab.run import RunResult
from warpsan.build.triton_compiler import assemble

PROBLEM = Problem(1, 1, 9, 32, seq_kv=12)
BUFFERS = problem_buffers(PROBLEM)
PLAN = right.launch_plan(PROBLEM, Config(GAIN=1))


def changed(**changes: Any) -> LaunchPlan:
    """The plan with other fields of its one step."""
    return replace(PLAN, steps=(replace(PLAN.steps[0], **changes),))


def test_what_is_sent_arrives() -> None:
    arguments = ("q", 7, -0.1, -math.inf, TiledMap("k", (1, 8, 32), "64B", shape=(12, 8, 32)), 1 << 63)
    plan = changed(args=arguments, cluster=(2, 1, 1), grid=(np.int64(4), 1, 1), dynamic_smem=1024, programmatic=True)
    plan = replace(plan, buffers=(*plan.buffers, Buffer("heap", (3, 5), "float8_e4m3fn", "workspace")))
    received = read_plan(send_plan(plan, "sm_89"), BUFFERS)
    (step,) = plan.steps
    assert received.plan() == LaunchPlan(plan.buffers, (replace(step, module=None),))
    assert received.steps[0].code == step.module
    assert read_plan(received.model_dump_json().encode(), BUFFERS) == received


COMPILED = build(right.module(PROBLEM, Config(GAIN=1)))


def with_ptx(**changes: Any) -> bytes:
    """The plan as data, with PTX in place of the source."""
    code = PtxSource("right.py", "source", COMPILED.entry, "sm_89", COMPILED.ptx, "Triton", ("num_warps=4",))
    data = json.loads(send_plan(PLAN, "sm_89"))
    data["steps"][0]["code"] = {**vars(code), "ptx": COMPILED.ptx.decode(), **changes}
    return json.dumps(data).encode()


def test_ptx_is_assembled_here_and_its_digest_is_that_of_what_runs(tmp_path: Path) -> None:
    assert b"cubin" not in send_plan(PLAN, "sm_89")
    (code,) = read_plan(with_ptx(), BUFFERS).builds("sm_89", Cache(tmp_path))
    assert (code.ptx, code.entry) == (COMPILED.ptx, COMPILED.entry)
    assert code.cubin == assemble(COMPILED.ptx, "right.py")[0]
    launch = {"threads": 64, "dynamic_smem": 0, "scratch_params": 2}
    (code,) = read_plan(with_ptx(triton=launch), BUFFERS).builds("sm_89", Cache(tmp_path))
    completed = with_launch_values(PLAN.steps[0], code)
    assert (completed.block, completed.args) == ((64, 1, 1), (*PLAN.steps[0].args, 0, 0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cubin": "another program"}, "steps.0.launch.code"),
        ({"key": "0" * 64, "log": "", "seconds": 0.0}, "steps.0.launch.code"),
        ({"triton": {"threads": 64}}, "PTX from Triton comes with threads, dynamic_smem, scratch_params"),
        ({"triton": {"threads": 64, "dynamic_smem": 0, "scratch_params": 10**9}}, "must be 0 to 8"),
        ({"triton": {"threads": -1, "dynamic_smem": 0, "scratch_params": 0}}, "must be 0 to 1024"),
    ],
)
def test_a_forged_plan_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        read_plan(with_ptx(**changes), BUFFERS)


def test_a_build_with_the_machine_code_of_another_program_is_refused() -> None:
    fields = {**vars(COMPILED), "ptx": COMPILED.ptx.decode(), "cubin": "machine code of another program"}
    data = json.loads(send_plan(PLAN, "sm_89"))
    data["steps"][0]["code"] = fields
    with pytest.raises(PlanError, match=r"steps.0.launch.code"):
        read_plan(json.dumps(data).encode(), BUFFERS)
    with pytest.raises(ValidationError):  # the plan server reads what the judge sends by the same schema
        SentPlan.model_validate_json(json.dumps(data))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arch": "sm_90"}, "its PTX was compiled for sm_90, not sm_89"),
        ({"ptx": COMPILED.ptx.decode().replace(".target sm_89", ".target sm_80")}, "names .target sm_80, not sm_89"),
        ({"ptx": "no text of a program"}, "names no target, not sm_89"),
        ({"ptx": ".version 8.0\n.target sm_89\n.address_size 64\nnonsense"}, "ptxas refuses the PTX"),
    ],
)
def test_ptx_that_is_none_of_the_architecture_is_an_error_of_its_author(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        read_plan(with_ptx(**changes), BUFFERS).builds("sm_89", Cache(tmp_path))


PRODUCT = Gemm("q", "k", "scores", batch=1, m=9, n=12, k=32, transpose_b=True, ldc=16)
SCORES = Buffer("scores", (9, 16), "float32", "workspace")
TICKET = Buffer("ticket", (1,), "int32", "semaphore")


def test_a_product_between_launches_and_a_semaphore_arrive() -> None:
    step = replace(PLAN.steps[0], args=("q", "lse"))
    plan = LaunchPlan((*PLAN.buffers, SCORES, TICKET), (step, replace(PRODUCT, m=np.int64(9)), step))
    received = read_plan(send_plan(plan, "sm_89"), BUFFERS)
    bare = replace(step, module=None)
    assert received.plan() == LaunchPlan(plan.buffers, (bare, PRODUCT, bare))
    assert len(received.builds("sm_89", Cache())) == 2
    assert received.without("lse").plan() == received.plan().without("lse")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"a": "x"}, "names buffer 'x'; the plan has: q, k, v, o, scores"),
        ({"c": "q"}, "reads buffer q and writes it, too"),
        ({"ldc": 0}, "1 matrices 9 x 12 from buffer scores, which has 144 elements"),
        ({"ldc": 8}, "9 x 12 in rows of 8 from buffer scores, which cannot be"),
        ({"lda": -32}, "which cannot be"),
        ({"batch": 0}, "which cannot be"),
        ({"k": 2**40}, "takes 1 matrices 9 x 1099511627776 from buffer q"),
        ({"n": 12.0}, "steps.0.product.n: Input should be a valid integer"),
        ({"transpose_b": 1}, "steps.0.product.transpose_b"),
        ({"host": "code"}, "steps.0.product.host"),
    ],
)
def test_what_is_no_product_of_the_plan(changes: dict[str, Any], words: str) -> None:
    plan = LaunchPlan((*PLAN.buffers, SCORES), (PRODUCT, PLAN.steps[0]))
    data = json.loads(send_plan(plan, "sm_89"))
    data["steps"][0].update(changes)
    with pytest.raises(PlanError, match=words):
        read_plan(json.dumps(data).encode(), BUFFERS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"args": (None,)}, "NoneType"),
        ({"args": ([1],)}, "list"),
        ({"args": (1 << 64,)}, "more than 64 bits"),
        ({"grid": (0, 1, 1)}, "greater than or equal to 1"),
        ({"grid": (1, 1)}, "are not three sizes"),
        ({"block": (32.5, 1, 1)}, "float"),
        ({"dynamic_smem": -1}, "greater than or equal to 0"),
        ({"module": None}, "has no module"),
    ],
)
def test_what_cannot_be_sent(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        send_plan(changed(**changes), "sm_89")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan.pop("steps"), "steps: Field required"),
        (lambda plan: plan.update(steps=[]), "at least 1 item"),
        (lambda plan: plan.update(host="code"), "host: Extra inputs"),
        (lambda plan: plan["steps"][0].update(code="x"), "steps.0.launch.code"),
        (lambda plan: plan["steps"][0].update(args=[True]), "steps.0.launch.args.0"),
        (
            lambda plan: plan["buffers"].pop(),
            r"does not begin with the buffers of its problem: q \[1, 1, 9, 32\], k \[1, 1, 12, 32\]",
        ),
        (lambda plan: plan["buffers"][3].update(role="in"), "does not begin with the buffers"),
        (lambda plan: plan["buffers"].append(Buffer("x", (2,), "object", "workspace").__dict__), "a further buffer"),
        (lambda plan: plan["buffers"].append(Buffer("x", (2,), "float16", "in").__dict__), "a further buffer"),
        (lambda plan: plan["buffers"].append(Buffer("x", (-2,), "float16", "workspace").__dict__), "size below 1"),
        (
            lambda plan: plan["buffers"].append(Buffer("x", (1 << 40,), "int64", "workspace").__dict__),
            "bytes of buffers",
        ),
    ],
)
def test_what_is_no_plan_of_the_problem(change: Callable[[dict[str, Any]], Any], words: str) -> None:
    data = json.loads(send_plan(PLAN, "sm_89"))
    change(data)
    with pytest.raises(PlanError, match=words):
        read_plan(json.dumps(data).encode(), BUFFERS)


def test_a_plan_is_text_and_numbers() -> None:
    launch = Launch((1, 1, 1), (32, 1, 1), ("q",), module=PLAN.steps[0].module)
    data = json.loads(send_plan(LaunchPlan(PLAN.buffers, (launch,)), "sm_89"))
    assert data["steps"][0]["code"]["source"].count("__global__") == 1
    assert [buffer["name"] for buffer in data["buffers"]] == ["q", "k", "v", "o"]


def test_the_log_sum_exp_is_there_as_declared_or_not_at_all() -> None:
    plan = right.launch_plan(PROBLEM, Config(GAIN=1), lse=True)
    data = json.loads(send_plan(plan, "sm_89"))
    received = read_plan(json.dumps(data).encode(), problem_buffers(PROBLEM, lse=True))
    assert received.plan().buffer("lse") == Buffer("lse", (1, 1, 9), "float32", "out")
    bare = received.without("lse")
    assert bare == read_plan(send_plan(PLAN, "sm_89"), BUFFERS)
    assert bare.plan().steps[0].args[-1] == 0
    with pytest.raises(PlanError, match="a further buffer of a launch plan is"):
        read_plan(json.dumps(data).encode(), BUFFERS)
    with pytest.raises(PlanError, match=r"does not begin with the buffers of its problem: q \[.*, lse \["):
        read_plan(send_plan(PLAN, "sm_89"), problem_buffers(PROBLEM, lse=True))
    for changes in ({"shape": (1, 9)}, {"dtype": "float16"}, {"role": "workspace"}):
        other = {**data, "buffers": [*data["buffers"][:-1], {**data["buffers"][-1], **changes}]}
        with pytest.raises(PlanError, match="does not begin with the buffers"):
            read_plan(json.dumps(other).encode(), problem_buffers(PROBLEM, lse=True))


class Loads:
    """Stands for the GPU of a plan server: keeps the builds that it would load."""

    def __init__(self) -> None:
        self.loaded: list[Build] = []

    def run(self, plan: LaunchPlan, inputs: Any, *, poison: int, builds: Sequence[Build]) -> RunResult:
        self.loaded += builds
        return RunResult({"o": np.zeros(1)}, "GPU", tuple(build.ptx_sha256 for build in builds), (), ())


def test_the_plan_server_loads_what_it_assembled_from_the_ptx_that_it_digests(tmp_path: Path) -> None:
    server = _PlanServer()
    server._gpu = gpu = Loads()  # type: ignore[assignment]
    order = {"do": "run", "arch": "sm_89", "cache": str(tmp_path), "poison": 0, "watched": False}

    def answer(data: bytes) -> dict[str, Any]:
        return server.answer(order, {"plan": np.frombuffer(data, np.uint8)})[0]

    reply = answer(read_plan(with_ptx(), BUFFERS).model_dump_json().encode())
    (loaded,) = gpu.loaded
    assert loaded.cubin == assemble(COMPILED.ptx, "right.py")[0]
    assert reply["ptx_sha256"] == [COMPILED.ptx_sha256]
    assert answer(with_ptx(cubin="machine code of another program"))["status"] is not None
    assert gpu.loaded == [loaded]
