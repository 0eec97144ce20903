"""Files of a user's kernel in a bundle: the Python file, and the files beside it that it imports or names.

They are found from the text alone. No file is imported or run, and no file outside the folder of the Python file is
read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["DEVICE_ENDINGS", "user_files"]

DEVICE_ENDINGS = (".cu", ".cuh", ".h", ".hpp", ".inl", ".inc", ".ptx")
"""Suffixes of device code. No other file that a kernel names is copied into a bundle."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
MOST_BYTES = 8 << 20
"""Largest size of one file in bytes; a larger file is not a source."""


def user_files(spec: str) -> dict[str, bytes]:
    """The files behind ``FILE.py[:NAME]``, by their paths from its folder.

    The file itself; modules beside it that it or they import; and device-code files in or below the folder that one of
    these includes or names in a string.
    """
    first = Path(f"{f'{spec}:'.partition('.py:')[0]}.py").resolve()
    folder = first.parent
    files: dict[str, bytes] = {}
    waiting = [first]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(folder).as_posix()
        if name in files or path.stat().st_size > MOST_BYTES:
            continue
        files[name] = path.read_bytes()
        text = files[name].decode("utf-8", "replace")
        named = _python_names(text, folder) if path.suffix == ".py" else _includes(text, path.parent)
        waiting += [other for other in map(Path.resolve, named) if other.is_file() and other.is_relative_to(folder)]
    return dict(sorted(files.items()))


def _python_names(text: str, folder: Path) -> Iterator[Path]:
    """Modules that a Python file imports from its folder, and device-code files that it names."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in nodes:
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            value = node.value
            if value.endswith(DEVICE_ENDINGS) and len(value) < 256 and value.isprintable():
                yield folder / value
        for module in modules:
            stem = folder.joinpath(*module.split("."))
            yield from (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")


def _includes(text: str, folder: Path) -> Iterator[Path]:
    for name in _INCLUDE.findall(text):
        yield folder / name
