"""``constraints.txt`` pins all that both packages require, and comes from the command in its first line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "constraints.txt").read_text()
PINS = [Requirement(line) for line in TEXT.splitlines() if not line.startswith("#")]
PYTHONS = ("3.10.0", "3.11.0", "3.11.9", "3.12.0", "3.13.0")
PLATFORM = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}


def required() -> list[str]:
    """Requirements of both packages but for each other: the builds', their own, and those of every extra."""
    found = []
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        settings = tomllib.loads(file.read_text())
        project = settings["project"]
        extras = (text for extra in project["optional-dependencies"].values() for text in extra)
        found += [*settings["build-system"]["requires"], *project["dependencies"], *extras]
    return [text for text in found if not text.startswith("warpsan")]


def unsatisfied(requirements: Iterable[str], pins: Sequence[Requirement], python: str) -> list[str]:
    """Requirements that hold for ``python`` on Linux, and that the pins do not satisfy with one exact version."""
    environment = {**PLATFORM, "python_full_version": python, "python_version": python.rpartition(".")[0], "extra": ""}
    versions: dict[str, list[str]] = {}
    for pin in pins:
        if pin.marker is None or pin.marker.evaluate(environment):
            versions.setdefault(canonicalize_name(pin.name), []).append(str(pin.specifier).removeprefix("=="))
    wanted = [Requirement(text) for text in requirements]
    return [
        f"{requirement}: {pinned or 'no pin'}"
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate(environment)
        for pinned in [versions.get(canonicalize_name(requirement.name), [])]
        if len(pinned) != 1 or not requirement.specifier.contains(pinned[0], prereleases=True)
    ]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_has_one_pin_that_satisfies_it(python: str) -> None:
    assert unsatisfied(required(), PINS, python) == []
    assert unsatisfied([pin.name for pin in PINS if pin.marker is None], PINS, python) == []


def test_so_have_the_requirements_of_installed_packages() -> None:
    pinned = {canonicalize_name(pin.name) for pin in PINS}
    found = {canonicalize_name(each.name): each for each in metadata.distributions()}
    requirements = [text for name in pinned & found.keys() for text in found[name].requires or ()]
    assert len(requirements) > 100
    assert unsatisfied(requirements, PINS, default_environment()["python_full_version"]) == []


@pytest.mark.parametrize("pin", ["", "numpy==1.25", "numpy==2.0\nnumpy==2.1", "numpy==2.0; python_version < '3.11'"])
def test_a_pin_that_does_not_satisfy_is_found(pin: str) -> None:
    pins = [Requirement(line) for line in pin.splitlines()]
    (found,) = unsatisfied(["numpy>=1.26", "torch; python_version < '3.11'"], pins, "3.12.0")
    assert found.startswith("numpy>=1.26: ")


def test_the_reference_is_pinned_without_a_build_and_without_hashes() -> None:
    (torch,) = (pin for pin in PINS if pin.name == "torch")
    assert str(torch) == "torch==2.13.0"  # a local label would refuse the other builds
    assert "--hash" not in TEXT


STAND_IN = """#!/usr/bin/env bash
# `-m uv ... --output-file FILE`: logs its arguments; pins one more package in FILE, or ends as an index that is away.
echo "${*:2}" >>calls
[ -z "${AWAY:-}" ] || exit 2
{ grep -hs '==' "${*: -1}"; echo "more==1"; } | sort -u >made && mv made "${*: -1}"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the script, one stale pin, and the stand-in for Python."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/constraints.sh").write_text((ROOT / "scripts/constraints.sh").read_text())
    (tmp_path / "constraints.txt").write_text("# by hand\nnumpy==2.0\n")
    (tmp_path / "python").write_text(STAND_IN)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def script(tree: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": str(tree / "python"), **variables}
    command = ["bash", str(tree / "scripts/constraints.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_the_command_of_the_first_line_is_the_one_that_runs(tree: Path) -> None:
    assert script(tree).returncode == 0
    first, second, *pins = (tree / "constraints.txt").read_text().splitlines()
    assert [first, second] == TEXT.splitlines()[:2]
    assert pins == ["more==1", "numpy==2.0"]
    assert (tree / "calls").read_text().startswith(first.removeprefix("# ") + " ")


def test_the_check_names_a_pin_that_drifted_and_changes_nothing(tree: Path) -> None:
    before = (tree / "constraints.txt").read_text()
    done = script(tree, "--check")
    assert done.returncode == 1
    assert "\n+more==1\n" in done.stdout
    assert (tree / "constraints.txt").read_text() == before
    script(tree)
    assert script(tree, "--check").returncode == 0


def test_an_index_that_is_away_is_neither_fresh_nor_stale(tree: Path) -> None:
    assert script(tree, "--check", AWAY="1").returncode == 3


def test_an_upgrade_starts_without_the_pins(tree: Path) -> None:
    assert script(tree, "--upgrade").returncode == 0
    assert (tree / "constraints.txt").read_text().splitlines()[2:] == ["more==1"]


def test_an_unknown_option_is_one_sentence(tree: Path) -> None:
    done = script(tree, "--chek")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "scripts/constraints.sh takes --check, --upgrade or nothing, not '--chek'\n"
