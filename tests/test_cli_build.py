"""``sdpalab build`` for a kernel with an architecture of its own."""

from __future__ import annotations

import json

import pytest

from sdpalab.cli import main


def test_a_kernel_is_built_for_its_own_architecture_without_an_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["build", "hopper", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["arch"] == "sm_90a"
    assert [step["arch"] for step in result["builds"]] == ["sm_90a"]
    assert main(["build", "flash", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["arch"] == "sm_89"


def test_an_architecture_that_it_cannot_be_built_for_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "hopper", "--arch", "sm_89"]) == 2
    assert "only sm_90a" in capsys.readouterr().err


def test_the_instructions_of_the_tensor_cores_have_their_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "hopper"]) == 0
    printed = capsys.readouterr().out
    assert "HGMMA is " in printed
    assert "HMMA is " not in printed.replace("HGMMA", "")
