"""What the tests of both packages share: one build cache, which tests run here, hypothesis's settings."""

from __future__ import annotations

import gc
import os
import shutil
import site
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
import pytest

ROOT = Path(__file__).resolve().parent
sys.path += [str(ROOT / "testkit")]

from recorded import COLLECTED, module_records, recorded, recorded_launches, recorded_wholly  # noqa: E402, F401
from sampling import LEFT_OUT, beyond_the_sample, is_full, leave_out  # noqa: E402  (of the folder that was just named)

MOST_CACHE_BYTES = 1 << 30
"""What builds of earlier runs may take; all tests' own take about 100 MB."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that select the slow tests, too, and that make the simulator's tests a GPU's."""
    parser.addoption("--full", action="store_true", help="also the tests that are marked slow")
    parser.addoption(
        "--record", action="store_true", help="write the recorded outcomes of tests anew (testkit/recorded.py)"
    )
    text = "repeat the simulator's clean launches on a GPU, and record the results in FOLDER/golden.jsonl"
    parser.addoption("--replay-on-gpu", metavar="FOLDER", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment of all tests and of the processes that they start, before a package is imported."""
    _leave_the_users_folders(config)
    # readline exports the size of a terminal that there is not, and tables would be made for it.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # Every core has a worker of its own: with threads of their own, too, NumPy's and torch's would wait for each other.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # Inductor's own compile processes would outlive the test that compiles, and be taken for leftovers of another test.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    _configure_hypothesis(is_full(config))
    _leave_the_packages_as_they_are(config)
    config.stash[LEFT_OUT] = {}
    if config.getoption("--record") and (hasattr(config, "workerinput") or config.getoption("numprocesses", None)):
        raise pytest.UsageError("--record takes one process: leave out -n")
    if config.getoption("--replay-on-gpu"):
        _replay_on_gpu(config)
    if not hasattr(config, "workerinput"):
        from warpsan.build import Cache

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


def _leave_the_packages_as_they_are(config: pytest.Config) -> None:
    """Keep pytest from rewriting the packages' own asserts, as it does for every distribution with a plugin: rewriting
    600 modules takes each worker ten seconds where nothing is compiled yet."""
    getattr(config.pluginmanager.rewrite_hook, "_must_rewrite", set()).difference_update({"sdpalab", "warpsan"})


def _replay_on_gpu(config: pytest.Config) -> None:
    """Stand in for ``warpsan.launch`` before any test imports it."""
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        raise pytest.UsageError("--replay-on-gpu takes one process: leave out -n")
    sys.path.insert(0, str(ROOT / "packages" / "sdpalab" / "tests" / "gpu"))
    from replay import Replay
    from replay_process import GpuProcess

    import warpsan

    try:
        gpu = GpuProcess()
    except warpsan.MachineError as error:
        raise pytest.UsageError(f"--replay-on-gpu: {error}") from None
    config.add_cleanup(gpu.close)
    plugin = Replay(config.getoption("--replay-on-gpu"), gpu.run, gpu.about)
    warpsan.launch = plugin.launch
    config.pluginmanager.register(plugin)


def _configure_hypothesis(full: bool) -> None:
    """The fast suite repeats the same few examples; the full one draws new ones each time."""
    try:
        from hypothesis import settings
    except ImportError:  # scripts/gpu_suite.sh runs some of the tests where it is not installed
        return
    settings.register_profile("fast", max_examples=20, derandomize=True, database=None, deadline=None)
    settings.register_profile("full", max_examples=100, database=None, deadline=None)
    settings.load_profile("full" if full else "fast")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, in the fast suite, ``slow`` and what is not in a test's ``sample``. Files that are marked ``first`` go
    first."""
    config.stash[COLLECTED] = {item.nodeid for item in items}
    if not is_full(config):
        beyond = beyond_the_sample(items)
        left_out = [item for item in items if item in beyond or item.get_closest_marker("slow")]
        leave_out(config, items, left_out, "slow: --full runs them")
    # One worker runs a whole file: with the longest last, the others would wait for it.
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


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


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root directory."""
    return ROOT


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty build cache for one test."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("WARPSAN_CACHE_DIR", str(directory))
    return directory
