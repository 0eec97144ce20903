"""Records of campaigns say when, how and on what source they ran."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from sdpalab.errors import UserError
from sdpalab.evidence import campaign as module
from sdpalab.evidence.campaign import Campaign
from sdpalab.evidence.environment import git


def repository_of(root: Path) -> None:
    for command in (("init", "-q"), ("config", "user.email", "a@b.c"), ("config", "user.name", "a")):
        assert git(root, *command) is not None
    (root / "packages").mkdir()
    (root / "packages" / "a.py").write_text("x = 1\n")
    assert git(root, "add", ".") is not None
    assert git(root, "commit", "-q", "-m", "first") is not None


def test_a_record_names_the_commit_and_goes_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository_of(tmp_path)
    monkeypatch.setattr(module, "repository", lambda: tmp_path)
    ran = Campaign("sample", "python scripts/sample.py --n 3")
    record = ran.record(totals={"n": 3})
    commit = (git(tmp_path, "rev-parse", "--short", "HEAD") or "").strip()
    assert record["commit"] == commit
    assert not record["changed_since"]
    assert record["numpy"] == np.__version__
    assert record["command"].endswith("--n 3")
    assert record["seconds"] >= 0.0
    assert datetime.fromisoformat(record["when"]).tzinfo is not None
    out = ran.write(record)
    assert out == tmp_path / "evidence" / "campaigns" / f"sample-{commit}.json"
    assert json.loads(out.read_text()) == record


def test_a_change_that_is_not_committed_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository_of(tmp_path)
    monkeypatch.setattr(module, "repository", lambda: tmp_path)
    (tmp_path / "packages" / "a.py").write_text("x = 2\n")
    assert Campaign("sample", "", sources=("packages",)).record()["changed_since"]
    assert not Campaign("sample", "", sources=("tests",)).record()["changed_since"]


def test_without_a_repository_one_must_say_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "repository", lambda: None)
    ran = Campaign("sample", "")
    assert ran.record()["commit"] == "unknown"
    with pytest.raises(UserError, match="--out FILE"):
        ran.write({})
    assert ran.write({}, tmp_path / "new" / "record.json").read_text() == "{}\n"
