"""Rules of the source that ``scripts/lint.sh`` does not check: imports, names, paths in the docs, no raw asm."""

from __future__ import annotations

import ast
import graphlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {name: ROOT / "packages" / name / "src" / name for name in ("warpsan", "sdpalab")}
PACKAGE = PACKAGES["sdpalab"]

# The path of the lab's data; each room may import those before it.
ROOMS = (
    "version",
    "installation",
    "errors",
    "scoring",
    "layout",
    "problem",
    "packing",
    "record",
    "status",
    "user_folder",
    "inputs",
    "kernels",
    "compile",
    "run",
    "torch_inputs",
    "bugs",
    "judge",
    "doctor",
    "jobs",
    "testing",
    "formats",
    "torch_matrix",
    "measure",
    "model",
    "profile",
    "evaluation",
    "service",
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
    """The file of a module of either package, or None where there is none."""
    first, *rest = module.split(".")
    if first not in PACKAGES:
        return None
    path = PACKAGES[first].joinpath(*rest)
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
    """Modules of both packages that a file imports, at any depth of it."""
    modules: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            files = {name for name in below if _file_of(name)}
            modules |= files | ({node.module} if files < below else set())
    return {name for name in modules if name.partition(".")[0] in PACKAGES}


def _files(package: Path) -> Iterator[tuple[Path, str, list[list[str]]]]:
    """Each module of a package: its file, its room, and the parts of the names that it imports."""
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        yield path, room, [name.split(".") for name in sorted(_imports(path))]


def test_imports_of_the_lab_flow_one_way() -> None:
    wrong = []
    for path, room, imports in _files(PACKAGE):
        if room in ("__init__", "__main__", "sim"):
            continue
        own = [parts for parts in imports if parts[0] == "sdpalab"]
        back = [parts for parts in own if len(parts) == 1 or ROOMS.index(parts[1]) > ROOMS.index(room)]
        wrong += [f"{path.relative_to(ROOT)} imports {'.'.join(parts)}" for parts in back]
    assert not wrong, "\n".join(wrong)


def test_the_simulator_imports_nothing_of_the_lab() -> None:
    files = list(_files(PACKAGES["warpsan"]))
    assert len(files) > 280
    assert [path for path, _, imports in files if any(parts[0] == "sdpalab" for parts in imports)] == []


def test_the_lab_imports_only_public_names_of_the_simulator() -> None:
    """``from warpsan import NAME`` or ``from warpsan.ROOM import NAME``, with a name of the room's ``__all__``."""
    seen, wrong = set(), []
    for path in sorted({*PACKAGE.rglob("*.py")} - {PACKAGE / "sim.py"}):  # the alias takes all public names
        for node in _nodes(path):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("warpsan"):
                continue
            names = {alias.name for alias in node.names}
            public = names <= set(import_module(str(node.module)).__all__)
            of_a_room = str(node.module).count(".") < 2 or str(node.module).startswith("warpsan.terminal.")
            seen |= {f"{node.module}.{name}" for name in names}
            if not public or not of_a_room:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {sorted(names)} from {node.module}")
    assert len(seen) > 100
    assert not wrong, "\n".join(wrong)


def test_no_module_of_the_lab_imports_what_the_package_itself_defines() -> None:
    """``sdpalab/__init__.py`` is behind all other modules."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in _nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == "sdpalab" and path.parent != PACKAGE
        if any(not _file_of(f"sdpalab.{alias.name}") for alias in node.names)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_imports_nothing_of_the_lab() -> None:
    """``lab/`` and the tests are not installed."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in _nodes(path):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {name.partition(".")[0] for name in names} & {"lab", "tests"}, path


def test_no_import_circle() -> None:
    # Also of imports in functions, and of those for types alone: each file can be read after those that it names.
    files = {
        path: {_file_of(name) for name in _imports(path)}
        for package in PACKAGES.values()
        for path in package.rglob("*.py")
    }
    list(graphlib.TopologicalSorter(files).static_order())


NAMED = sorted(path for each in ("packages/*/src/**", "scripts", "lab") for path in ROOT.glob(f"{each}/*.py"))
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


@pytest.mark.parametrize("package", PACKAGES)
def test_a_class_name_has_one_meaning(package: str) -> None:
    classes: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGES[package].rglob("*.py"):
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
    files = [path for each in ("packages/*/tests", "lab/tests") for path in ROOT.glob(f"{each}/**/*.py")]
    counts = Counter(path.name for path in files)
    counts.pop("conftest.py")  # pytest tells those apart
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_raw_asm_in_kernel_files() -> None:
    """An example without headers of its own has its PTX in the kernel."""
    kernels = [
        path for path in (*PACKAGE.rglob("*.cu"), *(ROOT / "examples").rglob("*.cu")) if path.stem != "my_tensor"
    ]
    assert kernels
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in kernels
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(asm|__asm__)\b", line.partition("//")[0])
    ]
    assert not wrong, f"inline PTX belongs into a wrapper under include/: {wrong}"


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "packages").glob("*/*.md"), *(ROOT / "packages").glob("*/docs/**/*.md")])
_PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?\.?[\w]*")
_ENDINGS = (".py", ".cu", ".cuh", ".md", ".sh", ".toml", ".txt", ".png", ".json", ".j2", "/")
_MADE = ("out/", "build/", ".venv/", "records/", "arrays/", "source/")
"""Folders that a run makes, or that are in a bundle."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_named_in_the_docs_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    bases = (ROOT, *(ROOT / "packages").iterdir(), *PACKAGES.values(), PACKAGE / "evidence", page.parent)
    missing = [target for target in links if "://" not in target and not (page.parent / target).exists()]
    for name in re.findall(r"`([^`\s]+)`", text):
        # A name without a folder may be a reader's own file.
        named = _PATH.fullmatch(name) and "/" in name and name.endswith(_ENDINGS) and name not in _ENDINGS
        if not named or name.startswith(_MADE):
            continue
        if not any(list(base.glob(name.rstrip("/"))) for base in bases):
            missing.append(name)
    assert not missing, f"{page.name} names what does not exist: {missing}"


def test_docs_are_found() -> None:
    assert {page.name for page in PAGES} >= {"README.md", "CHANGELOG.md", "architecture.md", "judge.md", "evidence.md"}
