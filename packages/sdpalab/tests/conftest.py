"""Shared by all tests: folders of their own, which tests run here, hypothesis's settings, the command as a process."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import platformdirs
import pytest

from copied_commands import can_copy, run_copy
from recorded import COLLECTED, module_records, recorded, recorded_launches, recorded_wholly  # noqa: F401  (fixtures)
from sampling import beyond_the_sample

ROOT = Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "packages" / "sdpalab" / "tests" / folder) for folder in ("standin", "jobs")]

from standin_gpu import StandIn, compile_library, prepended  # noqa: E402  (of the folder that was just named)

Runner = Callable[..., "subprocess.CompletedProcess[str]"]


MOST_CACHE_BYTES = 1 << 30
"""What builds of earlier runs may take; all tests' own take about 100 MB."""
LEFT_OUT = pytest.StashKey[dict[str, int]]()
"""How many tests are deselected here, by reason."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that select the slow tests, too, and that make the simulator's tests a GPU's."""
    parser.addoption("--full", action="store_true", help="also the tests that are marked slow")
    parser.addoption(
        "--record", action="store_true", help="write the recorded outcomes of tests anew (tests/recorded.py)"
    )
    text = "repeat the simulator's clean launches on a GPU, and record the results in FOLDER/golden.jsonl"
    parser.addoption("--replay-on-gpu", metavar="FOLDER", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment of all tests and of the processes that they start, before anything of the lab is imported."""
    _leave_the_users_folders(config)
    os.environ["SDPALAB_CHECK_DOCUMENTS"] = "1"  # every JSON document that any test's command writes
    # readline exports the size of a terminal that there is not, and tables would be made for it.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # Every core has a worker of its own: with threads of their own, too, NumPy's and torch's would wait for each other.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # Inductor's own compile processes would outlive the test that compiles, and be taken for leftovers of another test.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    _configure_hypothesis(_is_full(config))
    _leave_the_lab_as_it_is(config)
    config.stash[LEFT_OUT] = {}
    if "standin_torch" in sys.modules:  # by sitecustomize: this process has the stand-in for a GPU
        sys.modules["standin_torch"].apply()
    if config.getoption("--record") and (hasattr(config, "workerinput") or config.getoption("numprocesses", None)):
        raise pytest.UsageError("--record takes one process: leave out -n")
    if config.getoption("--replay-on-gpu"):
        _replay_on_gpu(config)
    if not hasattr(config, "workerinput"):
        from sdpalab.compile import Cache

        Cache().prune(MOST_CACHE_BYTES)


def _leave_the_users_folders(config: pytest.Config) -> None:
    """Point every folder of the user's into a temporary home, and the build cache into a folder of the tests' own.

    All workers and runs share that cache: its entries are keyed by their content, so an entry of another run is the
    same build. ``fresh_cache`` is for tests of the cache itself.
    """
    # Both are of the user's home, and so read before it changes; a worker or a nested run inherits them.
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())
    cache = os.environ.get("SDPALAB_TEST_CACHE_DIR") or str(platformdirs.user_cache_path("sdpalab-tests"))
    home = tempfile.mkdtemp(prefix="sdpalab-tests-home-")
    config.add_cleanup(partial(shutil.rmtree, home, ignore_errors=True))
    os.environ |= {"HOME": home, "WARPSAN_CACHE_DIR": cache, "SDPALAB_TEST_CACHE_DIR": cache}
    # A list of fonts takes seconds to make, and wheels minutes to load.
    os.environ |= {"MPLCONFIGDIR": str(Path(cache) / "matplotlib"), "PIP_CACHE_DIR": str(Path(cache) / "pip")}
    for name in ("SDPALAB_DATA_DIR", *(name for name in os.environ if name.startswith("XDG_") and "_HOME" in name)):
        os.environ.pop(name, None)


def _leave_the_lab_as_it_is(config: pytest.Config) -> None:
    """Keep pytest from rewriting the lab's own asserts, as it does for every distribution with a plugin: rewriting 600
    modules takes each worker ten seconds where nothing is compiled yet."""
    hook = config.pluginmanager.rewrite_hook
    getattr(hook, "_must_rewrite", set()).discard("sdpalab")


def _configure_hypothesis(full: bool) -> None:
    """The fast suite repeats the same few examples; the full one draws new ones each time."""
    try:
        from hypothesis import settings
    except ImportError:  # scripts/gpu_suite.sh runs some of the tests where it is not installed
        return
    settings.register_profile("fast", max_examples=20, derandomize=True, database=None, deadline=None)
    settings.register_profile("full", max_examples=100, database=None, deadline=None)
    settings.load_profile("full" if full else "fast")


def _replay_on_gpu(config: pytest.Config) -> None:
    """Stand in for ``warpsan.launch`` before any test imports it."""
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        raise pytest.UsageError("--replay-on-gpu takes one process: leave out -n")
    sys.path.insert(0, str(ROOT / "packages" / "sdpalab" / "tests" / "gpu"))
    from replay import Replay
    from replay_process import GpuProcess

    import warpsan
    from sdpalab.errors import MachineError

    try:
        gpu = GpuProcess()
    except MachineError as error:
        raise pytest.UsageError(f"--replay-on-gpu: {error}") from None
    config.add_cleanup(gpu.close)
    plugin = Replay(config.getoption("--replay-on-gpu"), gpu.run, gpu.about)
    warpsan.launch = plugin.launch
    config.pluginmanager.register(plugin)


def _is_full(config: pytest.Config) -> bool:
    return bool(config.getoption("--full") or config.getoption("--replay-on-gpu"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect ``gpu`` where there is no GPU; in the fast suite ``slow``, and what is not in a test's ``sample``. Files
    that are marked ``first`` go first."""
    from sdpalab.run import gpu_problem

    config.stash[COLLECTED] = {item.nodeid for item in items}
    no_gpu, slow = gpu_problem(), "slow: --full runs them"
    beyond = set() if _is_full(config) else beyond_the_sample(items)
    selected: list[pytest.Item] = []
    left_out: dict[str, list[pytest.Item]] = {}
    for item in items:
        if no_gpu and item.get_closest_marker("gpu"):
            left_out.setdefault(no_gpu, []).append(item)
        elif item in beyond or (item.get_closest_marker("slow") and not _is_full(config)):
            left_out.setdefault(slow, []).append(item)
        else:
            selected.append(item)
    # One worker runs a whole file: with the longest last, the others would wait for it.
    items[:] = sorted(selected, key=lambda item: item.get_closest_marker("first") is None)
    for reason, tests in left_out.items():
        config.stash[LEFT_OUT][reason] = len(tests)
        config.hook.pytest_deselected(items=tests)


def pytest_collection_finish() -> None:
    """What there is now stays to the end of the run: the garbage collector has no need to look at it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist reports its counts to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over a worker's counts; each worker collects all tests, and so all have the same."""
    node.config.stash[LEFT_OUT].update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line for each reason why tests are deselected."""
    for reason, count in config.stash[LEFT_OUT].items():
        terminalreporter.write_line(f"DESELECTED [{count}] {reason}")


@pytest.fixture(autouse=True, scope="module")
def _path_as_before() -> Iterator[None]:
    """A kernel file that a test loads leaves its folder on ``sys.path``: other modules must not import from it."""
    before = sys.path[:]
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True, scope="session")
def _copied_processes(pytestconfig: pytest.Config) -> Iterator[None]:
    """The judge's processes are copies of one that has imported torch, which takes each two seconds; with --full they
    are programs of their own, as a command's are."""
    if _is_full(pytestconfig):
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
def root() -> Path:
    """The repository's root directory."""
    return ROOT


@pytest.fixture(scope="session")
def cli(pytestconfig: pytest.Config) -> Runner:
    """Run ``sdpalab ARGUMENTS`` in a process of its own; ``cwd``, ``env`` and ``timeout`` as in subprocess.run. With
    --full, and where ``env`` has what only a program that starts obeys, it is one that is started."""

    def run(
        *arguments: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": prepended("PYTHONPATH", ROOT / "src"),
            "NO_COLOR": "1",
            **(env or {}),
        }
        if can_copy(env or {}) and not _is_full(pytestconfig):
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


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty build cache for one test."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("WARPSAN_CACHE_DIR", str(directory))
    return directory


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
