"""Common test setup of both packages: the build cache, test selection, hypothesis's settings."""

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
"""Maximum size in bytes of cached builds from earlier runs; the builds of all tests take about 100 MB."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that select slow tests, and that run the simulator's tests on a GPU."""
    parser.addoption("--full", action="store_true", help="also the tests that are marked slow")
    parser.addoption(
        "--record", action="store_true", help="write the recorded outcomes of tests anew (testkit/recorded.py)"
    )
    text = "repeat the simulator's clean launches on a GPU, and record the results in FOLDER/golden.jsonl"
    parser.addoption("--replay-on-gpu", metavar="FOLDER", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment of all tests and their child processes, before any package is imported."""
    _leave_the_users_folders(config)
    # readline exports the size of a missing terminal, and tables would use it.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # Every core has a worker: additional threads of NumPy and torch would wait for each other.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # Inductor's compile processes would outlive their test, and look like leftovers of another test.
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
    """Redirect all user folders to a temporary home, and the build cache to a folder of the tests.

    All workers and runs share that cache: its entries are keyed by content, so an entry of another run is the same
    build. ``fresh_cache`` is for tests of the cache itself.
    """
    # Both depend on the user's home, so they are read before it changes; workers and nested runs inherit them.
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())
    cache = os.environ.get("SDPALAB_TEST_CACHE_DIR") or str(platformdirs.user_cache_path("sdpalab-tests"))
    home = tempfile.mkdtemp(prefix="sdpalab-tests-home-")
    config.add_cleanup(partial(shutil.rmtree, home, ignore_errors=True))
    os.environ |= {"HOME": home, "WARPSAN_CACHE_DIR": cache, "SDPALAB_TEST_CACHE_DIR": cache}
    # Font lists take seconds to build, and wheels minutes to load.
    os.environ |= {"MPLCONFIGDIR": str(Path(cache) / "matplotlib"), "PIP_CACHE_DIR": str(Path(cache) / "pip")}
    for name in ("SDPALAB_DATA_DIR", *(name for name in os.environ if name.startswith("XDG_") and "_HOME" in name)):
        os.environ.pop(name, None)


def _leave_the_packages_as_they_are(config: pytest.Config) -> None:
    """Prevent pytest from rewriting asserts of the packages, its default for distributions with a plugin: rewriting 600
    uncompiled modules takes each worker ten seconds.
    """
    getattr(config.pluginmanager.rewrite_hook, "_must_rewrite", set()).difference_update({"sdpalab", "warpsan"})


def _replay_on_gpu(config: pytest.Config) -> None:
    """Replace ``warpsan.launch`` before any test imports it."""
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
    """Fixed examples in the fast suite, new random examples in the full suite."""
    try:
        from hypothesis import settings
    except ImportError:  # some runs of scripts/gpu_suite.sh lack it
        return
    settings.register_profile("fast", max_examples=20, derandomize=True, database=None, deadline=None)
    settings.register_profile("full", max_examples=100, database=None, deadline=None)
    settings.load_profile("full" if full else "fast")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, in the fast suite, ``slow`` tests and cases outside a test's ``sample``. Files marked ``first`` run
    first.
    """
    config.stash[COLLECTED] = {item.nodeid for item in items}
    if not is_full(config):
        beyond = beyond_the_sample(items)
        left_out = [item for item in items if item in beyond or item.get_closest_marker("slow")]
        leave_out(config, items, left_out, "slow: --full runs them")
    # One worker runs a whole file: if the longest ran last, the other workers would wait.
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_collection_finish() -> None:
    """Freeze the collected objects, which live to the end of the run, so that the garbage collector skips them."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report the counts of a pytest-xdist worker to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Copy a worker's counts; all workers collect all tests, so their counts are equal."""
    node.config.stash[LEFT_OUT].update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print one line per reason of deselection."""
    for reason, count in config.stash[LEFT_OUT].items():
        terminalreporter.write_line(f"DESELECTED [{count}] {reason}")


@pytest.fixture(autouse=True, scope="module")
def _path_as_before() -> Iterator[None]:
    """Restore ``sys.path`` after a test: a loaded kernel file adds its folder, which other modules must not import
    from.
    """
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
