"""Fixtures of the lab's tests: the command line as a process, and the stand-in for a GPU."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from copied_commands import can_copy, run_copy

ROOT = Path(__file__).resolve().parents[3]
TESTS = Path(__file__).resolve().parent
SOURCES = [ROOT / "packages" / name / "src" for name in ("sdpalab", "warpsan")]
sys.path += [str(TESTS / "standin"), str(TESTS / "jobs"), str(ROOT / "packages" / "warpsan" / "tests")]

from standin_gpu import StandIn, compile_library, prepended  # noqa: E402  (of the folder that was just named)

from sampling import is_full, leave_out  # noqa: E402

Runner = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_configure(config: pytest.Config) -> None:
    """Hold each JSON document that a test's command writes against its model."""
    os.environ["SDPALAB_CHECK_DOCUMENTS"] = "1"
    if "standin_torch" in sys.modules:  # by sitecustomize: this process has the stand-in for a GPU
        sys.modules["standin_torch"].apply()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect ``gpu`` where there is no GPU."""
    from sdpalab.run import gpu_problem

    no_gpu = gpu_problem()
    if no_gpu:
        leave_out(config, items, [item for item in items if item.get_closest_marker("gpu")], no_gpu)


@pytest.fixture(autouse=True, scope="session")
def _copied_processes(pytestconfig: pytest.Config) -> Iterator[None]:
    """The judge's processes are copies of one that has imported torch, which takes each two seconds; with --full they
    are programs of their own, as a command's are."""
    if is_full(pytestconfig):
        yield
        return
    from sdpalab.judge.sandbox.guarded import fork_server

    with fork_server():
        yield


@pytest.fixture
def _in_the_foreground() -> Iterator[None]:
    """Ctrl-C interrupts, as at a prompt: what a shell started in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def cli(pytestconfig: pytest.Config) -> Runner:
    """Run ``sdpalab ARGUMENTS`` in a process of its own; ``cwd``, ``env`` and ``timeout`` as in subprocess.run. With
    --full, and where ``env`` has what only a program that starts obeys, it is one that is started."""

    def run(
        *arguments: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": prepended("PYTHONPATH", *SOURCES),
            "NO_COLOR": "1",
            **(env or {}),
        }
        if can_copy(env or {}) and not is_full(pytestconfig):
            return run_copy(list(map(str, arguments)), cwd, environment, timeout)
        return subprocess.run(
            [sys.executable, "-m", "sdpalab", *map(str, arguments)],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.fixture(scope="session")
def standin_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in's ``libcuda.so.1``, compiled; skips, visibly, where that cannot be."""
    folder = tmp_path_factory.mktemp("standin")
    reason = compile_library(folder)
    if reason:
        pytest.skip(reason)
    return folder / "libcuda.so.1"


@pytest.fixture
def standin(standin_library: Path, tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """A GPU for the processes that a test starts: an H200 that is the simulator (``tests/standin``)."""
    return StandIn(standin_library, tmp_path_factory.mktemp("gpu"))


@pytest.fixture
def cli_here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    """``cli`` within this process, which costs no start of Python: for the many ways to be refused."""
    from sdpalab.cli import main

    def run(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd)
        monkeypatch.setenv("NO_COLOR", "1")
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    """``load_script(name)``: a file of ``scripts/`` as a module, with those beside it that it imports."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, str(ROOT / "scripts"))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(ROOT / "scripts"))
        return module

    return load
