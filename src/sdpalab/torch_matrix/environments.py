"""One isolated environment per torch version: made once with venv and pip, kept in the cache, checked before each use.

The package index is whatever pip is configured for (its configuration file, ``PIP_INDEX_URL``...). That is why the
installer is pip alone: uv reads none of that. Of one version pip takes the build with the highest local label, so an
index with CPU builds, such as ``PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu``, gives ``2.5.1+cpu`` where
PyPI alone gives the CUDA build and gigabytes of CUDA with it; what is to be downloaded is summed up before anything is.

An environment is a folder. The process that makes it holds a flock, and a marker is written last: what was interrupted
has none and is made anew, and so is what no longer imports.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sdpalab.compile import Cache
from sdpalab.compile.cache import key_of
from sdpalab.errors import UserError
from sdpalab.locks import lock_file

__all__ = ["CannotInstall", "TorchEnvironment", "check_version", "lab_packages", "make_environment", "this_environment"]

Tell = Callable[[str], None]

_LAB = (
    "numpy",
    "ml_dtypes",
    "pydantic",
    "platformdirs",
    "cloudpickle",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cuda-crt",
)
"""What the judge and the simulator import, or read headers from, beside torch."""

_FOR_NUMPY_1 = {"numpy": "numpy>=1.26,<2", "ml_dtypes": "ml_dtypes>=0.4"}

_VERSION = re.compile(r"(\d+)(?:\.(\d+))?(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-z0-9.]+)?")
"""A version as PEP 440 writes it, down to its local label."""

_MARKER = "complete.json"
_INSTALL_SECONDS = 3600.0
_UNPACKED = 2.5
"""Bytes on disk for each byte downloaded, with room for both at once: wheels of libraries unpack to about twice."""


class CannotInstall(Exception):
    """There is no environment for this version; the message says why, in a sentence."""


@dataclass(frozen=True)
class TorchEnvironment:
    """An interpreter that has one torch.

    Attributes
    ----------
    torch : str
        The build that is installed, such as ``2.5.1+cu124``.
    python : str
        Path of the interpreter.
    path : tuple of str
        What is to come first on its ``sys.path``.
    here : bool
        True if it is the environment that this process runs in.
    """

    torch: str
    python: str
    path: tuple[str, ...] = ()
    here: bool = False


def check_version(text: str) -> str:
    """``text`` if it is a version of torch that has attention.

    Raises
    ------
    UserError
        If it is not a version, or older than 2.0, where scaled_dot_product_attention came.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise UserError(f"--torch takes a version such as 2.5.1 or 2.5.1+cpu, not {text!r}")
    if int(match[1]) < 2:
        raise UserError(f"--torch {text}: scaled_dot_product_attention is in torch since 2.0")
    return text


def this_environment(version: str | None = None) -> TorchEnvironment | None:
    """The environment of this process, if it has a torch, and that is a build of ``version`` (None: whichever)."""
    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    if version is not None and not _is_build_of(installed, version):
        return None
    path = tuple(entry or str(Path.cwd()) for entry in sys.path)
    return TorchEnvironment(installed, sys.executable, path, here=True)


def lab_packages(version: str) -> tuple[str, ...]:
    """Requirements of the lab beside torch: the same versions as here, so that only torch differs.

    The exception is a torch older than 2.3, which was built for NumPy 1 and does not take the arrays of NumPy 2.
    """
    match = _VERSION.fullmatch(version)
    assert match is not None, "the version was checked"
    instead = _FOR_NUMPY_1 if (int(match[1]), int(match[2] or 0)) < (2, 3) else {}
    requirements = []
    for name in _LAB:
        try:
            requirements.append(instead.get(name) or f"{name}=={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return tuple(requirements)


def make_environment(
    version: str,
    packages: Sequence[str],
    *,
    max_bytes: int,
    tell: Tell = lambda message: None,
    root: Path | None = None,
) -> TorchEnvironment:
    """The environment with ``torch==version`` and ``packages``: from the cache, or made now.

    Parameters
    ----------
    version : str
        See :func:`check_version`.
    packages : sequence of str
        Requirements as pip takes them.
    max_bytes : int
        Most that may be downloaded.
    tell : callable
        Called with a short description of each step.
    root : Path, optional
        Where environments are kept. Default: ``torch`` in the build cache's folder.

    Raises
    ------
    CannotInstall
        If pip finds no such torch for this Python, the packages do not go together, there is too little space, more
        would be downloaded than allowed, or what was installed does not import.
    """
    root = root or Cache().root / "torch"
    requirements = (f"torch=={version}", *packages)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    key = key_of(sys.version, platform.platform(), os.path.realpath(sys.executable), *requirements)
    folder = root / f"{version}-{tag}-{key[:12]}"
    try:
        with _lock(root / "locks" / folder.name):
            existing = _existing(folder, version)
            if existing is not None:
                return existing
            shutil.rmtree(folder, ignore_errors=True)
            try:
                return _make(folder, version, requirements, max_bytes, tell)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except OSError as error:
        raise CannotInstall(f"{folder} cannot be written: {error.strerror or error}") from None


def _existing(folder: Path, version: str) -> TorchEnvironment | None:
    """The environment in ``folder``, if it is complete and its torch still imports."""
    if not (folder / _MARKER).is_file():
        return None
    try:
        return _probed(folder, version)
    except CannotInstall:
        return None


def _make(folder: Path, version: str, requirements: Sequence[str], max_bytes: int, tell: Tell) -> TorchEnvironment:
    tell(f"torch {version}: making its environment")
    folder.mkdir(parents=True)
    # The pip that is here serves, being quicker to have and mostly newer than the one that venv would put there.
    pip_here = importlib.util.find_spec("pip") is not None
    without = ["--without-pip"] if pip_here else []
    _checked([sys.executable, "-I", "-m", "venv", *without, str(folder)], "venv")
    pip = [sys.executable, "-I", "-m", "pip", "--python", _python(folder)]
    pip = pip if pip_here else [_python(folder), "-I", "-m", "pip"]
    install = [*pip, "--disable-pip-version-check", "--no-input", "install"]
    tell(f"torch {version}: resolving its packages")
    report = folder / "report.json"
    _checked([*install, "--dry-run", "--report", str(report), *requirements], "pip")
    size = sum(_size(item["download_info"]["url"]) for item in json.loads(report.read_bytes())["install"])
    if size > max_bytes:
        raise CannotInstall(
            f"{_gib(size)} to download, more than the {_gib(max_bytes)} that --max-download allows; "
            "a CPU build is smaller: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
        )
    free = shutil.disk_usage(folder).free
    if free < _UNPACKED * size:
        raise CannotInstall(
            f"{_gib(size)} to download need {_gib(_UNPACKED * size)} of disk, and {_gib(free)} are free"
        )
    tell(f"torch {version}: downloading and installing {_gib(size)}")
    _checked([*install, *requirements], "pip")
    environment = _probed(folder, version)
    (folder / _MARKER).write_text(json.dumps({"torch": environment.torch, "requirements": list(requirements)}) + "\n")
    return environment


def _probed(folder: Path, version: str) -> TorchEnvironment:
    """What ``import torch`` gives in ``folder``; CannotInstall if nothing, or another version than the requested
    one."""
    python = _python(folder)
    output = _checked([python, "-I", "-c", "import torch; print('torch is', torch.__version__)"], "import torch")
    torch = output.rpartition("torch is ")[2].strip()
    if not _is_build_of(torch, version):
        raise CannotInstall(f"what was installed as torch {version} says that it is {torch}")
    return TorchEnvironment(torch, python)


def _checked(command: Sequence[str], name: str) -> str:
    """Run a tool and return what it printed; CannotInstall with the main line of its error if it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INSTALL_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"{name} did not finish within {_INSTALL_SECONDS:g} s") from None
    except OSError as error:
        raise CannotInstall(f"{name} cannot be started: {error.strerror}") from None
    if done.returncode:
        raise CannotInstall(f"{name}: {_gist(done.stdout, done.stderr)}")
    return done.stdout


def _gist(stdout: str, stderr: str) -> str:
    """The main sentence of an error that pip or Python printed."""
    lines = [line.strip() for line in (stdout + "\n" + stderr).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("The user requested ") or " depends on " in line]
    if any(line.startswith("The conflict is caused by") for line in lines):
        return f"the packages do not go together: {'; '.join(causes)}"[:500]
    complaints = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (complaints or lines or ["it failed without a word"])[-1][:500]


def _size(url: str) -> int:
    """Bytes behind a URL of pip's report; 0 if unknown."""
    parts = urllib.parse.urlsplit(url)
    try:
        if parts.scheme == "file":
            return Path(urllib.request.url2pathname(parts.path)).stat().st_size
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=20) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, ValueError):
        return 0


def _is_build_of(build: str, version: str) -> bool:
    """True if ``build`` (``2.5.0+cu124``) is what ``version`` (``2.5``, or with a label of its own) requests."""

    def release(text: str) -> str:
        return re.sub(r"(\.0)+(?=$|[a-z+])", "", text.partition("+")[0])

    label = version.partition("+")[2]
    return release(build) == release(version) and label in ("", build.partition("+")[2])


def _python(folder: Path) -> str:
    return str(folder / "bin" / "python")


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**29 else f"{size / 2**20:.0f} MiB"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold ``path`` alone; the operating system releases it when the holder ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor: Any = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        lock_file(descriptor)
        yield
    finally:
        os.close(descriptor)
