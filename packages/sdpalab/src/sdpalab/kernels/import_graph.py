"""Source files behind a module of the lab, by its imports, and one digest of them.

The graph comes from the text: imports anywhere in a file count, and so do modules named in a string, such as those of
processes. The graph may contain too many files, never too few.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

from sdpalab.installation import IMPORT_FOLDERS

__all__ = ["digest_of", "files_behind"]

_PACKAGES = {name: Path(folder, name) for folder, name in zip(IMPORT_FOLDERS, ("sdpalab", "warpsan"), strict=True)}
"""Folders of the lab and of the simulator."""
_NAME = "(?:sdpalab|warpsan)"
_IMPORT = re.compile(
    rf"^[ \t]*from ({_NAME}(?:\.\w+)*) import (\([^)]*\)|[^\n(]*)"
    rf"|^[ \t]*import ({_NAME}(?:\.\w+)*)"
    rf"|[\"']({_NAME}(?:\.\w+)+)(\.\{{)?",
    re.MULTILINE,
)
"""``from MODULE import NAMES``, ``import MODULE``, ``"MODULE"``, and ``f"PACKAGE.{...}"``, i.e. all its modules."""
_OWN_MODULES = 'f"{__name__}.{'
_DATA = re.compile(r"[\"']([\w-]+\.json)[\"']")


def digest_of(*roots: str, within: str = "") -> str:
    """Sha256 of the files and names that :func:`files_behind` returns, restricted to those ``within`` a package."""
    digest = sha256()
    folders = [_folder(within)] if within else list(_PACKAGES.values())
    for path in files_behind(*roots):
        package = next((each for each in _PACKAGES.values() if path.is_relative_to(each)), None)
        if package is not None and any(path.is_relative_to(folder) for folder in folders):
            text = path.read_bytes()
            digest.update(f"{path.relative_to(package.parent).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def files_behind(*roots: str) -> list[Path]:
    """Python files of modules and of all modules of the lab that they import, and JSON files that they name."""
    seen: dict[str, Path] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if name in seen or path is None:
            continue
        seen[name] = path
        waiting += _imports(name, path)
    texts = ((path, path.read_text()) for path in seen.values())
    data = {path.with_name(name) for path, text in texts for name in _DATA.findall(text)}
    return sorted({*seen.values(), *filter(Path.is_file, data)})


def _imports(name: str, path: Path) -> Iterator[str]:
    """Names of modules, and others, that a module may import; its package comes first, in Python's import order."""
    if name == "sdpalab":  # imports nothing until a name is used; the lab imports the modules themselves
        yield "sdpalab.version"
        return
    yield name.rpartition(".")[0]
    text = path.read_text()
    if _OWN_MODULES in text:
        yield from _modules_in(name)
    for source, names, imported, named, every in _IMPORT.findall(text):
        yield source or imported or named
        yield from (f"{source}.{each}" for each in re.findall(r"\w+", names))
        if every:
            yield from _modules_in(named)


def _modules_in(package: str) -> Iterator[str]:
    for path in _folder(package).glob("*.py"):
        yield f"{package}.{path.stem}"


@cache
def _file(name: str) -> Path | None:
    """The file of a module; None for a module outside the lab."""
    if name.partition(".")[0] not in _PACKAGES:
        return None
    path = _folder(name)
    candidates = (path.with_name(f"{path.name}.py"), path / "__init__.py") if "." in name else (path / "__init__.py",)
    return next((each for each in candidates if each.is_file()), None)


def _folder(name: str) -> Path:
    first, *rest = name.split(".")
    return _PACKAGES[first].joinpath(*rest)
