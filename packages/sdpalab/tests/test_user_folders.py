"""No test reads or writes a folder of the user's: not in this process, and not in one that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest

from sdpalab import MISSION
from sdpalab.compile import Cache
from sdpalab.evidence.store.tuned import keep_tuned
from sdpalab.installation import IMPORT_FOLDERS
from sdpalab.kernels.registry import get
from sdpalab.kernels.source import source_digest
from sdpalab.search.tuned import ProblemClass, TunedEntry
from sdpalab.user_folder import data_folder

ROOT = Path(__file__).resolve().parents[3]
FLASH = get("flash")
KNOBS = FLASH.default_config.but(NUM_STAGES=3)
ENTRY = TunedEntry(
    kernel="flash",
    gpu="L4",
    problems=ProblemClass.of(MISSION),
    searched=MISSION,
    config=dict(KNOBS),
    clock="modelled",
    default_us=5.0,
    tuned_us=4.6,
    level="full",
    cases=208,
    device="simulator sm_89",
    judge="0123456789abcdef",
    source=source_digest(FLASH),
    ptx_sha256=("0" * 64,),
    held_out={},
)
POISONED = "SDPALAB_TESTS_POISONED"
"""Environment variable: a home that holds a tuned default, and that no process of the tests may use."""

Runner = Callable[..., "subprocess.CompletedProcess[str]"]


def test_folders_of_this_process_are_temporary() -> None:
    home = Path.home()
    assert home.name.startswith("sdpalab-tests-home-")
    folders = [data_folder(), platformdirs.user_config_path("sdpalab"), platformdirs.user_cache_path("warpsan")]
    assert all(folder.is_relative_to(home) for folder in folders), folders
    assert Cache().root == Path(os.environ["SDPALAB_TEST_CACHE_DIR"])


def test_folders_of_a_command_are_temporary(cli: Runner, tmp_path: Path) -> None:
    """The command prints no tuned default of the user, and a guarded process that drops variables has the same home."""
    out = tmp_path / "kernels.json"
    assert cli("kernels", "--json", out).returncode == 0
    assert [each["name"] for each in json.loads(out.read_text())["kernels"] if each.get("tuned")] == []
    code = "from sdpalab.user_folder import data_folder; print(data_folder())"
    names = ("PATH", "HOME", "WARPSAN_CACHE_DIR")
    env = {"PYTHONPATH": os.pathsep.join(IMPORT_FOLDERS), **{name: os.environ[name] for name in names}}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(data_folder())
    assert os.environ.get(POISONED, "none") not in done.stdout


def test_what_a_test_keeps_is_kept_in_its_own_folder() -> None:
    path = keep_tuned(ENTRY)
    try:
        assert path.is_relative_to(Path.home())
    finally:
        path.unlink()


@pytest.mark.parametrize("variables", [(), ("SDPALAB_DATA_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")])
def test_a_tuned_default_of_the_user_is_neither_read_nor_changed(variables: tuple[str, ...], tmp_path: Path) -> None:
    """A run of the tests above, by a user who has tuned a kernel: folders from the home, and from variables."""
    if POISONED in os.environ:
        pytest.skip("this is that run")
    home = tmp_path / "home"
    folders = {"SDPALAB_DATA_DIR": home / ".local/share/sdpalab", "XDG_DATA_HOME": home / ".local/share"}
    folders |= {"XDG_CONFIG_HOME": home / ".config", "XDG_CACHE_HOME": home / ".cache"}
    entry = replace(ENTRY, config={**KNOBS, "NUM_STAGES": 4})
    keep_tuned(entry, folders["SDPALAB_DATA_DIR"] / "proofs")
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    env = {**os.environ, "HOME": str(home), POISONED: str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {name: str(folders[name]) for name in variables}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_a_tuned_default_is_wrapped(cli: Runner, tmp_path: Path) -> None:
    keep_tuned(ENTRY, tmp_path / "proofs")
    done = cli("kernels", env={"COLUMNS": "50", "SDPALAB_DATA_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "NUM_STAGES=3" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 50
