"""The Harbor task and the GitHub Action: their files, and their entry scripts in clean folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sdpalab.installation import IMPORT_FOLDERS

ROOT = Path(__file__).resolve().parents[4]
TASK = ROOT / "integrations" / "harbor" / "causal_attention"
EAGER = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, Q, K, V):
        return torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=True)
"""


def run(script: Path, folder: Path, **given: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(IMPORT_FOLDERS), **given}
    return subprocess.run([str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def reward(folder: Path) -> tuple[str, str]:
    logs = folder / "logs"
    done = run(TASK / "tests" / "test.sh", folder, APP=str(folder), LOGS=str(logs))
    assert done.returncode == 0, done.stderr
    return (logs / "reward.txt").read_text().strip(), done.stdout


def test_the_files_of_the_task() -> None:
    tomllib = pytest.importorskip("tomllib")
    settings = tomllib.loads((TASK / "task.toml").read_text())
    assert settings["verifier"]["environment_mode"] == "separate"
    assert settings["artifacts"] == ["/app/submission.py"]
    assert (TASK / "environment" / "reference.py").read_text() == (TASK / "tests" / "reference.py").read_text()
    assert "/app/submission.py" in (TASK / "instruction.md").read_text()
    for script in (TASK / "tests" / "test.sh", TASK / "solution" / "solve.sh", ROOT / "scripts" / "action.sh"):
        assert os.access(script, os.X_OK)


def test_torch_alone_and_no_file_earn_nothing(tmp_path: Path) -> None:
    assert reward(tmp_path)[0] == "0"
    (tmp_path / "submission.py").write_text(EAGER)
    amount, says = reward(tmp_path)
    assert amount == "0"
    assert "PASSED, output by torch" in says


def test_the_oracle_earns_the_reward(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    assert run(TASK / "solution" / "solve.sh", tmp_path, APP=str(tmp_path)).returncode == 0
    amount, says = reward(tmp_path)
    assert amount == "1", says
    source = (tmp_path / "submission.py").read_text()
    (tmp_path / "submission.py").write_text(source.replace(">= key[None, :])", "> key[None, :])"))
    assert reward(tmp_path)[0] == "0"


def test_the_action_writes_summary_and_outputs(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(EAGER)
    files = {name: str(tmp_path / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    given = {**files, "RUNNER_TEMP": str(tmp_path), "COMMAND": "audit", "PATHS": str(tmp_path / "model.py")}
    done = run(ROOT / "scripts" / "action.sh", tmp_path, **given)
    assert done.returncode == 1, done.stderr
    assert "| REFUSED |" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert f"status=FAILED\nreport={tmp_path}/sdpalab.json\n" in (tmp_path / "GITHUB_OUTPUT").read_text()
    assert json.loads((tmp_path / "sdpalab.json").read_text())["submissions"][0]["status"] == "REFUSED"
    wrong = run(ROOT / "scripts" / "action.sh", tmp_path, **{**given, "COMMAND": "rm"})
    assert (wrong.returncode, "command is audit, judge or sanitize, not rm" in wrong.stderr) == (2, True)


def test_the_action_has_what_its_script_reads() -> None:
    text, script = (ROOT / "action.yml").read_text(), (ROOT / "scripts" / "action.sh").read_text()
    for name in ("COMMAND", "PATHS", "OPTIONS"):
        assert f"{name}: ${{{{ inputs.{name.lower()} }}}}" in text
        assert f"${{{name}:-" in script
    assert "github.action_path }}/scripts/action.sh" in text
