"""Environment of a job and the commit of the lab, without data that identifies a host or a person."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

from sdpalab.errors import UserError
from sdpalab.evidence.records import Environment, Harness
from sdpalab.installation import IMPORT_FOLDERS, source_tree

__all__ = ["COMMIT_VARIABLE", "current_environment", "git", "harness_diff", "repository"]

COMMIT_VARIABLE = "SDPALAB_COMMIT"
"""Environment variable with the commit of a tree without ``.git``: 40 hex digits, followed by ``-dirty`` if the tree
was changed, as printed by ``git describe --always --abbrev=40 --dirty --exclude='*'``."""

PACKAGES = (
    "torch",
    "numpy",
    "ml_dtypes",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cuda-crt",
    "nvidia-cuda-cuobjdump",
    "nvidia-cuda-nvdisasm",
    "triton",
    "pydantic",
    "matplotlib",
    "jinja2",
)
"""Packages whose versions affect a result or its presentation."""

_PACKAGE_DIRS = tuple(Path(folder, name) for folder, name in zip(IMPORT_FOLDERS, ("sdpalab", "warpsan"), strict=True))
_SHIPPED = Path(__file__).resolve().parent / "shipped"
"""Records that a wheel contains; they are results, not sources."""
_SOURCES = {".py", ".cu", ".cuh", ".json", ".j2"}
_TRACKED = ("packages", "pyproject.toml", "constraints.txt", "repro.sh")
"""Parts of the repository that affect a result; their diff is stored in the bundle."""


def current_environment(diff: str) -> Environment:
    """The environment of this process; the harness is dirty if ``diff``, from :func:`harness_diff`, is not empty.

    Raises
    ------
    UserError
        If there is no git work tree, and ``SDPALAB_COMMIT`` is not a commit.
    """
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    gpu, driver = _gpu_and_driver()
    return Environment(
        python=platform.python_version(),
        system=" ".join((platform.system(), *filter(None, platform.libc_ver()))),
        machine=platform.machine(),
        cpu_count=os.cpu_count() or 1,
        gpu=gpu,
        driver=driver,
        packages=versions,
        harness=_harness(dirty=bool(diff)),
    )


def harness_diff() -> str:
    """Difference of the lab's working tree from its commit, including new files; empty if clean or outside git."""
    root = repository()
    tracked = [name for name in _TRACKED if root is not None and (root / name).exists()]
    if root is None or not tracked:
        return ""
    changed = git(root, "diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--", *tracked) or ""
    untracked = git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *tracked) or ""
    # exit status 1 means "they differ", which is always so for a new file
    new = [
        git(root, "diff", "--no-index", "--binary", "--no-color", "--", os.devnull, name, good=(0, 1)) or ""
        for name in filter(None, untracked.split("\0"))
    ]
    return "".join((changed, *new))


def _harness(*, dirty: bool) -> Harness:
    root = repository()
    if root is None:
        commit, dirty = _given_commit()
    else:
        commit = (git(root, "rev-parse", "HEAD") or "").strip() or None
    digest = hashlib.sha256()
    for package in _PACKAGE_DIRS:
        for path in sorted(package.rglob("*")):
            if path.suffix in _SOURCES and path.is_file() and _SHIPPED not in path.parents:
                name, content = path.relative_to(package.parent).as_posix().encode(), path.read_bytes()
                digest.update(b"%d:%b%d:%b" % (len(name), name, len(content), content))
    return Harness(
        commit=commit,
        dirty=dirty,
        package_sha256=digest.hexdigest(),
        version=_version(),
    )


def _given_commit() -> tuple[str | None, bool]:
    """Commit in the environment variable, and whether the tree was changed; (None, False) if it is not set."""
    text = os.environ.get(COMMIT_VARIABLE, "")
    if not text:
        return None, False
    match = re.fullmatch(r"([0-9a-f]{40})(-dirty)?", text)
    if match is None:
        raise UserError(
            f"{COMMIT_VARIABLE} takes a commit's 40 hex digits, with -dirty behind them if the tree was changed, "
            f"not {text!r}"
        )
    return match[1], match[2] is not None


def _version() -> str:
    try:
        return metadata.version("sdpalab")
    except metadata.PackageNotFoundError:
        return "source tree"


def repository() -> Path | None:
    """Root of the git work tree that holds this package, or None (an installed copy, no git)."""
    root = source_tree()
    return root if root is not None and (root / ".git").exists() else None


def git(root: Path, *arguments: str, good: tuple[int, ...] = (0,)) -> str | None:
    """Output of git in ``root``; None without git, or if its exit code is not in ``good``."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, check=False, timeout=60, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode in good else None


def _gpu_and_driver() -> tuple[str | None, str | None]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, check=False, timeout=20, stdin=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None, None
    lines = [line for line in done.stdout.splitlines() if "," in line]
    if done.returncode or not lines:
        return None, None
    name, driver = (part.strip() for part in lines[0].rsplit(",", 1))
    return name, driver
