"""The JSON of the commands: one envelope for every exit code, and published schemas that are those of the models.

``SDPALAB_CHECK_DOCUMENTS`` is set for all tests (``conftest.py``): each document that any of them writes is checked.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from sdpalab.cli import COMMANDS, main
from sdpalab.commands.documents import CONTENTS, check_document, json_schema
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.problem import MISSION
from sdpalab.record import ENVELOPE

ROOT = Path(__file__).resolve().parents[3]


def document(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Document that a command writes, with its exit code as the last field."""
    code = main([*words, "--json", str(tmp_path / "d.json")])
    return {**json.loads((tmp_path / "d.json").read_text()), "code": code}


def test_the_published_schemas_are_those_of_the_models() -> None:
    spec = importlib.util.spec_from_file_location("json_schemas", ROOT / "scripts" / "json_schemas.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    published = {path.name: path.read_text() for path in module.FOLDER.iterdir()}
    assert published == module.texts()  # python scripts/json_schemas.py


def test_every_command_has_a_schema() -> None:
    assert {*COMMANDS, "sdpalab"} - {"serve", "mcp"} == set(CONTENTS)  # these two write no document


@pytest.mark.parametrize(
    ("words", "command", "subject"),
    [
        (("judge", "nosuch.py"), "judge", "nosuch.py"),
        (("judge", "flash", "--frobnicate"), "judge", ""),
        (("build", "flahs"), "build", "flahs"),
        (("verify", "nosuch.tar.gz"), "verify", "nosuch.tar.gz"),
        (("campaign", "nosuch"), "campaign", ""),
        (("frobnicate",), "sdpalab", ""),
        ((), "sdpalab", ""),
    ],
    ids=" ".join,
)
def test_bad_input_has_a_document(
    tmp_path: Path, words: tuple[str, ...], command: str, subject: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = document(tmp_path, *words)
    assert result.pop("code") == 2
    check_document(result)
    assert (result["command"], result["subject"], result["status"]) == (command, subject, "BAD_INPUT")
    assert capsys.readouterr().err == f"sdpalab: {result['error']}\n"
    assert main([*words, "--json=-"]) == 2
    assert json.loads(capsys.readouterr().out) == result


def test_good_results_have_the_same_envelope(tmp_path: Path) -> None:
    light = document(tmp_path, "speed-of-light", "--shape", "1,1,64,64")
    assert (light["schema"], light["command"], light["subject"]) == (
        "sdpalab/speed-of-light/1",
        "speed-of-light",
        "1,1,64,64",
    )
    assert (light["status"], light["error"], light["code"]) == ("PASSED", "", 0)
    assert document(tmp_path, "kernels")["kernels"]


def test_a_document_that_is_not_written_is_no_second_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "--json", str(tmp_path / "nowhere" / "k.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_document_of_another_form_is_refused(tmp_path: Path) -> None:
    good = document(tmp_path, "speed-of-light")
    good.pop("code")
    check_document(good)
    for changed in (
        {**good, "gpus": "many"},
        {**good, "speedup": "15x"},
        {name: value for name, value in good.items() if name != "problem"},
        {name: value for name, value in good.items() if name != "version"},
        {**good, "schema": "sdpalab/judge/1"},
    ):
        with pytest.raises(ValueError):  # noqa: PT011  (pydantic's, of many texts)
            check_document(changed)


def test_a_schema_allows_the_content_or_an_error() -> None:
    content, failed = json_schema("verify")["anyOf"]
    assert set(content["required"]) == {
        *("schema", "version", "command", "subject", "status", "error"),
        *("bundle", "accepted", "findings", "summary", "signer"),
    }
    assert failed["properties"]["error"]["minLength"] == 1
    assert not failed["additionalProperties"]


def test_the_schema_of_a_record_has_the_fields_that_it_writes() -> None:
    case = Case("a case", MISSION.with_(softcap=5.0), "normal", 0, Status.INCORRECT, "a test")
    verdict = Verdict("flash", "", "simulator sm_89", "quick", 0, (case,))
    schema = json_schema("judge")
    content, written = schema["anyOf"][0], verdict.to_dict()
    assert set(content["required"]) <= {*ENVELOPE, *written, "unjudged", "diagnosis"}
    assert set(written) <= set(content["properties"])
    fields = schema["$defs"]["Case"]
    assert set(fields["required"]) == set(fields["properties"]) - {"figures"} == set(written["cases"][0])
    problem = fields["properties"]["problem"]
    assert set(problem["required"]) < set(written["cases"][0]["problem"]) < set(problem["properties"])
