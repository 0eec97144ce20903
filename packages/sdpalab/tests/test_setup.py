"""The set-up of repro.sh and test.sh, with a stand-in for Python that only writes down its command lines."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

STAND_IN = """#!/usr/bin/env bash
# `-m venv DIR` copies this script to DIR/bin/python; `-m TOOL` fails if the file "TOOL-fails" is there.
here="$(dirname "$PROJECT/x")"
case "$1 $2" in
    "-m venv") echo "venv" >>"$here/calls"; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    "-m pip") echo "pip ${*: -1}" >>"$here/calls" ;;
    "-c "*) [ -z "${OLD_PYTHON:-}" ]; exit ;;
    *) echo "ran $*" ;;
esac
[ "$1" != -m ] || [ ! -e "$here/$2-fails" ]
"""

WORKERS = "-n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 1"
NAMES = ("sdpalab", "warpsan")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the scripts and of what decides about a new set-up, and the stand-in as ``python``."""
    for name in (
        ".ci/run",
        "repro.sh",
        "test.sh",
        "scripts/setup_env.sh",
        "scripts/lint.sh",
        "scripts/constraints.sh",
        "packages/warpsan/pyproject.toml",
        "packages/sdpalab/pyproject.toml",
        "constraints.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "python").write_text(STAND_IN)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


@pytest.fixture
def run(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run one of the scripts from another directory; its result, with the stand-in's calls as ``calls``."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def call(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHON": str(project / "python"),
            "PROJECT": str(project),
            **variables,
        }
        command = [str(project / script), *arguments]
        return subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)

    return call


def calls(project: Path) -> list[str]:
    """Calls of the stand-in since the last look."""
    log = project / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def test_first_run_installs_and_the_second_does_not(project: Path, run: Run) -> None:
    done = run("repro.sh", "--kernel", "flash")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ran -m sdpalab repro --kernel flash\n"
    assert calls(project) == ["venv", "pip setuptools", f"pip {project}/packages/sdpalab[test]"]
    assert run("repro.sh").returncode == 0
    assert calls(project) == []


def test_tests_add_their_tools_and_serve_repro_too(project: Path, run: Run) -> None:
    run("repro.sh")
    calls(project)
    done = run("test.sh", "-k", "judge")
    assert done.stdout == f"ran -m pytest {WORKERS} -k judge\nlint: ok\nformat: ok\ntypes: ok\npins: ok\n"
    assert calls(project) == ["pip setuptools", f"pip {project}/packages/sdpalab[dev]"]
    run("repro.sh")
    run("test.sh")
    assert calls(project) == []


@pytest.mark.parametrize(
    "name", ["constraints.txt", "packages/warpsan/pyproject.toml", "packages/sdpalab/pyproject.toml"]
)
def test_a_changed_requirement_installs_again(project: Path, run: Run, name: str) -> None:
    run("repro.sh")
    calls(project)
    with (project / name).open("a") as file:
        file.write("# changed\n")
    run("repro.sh")
    assert calls(project) == ["pip setuptools", f"pip {project}/packages/sdpalab[test]"]


def test_an_interrupted_install_is_made_anew(project: Path, run: Run) -> None:
    run("repro.sh")
    calls(project)
    (project / ".venv" / ".stamp").unlink()
    (project / ".venv" / ".installing").touch()
    done = run("repro.sh")
    assert "interrupted" in done.stderr
    assert calls(project) == ["venv", "pip setuptools", f"pip {project}/packages/sdpalab[test]"]
    assert not (project / ".venv" / ".installing").exists()


def test_a_venv_whose_python_is_gone_is_made_anew(project: Path, run: Run) -> None:
    run("repro.sh")
    calls(project)
    (project / ".venv" / "bin" / "python").unlink()
    assert run("repro.sh").returncode == 0
    assert calls(project)[0] == "venv"


def test_a_failed_install_is_exit_3_and_tried_again(project: Path, run: Run) -> None:
    (project / "pip-fails").touch()
    done = run("test.sh")
    assert done.returncode == 3
    assert "pip could not install" in done.stderr
    (project / "pip-fails").unlink()
    assert run("test.sh").returncode == 0


def test_an_old_python_is_one_clear_sentence(project: Path, run: Run) -> None:
    done = run("repro.sh", OLD_PYTHON="1")
    assert done.returncode == 3
    assert "needs Python 3.10 or newer" in done.stderr.splitlines()[-1]
    assert calls(project) == []
    assert not (project / ".venv").exists()


@pytest.mark.parametrize(
    ("tool", "line"), [("ruff", "lint: FAILED"), ("mypy", "types: FAILED"), ("uv", "pins: FAILED"), ("pytest", "")]
)
def test_what_fails_beside_the_tests_fails_them(project: Path, run: Run, tool: str, line: str) -> None:
    assert run("test.sh").returncode == 0
    (project / f"{tool}-fails").touch()
    done = run("test.sh")
    assert done.returncode == 1
    assert "ran -m pytest" in done.stdout
    assert line in done.stdout


@pytest.mark.parametrize(
    ("suite", "code", "printed"),
    [({}, 0, "the fast suite"), ({"SDPALAB_TESTS": "full"}, 0, "everything"), ({"SDPALAB_TESTS": "all"}, 2, "")],
)
def test_ci_runs_the_suite_that_it_names(
    project: Path, run: Run, suite: dict[str, str], code: int, printed: str
) -> None:
    done = run(".ci/run", **suite)
    assert done.returncode == code
    assert printed in done.stdout
    assert (f"{WORKERS} --full\n" in done.stdout) == (suite.get("SDPALAB_TESTS") == "full")
    assert (done.stderr == "SDPALAB_TESTS must be fast or full, not 'all'\n") == (code == 2)
