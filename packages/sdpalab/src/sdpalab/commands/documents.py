"""The JSON document of each command: one envelope, and the command's own content.

A document has the fields of :class:`DocumentHead` and, unless the command ended with an ``error`` before its result,
those of its content. Fields of a record are taken from its class. ``scripts/json_schemas.py`` writes the schemas to
``docs/schemas``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from sdpalab.evidence.store.measured import BenchRecord
from sdpalab.judge.verdict import Verdict
from sdpalab.record import ENVELOPE, JsonRecord, ProblemField, json_fields
from sdpalab.search.log import Head
from sdpalab.search.outcome import Finalist, Trial

__all__ = ["CONTENTS", "SCHEMA", "DocumentHead", "Outcome", "check_document", "json_schema"]

SCHEMA = "sdpalab/{command}/1"
"""The ``schema`` of a document; the number increases when a field changes its meaning or is removed."""

Json = dict[str, Any]
Outcome = Literal["PASSED", "FAILED", "BAD_INPUT", "MACHINE_FAILED", "INTERRUPTED"]
"""Status of a command without a verdict: exit code 0, 1, 2, 3 and 130."""


class Content(BaseModel):
    """The command's own content."""

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


def _content(about: str = "", /, *, of: type[JsonRecord] | None = None, **fields: Any) -> type[Content]:
    """A content with ``fields``, by their types, or types and defaults, beside those of the record class ``of``."""
    recorded = {name: field for name, field in json_fields(of).items() if name not in ENVELOPE} if of else {}
    given = {name: field if isinstance(field, tuple) else (field, ...) for name, field in fields.items()}
    definitions: Any = {**recorded, **given}
    doc = about or (of.__doc__ if of else Content.__doc__)
    model: type[Content] = create_model("Content", __base__=Content, __doc__=doc, **definitions)
    return model


_SET_ASIDE = create_model(
    "SetAside", __base__=Content, functions=(list[str], ...), headers=(list[str], ...), declarations=(list[str], ...)
)
"""Host code beside the kernels, which is not compiled: :class:`warpsan.build.SetAside`."""
_OPTIONAL_SET_ASIDE = (_SET_ASIDE | None, None)

_JUDGE = _content(
    "A :class:`sdpalab.judge.verdict.Verdict`; ``bundle``, ``report`` and ``junit`` are paths, if any. ``diagnosis`` "
    "is a :class:`sdpalab.judge.diagnose.summary.FailureSummary`.",
    of=Verdict,
    diagnosis=Json,
    unjudged=tuple[str, ...],
    bundle=(str, ""),
    report=(str, ""),
    junit=(str, ""),
)
_RUN = _content(
    "See :class:`warpsan.program.ProgramOutcome`; ``hazards`` are by kind and pair of source lines, ``problems`` the "
    "calls that failed or are not modelled.",
    program=list[str],
    gpu=str,
    exit_code=int,
    launches=int,
    operations=int,
    clean=bool,
    hazards=list[Json],
    problems=list[str],
    notes=list[str],
    captured=list[str],
)
_CAMPAIGN = _content("``record``: the record in ``evidence/``.", record=Json)

CONTENTS: Mapping[str, Sequence[type[Content]]] = {
    "repro": [
        _content(
            passed=bool,
            bundle=str,
            report=str,
            seconds=float,
            skipped=dict[str, str],
            unjudged=list[str],
            attempts=list[Json],
        )
    ],
    "kernels": [_content(kernels=list[Json])],
    "doctor": [_content(ready=bool, checks=list[Json])],
    "new": [
        _content(
            "``files``: the written files in reading order; ``next``: the next command.", files=list[str], next=str
        )
    ],
    "build": [
        _content(
            "``problem``: None for a file with its launch file.",
            kernel=str,
            config=str,
            arch=str,
            problem=ProblemField | None,
            ok=bool,
            builds=list[Json],
            set_aside=_OPTIONAL_SET_ASIDE,
        ),
        _content(arch=str, cache=str, ok=bool, modules=int, compiled=int, kernels=list[Json], skipped=list[str]),
    ],
    "judge": [_JUDGE, _CAMPAIGN],
    "audit": [
        _content(
            "``submissions``: see :class:`sdpalab.formats.audit.Audited`; ``passed``: number with the status PASSED.",
            submissions=list[Json],
            passed=int,
        )
    ],
    "sanitize": [
        _content(
            "See :class:`warpsan.sanitize.Sanitized`; ``groups`` are the hazards by kind and pair of source lines.",
            target=str,
            config=str,
            device=str,
            clean=bool,
            cases=list[str],
            runs=list[str],
            hazards=list[Json],
            groups=list[Json],
            unused_suppressions=list[str],
            notes=list[str],
            set_aside=_OPTIONAL_SET_ASIDE,
        )
    ],
    "run": [_RUN],
    "capture": [_RUN],
    "launch": [
        _content(
            "``launches``: entry and hazards of each; ``wrong``: unexpected buffers; ``out``: a folder.",
            launches=list[Json],
            wrong=list[str],
            stopped=str,
            out=str,
        )
    ],
    "counters": [_content(launches=list[Json], pictures=list[Json])],
    "explain": [_content(kinds=list[dict[str, str]])],
    "instructions": [_content(opcode=str, executed=bool, forms=list[dict[str, str]])],
    "speed-of-light": [_content(problem=ProblemField, precision=str, target_us=float | None, gpus=list[Json])],
    "bench": [_content(of=BenchRecord)],
    "profile": [
        _content(
            kind=str,
            gpu=str,
            sms=int,
            kernel=str,
            config=str,
            problem=ProblemField,
            l2=str,
            judged=Json,
            launches=list[Json],
        ),
        _content(
            "``profile --device sim``, without measured figures. ``kinds`` describes the compiled, simulated and "
            "modelled figures of ``launches``; ``modelled`` is the time of the plan, None for the reason "
            "``not_modelled``; ``by_inputs`` has the times on other inputs and the worst "
            "(:class:`sdpalab.model.worst.TimesByInputs`), and None for a file; ``page`` is a path, if a page was "
            "written. For a file with its launch file ``kernel`` is its name, and ``problem`` None.",
            measured=Literal[False],
            kinds=dict[str, str],
            gpu=str,
            arch=str,
            kernel=str,
            config=str,
            problem=ProblemField | None,
            launches=list[Json],
            modelled=Json | None,
            by_inputs=Json | None,
            not_modelled=str,
            pictures=list[Json],
            page=str,
            set_aside=_OPTIONAL_SET_ASIDE,
        ),
    ],
    "tune": [
        _content(
            head=Head,
            kind=str,
            trials=list[Trial],
            finalists=list[Finalist],
            front=list[int],
            winners=dict[str, int],
            stopped=str,
            notes=list[str],
            log=str,
        )
    ],
    "prove": [
        _content(machine=Json, folder=str, attempts=list[Json], times=list[str], skipped=list[str], choices=list[Json])
    ],
    "torch-matrix": [
        _content(kernel=str, base=str | None, conclusion=str, sentence=str, contract=Json, rows=list[Json])
    ],
    "report": [
        _content(bundle=str, accepted=bool, findings=list[str], report=str | None),
        _content(log=str, damaged=list[str], report=str),
    ],
    "compare": [
        _content(
            "``a``, ``b``: each bundle, whether it verifies, and the findings; ``kernels`` have pairs in the order "
            "``a``, ``b``. See :class:`sdpalab.evidence.side_by_side.KernelChange`. Without two accepted bundles there "
            "is no comparison.",
            a=Json,
            b=Json,
            kernels=list[Json],
            environment=list[Json],
            regressions=list[str],
            report=str | None,
        )
    ],
    "verify": [_content(bundle=str, accepted=bool, findings=list[str], summary=list[str], signer=str | None)],
    "campaign": [_CAMPAIGN],
    "sdpalab": [],
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
        TypeAdapter(reduce(or_, CONTENTS[checked.command])).validate_json(json.dumps(content))


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
        for field in content["properties"].values():
            if "default" in field and field["default"] is None:
                del field["default"]  # an absent field is no null
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
