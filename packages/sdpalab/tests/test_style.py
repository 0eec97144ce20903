"""Rules of the source that ``scripts/lint.sh`` does not check: imports, names, paths in the docs, no raw asm."""

from __future__ import annotations

import ast
import graphlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "packages" / "sdpalab" / "src" / "sdpalab"

# The path of the data; each room may import those before it. `sim` stands apart and imports nothing of the lab.
ROOMS = (
    "version",
    "locks",
    "dtypes",
    "planting",
    "source",
    "gpus",
    "scoring",
    "problem",
    "record",
    "user_folder",
    "inputs",
    "kernels",
    "compile",
    "run",
    "program",
    "judge",
    "bugs",
    "doctor",
    "jobs",
    "testing",
    "torch_matrix",
    "measure",
    "model",
    "profile",
    "search",
    "evidence",
    "torch_api",
    "integrations",
    "campaigns",
    "commands",
    "cli",
)


@cache
def _file_of(module: str) -> Path | None:
    """The file of a module of the lab, or None where there is none."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.exists()), None)


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file, parsed once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@pytest.fixture(autouse=True, scope="module")
def _forget_nodes() -> Iterator[None]:
    yield
    _nodes.cache_clear()


@cache
def _imports(path: Path) -> set[str]:
    """Modules of the lab that a file imports, at any depth of it."""
    modules: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module.partition(".")[0] != "sdpalab":
                continue
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            files = {name for name in below if _file_of(name)}
            modules |= files | ({node.module} if files < below else set())
    return {name for name in modules if name.startswith("sdpalab.")}


def test_imports_flow_one_way() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__", "errors"):
            continue
        for name in sorted(_imports(path)):
            other = name.split(".")[1]
            if room == "sim" or other not in ROOMS:
                allowed = other == room or (room != "sim" and other in ("errors", "sim"))
            else:
                allowed = ROOMS.index(other) <= ROOMS.index(room)
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_what_the_package_itself_defines() -> None:
    """``sdpalab/__init__.py`` is behind all other modules."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in _nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module == "sdpalab" and path != PACKAGE / "__init__.py":
                names = [alias.name for alias in node.names if not _file_of(f"sdpalab.{alias.name}")]
                wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in names]
    assert not wrong, "\n".join(wrong)


def test_no_import_circle() -> None:
    # Also of imports in functions, and of those for types alone: each file can be read after those that it names.
    files = {path: {_file_of(name) for name in _imports(path)} for path in PACKAGE.rglob("*.py")}
    list(graphlib.TopologicalSorter(files).static_order())


NAMED = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "scripts").glob("*.py")])
"""The files whose names are held to the glossary."""
SAYS_NOTHING = re.compile(r"(^|_)(made|told|said|found|kept)(_|$)")
"""A variable of such a name does not say what it holds."""


def _variables(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the name of each variable, parameter and attribute that is set."""
    for node in _nodes(path):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_a_class_name_has_one_meaning() -> None:
    classes: dict[str, list[str]] = defaultdict(list)
    for path in NAMED:
        for node in _nodes(path):
            if isinstance(node, ast.ClassDef):
                classes[node.name.lstrip("_")].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(classes) > 100
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}


def test_a_variable_says_what_it_holds() -> None:
    names = [(str(path.relative_to(ROOT)), line, name) for path in NAMED for line, name in _variables(path)]
    assert len(names) > 1000
    assert [place for place in names if SAYS_NOTHING.search(place[2])] == []


def test_no_two_files_of_the_tests_have_one_name() -> None:
    # They are modules without a package, of which Python keeps one for each name.
    counts = Counter(path.name for path in (ROOT / "packages" / "sdpalab" / "tests").rglob("*.py"))
    counts.pop("conftest.py")  # pytest tells those apart
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_raw_asm_in_kernel_files() -> None:
    kernels = [*PACKAGE.rglob("*.cu"), *(ROOT / "examples").rglob("*.cu")]
    assert kernels
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in kernels
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(asm|__asm__)\b", line.partition("//")[0])
    ]
    assert not wrong, f"inline PTX belongs into a wrapper under include/: {wrong}"


PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "packages" / "sdpalab" / "docs").rglob("*.md")])
_PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?\.?[\w]*")
_ENDINGS = (".py", ".cu", ".cuh", ".md", ".sh", ".toml", ".txt", ".png", ".json", ".j2", "/")
_MADE = (
    "out/",
    "build/",
    ".venv/",
    "manifest.yaml",
    "report.html",
    "verify.py",
    "environment.json",
    "floors.json",
    "records/",
    "arrays/",
    "source/",
    "FILE.",
    "NAME.",
    "my_attention.",
    "rowsum.",
    "scale.py",
    "test_my_attention.",
)
"""What a run makes, what is in a bundle, and a reader's own files; not in the repository."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_named_in_the_docs_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    missing = [target for target in links if "://" not in target and not (page.parent / target).exists()]
    for name in re.findall(r"`([^`\s]+)`", text):
        named = _PATH.fullmatch(name) and name.endswith(_ENDINGS) and name not in _ENDINGS
        if not named or name.startswith(_MADE):
            continue
        if not any(list(base.glob(name.rstrip("/"))) for base in (ROOT, PACKAGE, PACKAGE / "evidence", page.parent)):
            missing.append(name)
    assert not missing, f"{page.name} names what does not exist: {missing}"


def test_docs_are_found() -> None:
    assert {page.name for page in PAGES} >= {"README.md", "architecture.md", "judge.md", "simulator.md", "evidence.md"}
