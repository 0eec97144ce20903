"""Puts the parts of the verifier together into the one file that a bundle carries, which imports nothing of the lab.

It is made when a bundle is written, and kept nowhere else: no second copy could differ from the parts.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from pprint import pformat

from sdpalab.evidence.verifier import facts

__all__ = ["assembled"]

PARTS = (
    *("archive", "facts", "arrays", "weights", "attention", "rule"),
    *("findings", "builds", "cases", "algebra", "checker", "main"),
)
"""In an order in which each uses at import only what is above it; the docstring of the last is that of the file."""
ONE_THREAD = """\
if __name__ == "__main__":
    # NumPy reads it when it is loaded. The threads that derive cases take all CPUs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""
_FOLDER = Path(__file__).parent
_LAB = __package__.partition(".")[0]


@cache
def assembled() -> str:
    """The text of ``verify.py``, the same for the same parts.

    Raises
    ------
    ValueError
        If a part imports what cannot be taken over, or two parts define the same name.
    """
    doc, sections = "", []
    imports: set[tuple[str, str]] = set()
    defined: dict[str, str] = {}
    for part in PARTS:
        source = (_FOLDER / f"{part}.py").read_text("utf-8")
        tree = ast.parse(source)
        doc = ast.get_docstring(tree, clean=False) or ""
        dropped = {0}
        for number, node in enumerate(tree.body):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imports |= _outside(node, part)
                dropped.add(number)
            for name in _names(node):
                if defined.setdefault(name, part) != part and name != "__all__":
                    raise ValueError(f"{part} and {defined[name]} both define {name}")
            if "__all__" in _names(node):
                dropped.add(number)
        body = _facts() if part == "facts" else _remaining(source, tree, dropped)
        sections += [f"# --- {part} ".ljust(120, "-"), body]
    head = f'#!/usr/bin/env python3\n"""{doc}"""\n\nfrom __future__ import annotations\n\n{_merged(imports)}'
    return "\n\n\n".join([head, *sections]) + "\n"


def _outside(node: ast.Import | ast.ImportFrom, part: str) -> set[tuple[str, str]]:
    """The imports of a part that are the file's, too: (module, name), or (module, "") for a module itself."""
    if isinstance(node, ast.ImportFrom):
        if node.module == "__future__":
            return set()
        if node.module and node.module.partition(".")[0] == _LAB:
            inside = node.module.startswith(f"{__package__}.") and all(alias.asname is None for alias in node.names)
            if not inside and part != "facts":
                raise ValueError(f"{part} imports {node.module}, which the assembled file has not")
            return set()
        return set() if part == "facts" else {(str(node.module), ast.unparse(alias)) for alias in node.names}
    return {(ast.unparse(alias), "") for alias in node.names}


def _merged(imports: set[tuple[str, str]]) -> str:
    """Import statements: of modules, of names, and last of NumPy, which is not in the standard library."""
    modules = sorted(module for module, name in imports if not name)
    names: dict[str, list[str]] = {}
    for module, name in sorted(imports):
        names.setdefault(module, []).extend([name] if name else [])
    lines = [f"import {module}" for module in modules if not module.startswith("numpy")]
    lines += [f"from {module} import {', '.join(listed)}" for module, listed in names.items() if listed]
    return "\n".join(
        [*lines, "", ONE_THREAD, *(f"import {module}" for module in modules if module.startswith("numpy"))]
    )


def _names(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a part defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _remaining(source: str, tree: ast.Module, dropped: set[int]) -> str:
    """The source of a part without its docstring, its imports and ``__all__``; comments stay."""
    lines = source.splitlines()
    gone = {
        line
        for number, node in enumerate(tree.body)
        if number in dropped
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return "\n".join(line for number, line in enumerate(lines, 1) if number not in gone).strip("\n")


def _facts() -> str:
    """The facts as values."""
    return "\n".join(f"{name} = {pformat(getattr(facts, name), width=110, compact=True)}" for name in facts.__all__)
