"""Assembles the verifier and the judge's rule into the single file that a bundle carries.

The file contains the text of each module, and imports it under another package name. It needs only NumPy and ml_dtypes,
also where the lab is not installed. Two modules differ from the lab's: the facts are literal values, and the base of
the records has no validation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pprint import pformat

from sdpalab.evidence.verifier import facts
from sdpalab.installation import IMPORT_FOLDERS

__all__ = ["CARRIED", "PACKAGE", "assembled", "carried_modules"]

PACKAGE = "sdpalab_verifier"
"""Name of the package in the file."""
CARRIED = {"numpy", "ml_dtypes"}
"""Packages that its modules may import beside the standard library and each other."""
_MAIN = "sdpalab.evidence.verifier.main"
_OWN = ("sdpalab", "warpsan")
"""Packages whose modules the file contains."""
_NAMES = {"sdpalab": PACKAGE, "warpsan": f"{PACKAGE}_warpsan"}
"""Names of these packages in the file."""
_IMPORTED = re.compile(r"^(\s*(?:from|import)\s+)(sdpalab|warpsan)\b", re.MULTILINE)
_ROOTS = dict(zip(_OWN, (Path(folder) for folder in IMPORT_FOLDERS), strict=True))
_RECORD = '''\
"""The base of records: the verifier checks their fields itself."""

from dataclasses import dataclass as _dataclass

RECORD = None


class JsonRecord:
    """A record."""


def dataclass(*, frozen, config):
    """A dataclass without validation."""
    return _dataclass(frozen=frozen)
'''
_START = """\
import importlib.abc
import importlib.util
import os
import sys

if __name__ == "__main__":
    # NumPy reads it when it is loaded. The threads that derive cases take all CPUs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class Carried(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    \"\"\"Imports the modules whose text is in this file.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name not in MODULES and not any(each.startswith(name + ".") for each in MODULES):
            return None
        package = any(each.startswith(name + ".") for each in MODULES)
        return importlib.util.spec_from_loader(name, self, is_package=package)

    def exec_module(self, module):
        exec(compile(MODULES.get(module.__name__, ""), f"verify.py: {module.__name__}", "exec"), module.__dict__)


"""


def carried_modules() -> dict[str, str]:
    """The text of every module of the file, by its name in the lab.

    Raises
    ------
    ValueError
        If a module imports, when it is loaded, a module outside the file.
    """
    texts: dict[str, str] = {}
    wanted = [_MAIN]
    while wanted:
        name = wanted.pop()
        if name in texts:
            continue
        texts[name] = _text(name)
        for imported in _imports(ast.parse(texts[name])):
            if imported.partition(".")[0] in _OWN:
                wanted.append(imported)
            elif imported.partition(".")[0] not in CARRIED | set(_standard_library()):
                raise ValueError(f"{name} imports {imported}, which the assembled file has not")
    return dict(sorted(texts.items()))


@cache
def assembled() -> str:
    """The text of ``verify.py``, the same for the same modules; raises as :func:`carried_modules`."""
    modules = carried_modules()
    doc = ast.get_docstring(ast.parse(modules[_MAIN]), clean=False)
    parts = [f'#!/usr/bin/env python3\n"""{doc}"""\n\n{_START}MODULES = {{}}\n']
    for name, text in modules.items():
        own = _IMPORTED.sub(lambda match: match[1] + _NAMES[match[2]], text)
        if "'''" in own:
            raise ValueError(f"{name} has three single quotes, which end its text in the assembled file")
        parts.append(f"\n# --- {name} ".ljust(120, "-"))
        parts.append(f"MODULES[{_carried_name(name)!r}] = r'''{own}'''\n")
    main = _carried_name(_MAIN)
    parts.append(f"\nsys.meta_path.insert(0, Carried())\n\nfrom {main} import main  # noqa: E402\n")
    parts.append('if __name__ == "__main__":\n    sys.exit(main(sys.argv[1:]))\n')
    return "\n".join(parts)


def _carried_name(name: str) -> str:
    first, _, rest = name.partition(".")
    return f"{_NAMES[first]}.{rest}"


def _text(name: str) -> str:
    """The text of a module of the lab."""
    if name == "sdpalab.record":
        return _RECORD
    if name == facts.__name__:
        values = (f"{each} = {pformat(getattr(facts, each), width=110, compact=True)}" for each in facts.__all__)
        return "\n".join(values) + "\n"
    return _with_direct_imports(_file(name).read_text("utf-8"))


def _file(name: str) -> Path:
    first, *rest = name.split(".")
    path = _ROOTS[first].joinpath(first, *rest)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _with_direct_imports(text: str) -> str:
    """The text with imports from the modules that define the names, in place of imports from a room of the simulator.

    A room imports its modules on first use (:mod:`warpsan.exports`); the file has only those that are needed.
    """
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("warpsan."):
            homes = _homes(str(node.module))
            if homes:
                indent = " " * node.col_offset
                direct = "".join(f"{indent}from {homes[each.name]} import {each.name}\n" for each in node.names)
                last = node.end_lineno or node.lineno
                lines[node.lineno - 1 : last] = [direct, *[""] * (last - node.lineno)]
    return "".join(lines)


@cache
def _homes(room: str) -> dict[str, str]:
    """The module that defines each name of a room of the simulator; empty for a module."""
    if _file(room).name != "__init__.py":
        return {}
    imports = (each for each in ast.walk(ast.parse(_file(room).read_text("utf-8"))) if isinstance(each, ast.ImportFrom))
    return {alias.name: str(each.module) for each in imports for alias in each.names}


def _imports(tree: ast.Module) -> Iterator[str]:
    """The modules that a module imports when it is loaded."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _standard_library() -> frozenset[str]:
    import sys

    return sys.stdlib_module_names
