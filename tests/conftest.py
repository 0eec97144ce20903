"""Fixtures of all tests: an isolated build cache, GPU tests that skip themselves, and the command line as a process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import platformdirs
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "standin"))

from standin_gpu import StandIn, compile_library, prepended  # noqa: E402  (of the folder that was just named)

Runner = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that makes the simulator's tests a GPU's."""
    text = "repeat the simulator's clean launches on a GPU, and record the results in FOLDER/golden.jsonl"
    parser.addoption("--replay-on-gpu", metavar="FOLDER", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Give all workers and runs one build cache, before anything of the lab is imported: its entries are found by their
    content, so an entry of another run is the same build. ``fresh_cache`` is for tests of the cache itself."""
    os.environ["SDPALAB_CACHE_DIR"] = os.environ.get("SDPALAB_TEST_CACHE_DIR") or str(
        platformdirs.user_cache_path("sdpalab-tests")
    )
    # readline exports the size of a terminal that there is not, and tables would be made for it.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # Inductor's own compile processes would outlive the test that compiles, and be taken for somebody's leftovers.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if "standin_torch" in sys.modules:  # by sitecustomize: this process has the stand-in for a GPU
        sys.modules["standin_torch"].apply()
    if config.getoption("--replay-on-gpu"):
        _replay_on_gpu(config)


def _replay_on_gpu(config: pytest.Config) -> None:
    """Stand in for ``sdpalab.sim.launch`` before any test imports it."""
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        raise pytest.UsageError("--replay-on-gpu takes one process: leave out -n")
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    from replay import Replay
    from replay_process import GpuProcess

    from sdpalab import sim
    from sdpalab.errors import MachineError

    try:
        gpu = GpuProcess()
    except MachineError as error:
        raise pytest.UsageError(f"--replay-on-gpu: {error}") from None
    config.add_cleanup(gpu.close)
    plugin = Replay(config.getoption("--replay-on-gpu"), gpu.run, gpu.about)
    sim.launch = plugin.launch
    config.pluginmanager.register(plugin)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked ``gpu``, with the reason in the summary, where there is no GPU."""
    from sdpalab.run import gpu_problem

    for item in items:
        if item.get_closest_marker("gpu") and gpu_problem():
            item.add_marker(pytest.mark.skip(reason=gpu_problem()))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root directory."""
    return ROOT


@pytest.fixture(scope="session")
def cli() -> Runner:
    """Run ``sdpalab ARGUMENTS`` in a process of its own; ``cwd``, ``env`` and ``timeout`` as in subprocess.run."""

    def run(
        *arguments: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": prepended("PYTHONPATH", ROOT / "src"),
            "NO_COLOR": "1",
            **(env or {}),
        }
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
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty build cache for one test."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("SDPALAB_CACHE_DIR", str(directory))
    return directory


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    """``load_script(name)``: a file of ``scripts/`` as a module."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    return load
