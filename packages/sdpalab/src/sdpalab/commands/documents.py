"""The JSON document of each command: one envelope, and the command's own content; the schemas derive from these models.

A document has the fields of :class:`DocumentHead` and, unless the command ended with an ``error`` before its result,
those of its content. ``scripts/json_schemas.py`` writes the schemas to ``docs/schemas``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from sdpalab.judge.verdict import Errors, Limits, Status
from sdpalab.record import ENVELOPE

__all__ = ["CONTENTS", "SCHEMA", "DocumentHead", "Outcome", "check_document", "json_schema"]

SCHEMA = "sdpalab/{command}/1"
"""The ``schema`` of a document; the number increases when a field changes its meaning or is removed."""

Json = dict[str, Any]
Outcome = Literal["PASSED", "FAILED", "BAD_INPUT", "MACHINE_FAILED", "INTERRUPTED"]
"""Status of a command without a verdict: exit code 0, 1, 2, 3 and 130."""


class Content(BaseModel):
    """Base of the contents: no unknown field."""

    model_config = ConfigDict(extra="forbid", strict=True)


class DocumentHead(Content):
    """Fields of every document.

    ``schema`` names the command and the version of the format; ``version`` is the lab's; ``subject`` names the kernels,
    files or bundle of the command line, or is empty; ``status`` is the verdict's status, if there is a verdict;
    ``error`` is the sentence on stderr, empty without one.
    """

    schema_: str = Field(alias="schema")
    version: str
    command: str
    subject: str
    status: str
    error: str


class ProblemJson(Content):
    """See :class:`sdpalab.problem.Problem`."""

    batch: int
    heads: int
    seq_q: int
    head_dim: int
    kv_heads: int
    seq_kv: int
    dtype: str
    causal: bool
    scale: float
    window_size: list[int] | None = None
    softcap: float = 0.0
    kv_lengths: list[int] | None = None
    attn_mask: str = ""
    alibi_slopes: bool = False
    sinks: bool = False


class CaseJson(Content):
    """See :class:`sdpalab.judge.verdict.Case`."""

    name: str
    problem: ProblemJson
    inputs: str
    seed: int
    status: Status
    reason: str
    errors: Errors | None
    limits: Limits | None
    digests: dict[str, str]
    run: Json
    original_contract: bool | None


class JudgeContent(Content):
    """A :class:`sdpalab.judge.verdict.Verdict`; ``bundle``, ``report`` and ``junit`` are paths, if any.

    ``diagnosis`` is a :class:`sdpalab.judge.diagnose.summary.FailureSummary`, ``algebra`` has each
    :class:`sdpalab.judge.algebra.outcome.AlgebraCase`, ``covers`` is present for PASSED, and ``confinement``
    (``namespaces`` or ``processes``) if a case ran.
    """

    kernel: str
    config: str
    device: str
    level: str
    seed: int
    passed: bool
    reason: str
    original_contract: int
    cases: list[CaseJson]
    unjudged: list[str]
    algebra: list[Json] = []
    covers: list[str] = []
    confinement: str = ""
    diagnosis: Json
    bundle: str = ""
    report: str = ""
    junit: str = ""


class SetAsideJson(Content):
    """Host code beside the kernels, which is not compiled; see :class:`sdpalab.compile.SetAside`."""

    functions: list[str]
    headers: list[str]
    declarations: list[str]


class BuildContent(Content):
    """``problem``: None for a file with its launch file."""

    kernel: str
    config: str
    arch: str
    problem: ProblemJson | None
    ok: bool
    builds: list[Json]
    set_aside: SetAsideJson | None = None


class BuildAllContent(Content):
    arch: str
    cache: str
    ok: bool
    modules: int
    compiled: int
    kernels: list[Json]
    skipped: list[str]


class ReproContent(Content):
    passed: bool
    bundle: str
    report: str
    seconds: float
    skipped: dict[str, str]
    unjudged: list[str]
    attempts: list[Json]


class SanitizeContent(Content):
    """See :class:`warpsan.sanitize.Sanitized`; ``groups`` are the hazards by kind and pair of source lines."""

    target: str
    config: str
    device: str
    clean: bool
    cases: list[str]
    runs: list[str]
    hazards: list[Json]
    groups: list[Json]
    unused_suppressions: list[str]
    notes: list[str]
    set_aside: SetAsideJson | None = None


class RunContent(Content):
    """See :class:`warpsan.program.ProgramOutcome`; ``hazards`` are by kind and pair of source lines, ``problems`` the
    calls that failed or are not modelled."""

    program: list[str]
    gpu: str
    exit_code: int
    launches: int
    operations: int
    clean: bool
    hazards: list[Json]
    problems: list[str]
    notes: list[str]
    captured: list[str]


class BenchContent(Content):
    """See :class:`sdpalab.evidence.measured.BenchRecord`."""

    record: str
    format: int
    kind: str
    gpu: str
    sms: int | None
    complete: bool
    when: str
    environment: Json
    judged: list[Json]
    results: list[Json]
    worst: list[Json]


class ProfileContent(Content):
    kind: str
    gpu: str
    sms: int
    kernel: str
    config: str
    problem: ProblemJson
    l2: str
    judged: Json
    launches: list[Json]


class SimulatedProfileContent(Content):
    """``profile --device sim``, without measured figures. ``kinds`` describes the compiled, simulated and modelled
    figures of ``launches``; ``modelled`` is the time of the plan, None for the reason ``not_modelled``; ``by_inputs``
    has the times on other inputs and the worst (:class:`sdpalab.model.worst.TimesByInputs`), and None for a file;
    ``page`` is a path, if a page was written. For a file with its launch file ``kernel`` is its name, and ``problem``
    None."""

    measured: Literal[False]
    kinds: dict[str, str]
    gpu: str
    arch: str
    kernel: str
    config: str
    problem: ProblemJson | None
    launches: list[Json]
    modelled: Json | None
    by_inputs: Json | None
    not_modelled: str
    pictures: list[Json]
    page: str
    set_aside: SetAsideJson | None = None


class ProveContent(Content):
    machine: Json
    folder: str
    attempts: list[Json]
    times: list[str]
    skipped: list[str]
    choices: list[Json]


class TuneContent(Content):
    head: Json
    kind: str
    trials: list[Json]
    finalists: list[Json]
    front: list[int]
    winners: dict[str, int]
    stopped: str
    notes: list[str]
    log: str


class TorchMatrixContent(Content):
    kernel: str
    base: str | None
    conclusion: str
    sentence: str
    contract: Json
    rows: list[Json]


class LaunchContent(Content):
    """``launches``: entry and hazards of each; ``wrong``: unexpected buffers; ``out``: a folder."""

    launches: list[Json]
    wrong: list[str]
    stopped: str
    out: str


class CountersContent(Content):
    launches: list[Json]
    pictures: list[Json]


class ExplainContent(Content):
    kinds: list[dict[str, str]]


class InstructionsContent(Content):
    opcode: str
    executed: bool
    forms: list[dict[str, str]]


class SpeedOfLightContent(Content):
    problem: ProblemJson
    precision: str
    target_us: float | None
    gpus: list[Json]


class VerifyContent(Content):
    bundle: str
    accepted: bool
    findings: list[str]
    summary: list[str]
    signer: str | None


class ReportContent(Content):
    bundle: str
    accepted: bool
    findings: list[str]
    report: str | None


class CompareContent(Content):
    """``a``, ``b``: each bundle, whether it verifies, and the findings; ``kernels`` have pairs in the order ``a``,
    ``b``.

    See :class:`sdpalab.evidence.side_by_side.KernelChange`. Without two accepted bundles there is no comparison.
    """

    a: Json
    b: Json
    kernels: list[Json]
    environment: list[Json]
    regressions: list[str]
    report: str | None


class SearchReportContent(Content):
    log: str
    damaged: list[str]
    report: str


class KernelsContent(Content):
    kernels: list[Json]


class DoctorContent(Content):
    ready: bool
    checks: list[Json]


class CampaignContent(Content):
    """``record``: the record in ``evidence/``."""

    record: Json


class NewContent(Content):
    """``files``: the written files in reading order; ``next``: the next command."""

    files: list[str]
    next: str


CONTENTS: Mapping[str, tuple[type[Content], ...]] = {
    "repro": (ReproContent,),
    "kernels": (KernelsContent,),
    "doctor": (DoctorContent,),
    "new": (NewContent,),
    "build": (BuildContent, BuildAllContent),
    "judge": (JudgeContent, CampaignContent),
    "sanitize": (SanitizeContent,),
    "run": (RunContent,),
    "capture": (RunContent,),
    "launch": (LaunchContent,),
    "counters": (CountersContent,),
    "explain": (ExplainContent,),
    "instructions": (InstructionsContent,),
    "speed-of-light": (SpeedOfLightContent,),
    "bench": (BenchContent,),
    "profile": (ProfileContent, SimulatedProfileContent),
    "tune": (TuneContent,),
    "prove": (ProveContent,),
    "torch-matrix": (TorchMatrixContent,),
    "report": (ReportContent, SearchReportContent),
    "compare": (CompareContent,),
    "verify": (VerifyContent,),
    "campaign": (CampaignContent,),
    "sdpalab": (),
}
"""Contents of each command's document beside the envelope; ``judge --self-test`` is a campaign. ``sdpalab`` is the key
of a line without a command, whose document always has an error."""


def check_document(document: Mapping[str, Any]) -> None:
    """Validate a document against the models.

    Raises
    ------
    ValueError
        If a field is missing, unknown or of another type.
    """
    envelope = {name: value for name, value in document.items() if name in ENVELOPE}
    content = {name: value for name, value in document.items() if name not in ENVELOPE}
    checked = DocumentHead.model_validate(envelope)
    if checked.schema_ != SCHEMA.format(command=checked.command):
        raise ValueError(f"schema {checked.schema_} of a document of {checked.command}")
    if content or not checked.error:
        import json

        kinds: Any = CONTENTS[checked.command]
        union: Any = kinds[0]
        for kind in kinds[1:]:
            union = union | kind
        TypeAdapter(union).validate_json(json.dumps(content))


def json_schema(command: str) -> Json:
    """The JSON Schema (draft 2020-12) of a command's document."""
    envelope = DocumentHead.model_json_schema(by_alias=True)
    envelope["properties"]["schema"]["const"] = SCHEMA.format(command=command)
    envelope["properties"]["command"]["const"] = command
    definitions: Json = {}
    shapes = []
    for kind in CONTENTS[command]:
        content = kind.model_json_schema()
        definitions |= content.pop("$defs", {})
        shapes.append(
            {
                "type": "object",
                "description": " ".join((content.get("description") or "The command's own content.").split()),
                "properties": {**envelope["properties"], **content["properties"]},
                "required": [*envelope["required"], *content.get("required", ())],
                "additionalProperties": False,
            }
        )
    failed = {
        "type": "object",
        "description": "The command ended before it had a result: error says why.",
        "properties": {**envelope["properties"], "error": {"type": "string", "minLength": 1}},
        "required": envelope["required"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA.format(command=command),
        "title": f"sdpalab {command} --json",
        "anyOf": [*shapes, failed],
        "$defs": definitions,
    }
