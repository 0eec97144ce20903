"""Modules that only some systems have: importing the lab needs none of them, and its locks say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warpsan import locks
from warpsan.engine.library import Library
from warpsan.host.cpus import usable_cpus
from warpsan.locks import lock_file

IMPORTED = """
import builtins, importlib, os, pkgutil, sys
for name in ("sched_getaffinity", "memfd_create"):
    delattr(os, name)
import sdpalab
outside = os.path.dirname(sdpalab.__file__)
absent = ("fcntl", "resource", "pwd", "grp", "termios")
for name in absent:
    sys.modules.pop(name, None)
real = builtins.__import__
def imported(name, globals=None, locals=None, fromlist=(), level=0):
    if name in absent and str((globals or {}).get("__file__")).startswith(outside):
        raise ImportError(f"no {name} here")
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = imported
wrong = []
for each in pkgutil.walk_packages(sdpalab.__path__, "sdpalab.", onerror=lambda name: None):
    if each.name.rpartition(".")[2] in ("__main__", "guard"):  # programs
        continue
    try:
        importlib.import_module(each.name)
    except Exception as error:
        wrong.append(f"{each.name}: {error!r}")
print("\\n".join(wrong))
"""


def test_every_module_can_be_imported_where_linux_and_posix_modules_are_missing() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def test_cpus_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert usable_cpus() == 3
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert usable_cpus() == 7
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert usable_cpus() == 1


def test_a_lock_keeps_others_out_until_its_file_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("wb") as first, (tmp_path / "lock").open("rb") as second:
        lock_file(first.fileno())
        with pytest.raises(BlockingIOError):
            lock_file(second.fileno(), wait=False)
        first.close()
        lock_file(second.fileno(), wait=False)


def test_without_locks_the_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "fcntl", None)
    with (tmp_path / "lock").open("wb") as file, pytest.raises(OSError, match="has no usable file locks"):
        lock_file(file.fileno())


def test_the_simulator_compiles_alone_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpsan.engine.library.fcntl", None)
    objects = Library("generic", "", root=tmp_path)
    with objects._building("runtime", 0.0) as one, objects._building("runtime", 0.0) as other:
        assert one
        assert other
    assert os.listdir(tmp_path) in ([], ["locks"])
