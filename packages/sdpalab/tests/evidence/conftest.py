"""One real bundle for all tests of evidence, and a copy of it that a test may spoil."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from evidence_sample import Sample, make_sample


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The sample bundle, made once."""
    return make_sample(tmp_path_factory.mktemp("out"))


@pytest.fixture
def unpacked(sample: Sample, tmp_path: Path) -> Path:
    """The sample bundle as a directory of its own, which a test may spoil."""
    with tarfile.open(sample.written.tarball) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / sample.written.name
