"""Launches in a source's host code, ``kernel<<<grid, block, bytes>>>(...)``, with their constant sizes.

Sizes are evaluated without execution, from literals, macros, constants, and local variables with one value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warpsan.build.constants import Value, arguments_in, evaluate
from warpsan.build.declarations import nodes_of, parsed
from warpsan.build.host_code import files_of
from warpsan.build.source import Module
from warpsan.build.source_text import Macro
from warpsan.host.geometry import Dim3

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["HostLaunch", "host_launches", "launch_of", "only_kernel"]

_DIM3 = re.compile(r"(?:dim3|uint3)?\s*[({](.*)[)}]", re.DOTALL)
_RUNTIME = {"cudaLaunchCooperativeKernel": (1, 2, 4), "cudaLaunchKernel": (1, 2, 4)}
"""Launch functions of the runtime: argument positions of grid, block and shared memory."""
_GIVEN = "?"
"""Placeholder for the value of a parameter."""
_DEPTH = 40
"""Maximum depth of nested names."""


@dataclass(frozen=True)
class HostLaunch:
    """A launch in host code.

    Attributes
    ----------
    kernel : str
        Name in the source, such as ``scale<64>``; a local variable is replaced by the kernel it holds.
    line : int
    sizes : tuple of Dim3 or None
        Grid and block; None for a size that is not constant.
    dynamic_smem : int, optional
        Dynamic shared memory in bytes; None if not constant.
    texts : tuple of str
        Source text of grid, block and shared memory; a variable with one value is replaced by the value.
    """

    kernel: str
    line: int
    sizes: tuple[Dim3 | None, Dim3 | None]
    dynamic_smem: int | None
    texts: tuple[str, str, str]

    def size(self, name: str) -> tuple[list[int] | int | None, str]:
        """``grid``, ``block`` or ``dynamic_smem``, and its source text."""
        place = ("grid", "block", "dynamic_smem").index(name)
        dims = self.sizes[place] if place < 2 else None
        return (list(dims) if dims else self.dynamic_smem if place == 2 else None), self.texts[place]


def host_launches(module: Module) -> list[HostLaunch]:
    """Launches in a module's source, in order; raises as :func:`warpsan.build.host_code.device_code`."""
    files, macros = files_of(module)
    values = _SourceConstants(module, [parsed(file.shadow.text) for file in files], macros)
    launches = []
    root = parsed(files[0].shadow.text)
    for node in nodes_of(root, ("call_expression",)):
        called, *others = node.named_children
        sizes = next((each for each in others if each.type == "kernel_call_syntax"), None)
        arguments = [_text(each) for each in sizes.named_children if each.type != "comment"] if sizes else []
        kernel = _text(called)
        if kernel in _RUNTIME:
            given = [_text(each) for each in others[-1].named_children if each.type != "comment"]
            places = _RUNTIME[kernel]
            arguments = [given[place] for place in places if place < len(given)]
            kernel = re.sub(r"^\s*(\(\s*(const\s+)?void\s*\*\s*\)|&)*\s*", "", given[0]) if given else ""
        if len(arguments) < 2:
            continue
        grid, block, bytes_ = (*arguments[:2], arguments[2] if len(arguments) > 2 else "0")
        scope = _LaunchScope(values, node)
        smem = scope.value(bytes_)
        launches.append(
            HostLaunch(
                scope.kernel(kernel),
                node.start_point[0] + 1,
                (scope.dim3(grid), scope.dim3(block)),
                None if smem is None else int(smem),
                (scope.written(grid), scope.written(block), scope.written(bytes_)),
            )
        )
    return launches


def launch_of(module: Module) -> HostLaunch | str:
    """The launch of a module's entry, or a phrase with the reason why it is unknown: no launch, or several."""
    name, arguments = _parts_of(module.entry)
    known = [each for each in host_launches(module) if _parts_of(each.kernel)[0] == name]
    exact = [each for each in known if _parts_of(each.kernel)[1] == arguments]
    open_ones = [each for each in known if not re.fullmatch(r"[\d,]+", ",".join(_parts_of(each.kernel)[1]))]
    fitting = exact or open_ones
    if not fitting:
        return f"{module.name} has no launch of {module.entry}"
    if len({(each.sizes, each.dynamic_smem, each.texts) for each in fitting}) > 1:
        lines = " and ".join(str(each.line) for each in fitting[:2])
        return f"{module.name} launches {name} with several sizes, in lines {lines}"
    return fitting[0]


def only_kernel(module: Module) -> str:
    """The kernel of a source with exactly one kernel, with the template arguments of its launch; else empty."""
    files, _ = files_of(module)
    names = {each.kernel for each in files[0].declarations if each.kernel}
    if len(names) != 1:
        return ""
    (name,) = names
    launched = [_parts_of(each.kernel) for each in host_launches(module)]
    instances = {arguments for base, arguments in launched if base == _parts_of(name)[0]}
    arguments = instances.pop() if len(instances) == 1 else ()
    return f"{name}<{', '.join(arguments)}>" if arguments else name


def _parts_of(kernel: str) -> tuple[str, tuple[str, ...]]:
    """Last name of a kernel without its namespaces, and its template arguments without blanks."""
    name, opening, arguments = kernel.partition("<")
    listed = arguments_in(arguments.rpartition(">")[0]) if opening else []
    return name.strip().rpartition("::")[2], tuple(re.sub(r"\s", "", each) for each in listed)


class _SourceConstants:
    """Constants at namespace scope and in classes, macros, and constexpr functions with one return statement."""

    def __init__(self, module: Module, roots: Sequence[Node], macros: Sequence[Macro]) -> None:
        self._macros = {macro.name: macro for macro in macros}
        self._macros |= {name: Macro(name, None, value) for name, value in module.defines.items()}
        self._constants: dict[str, str | None] = {}
        self._functions: dict[str, tuple[tuple[str, ...], str]] = {}
        for root in roots:
            self._read(root)

    def _read(self, root: Node) -> None:
        for node in nodes_of(root, ("declaration", "field_declaration", "enumerator", "function_definition")):
            if node.type == "function_definition":
                self._function(node)
            elif node.type == "enumerator":
                value = node.child_by_field_name("value")
                if value is not None:
                    self._note(_text(node.child_by_field_name("name")), _text(value))
            elif re.search(r"\bconst(expr)?\b", _text(node)) and not _function_around(node):
                scope = f"{name}::" if (name := _class_around(node)) else ""
                for declared, text in _initialised(node):
                    self._note(f"{scope}{declared}", text)

    def _note(self, name: str, value: str) -> None:
        """Add a constant; a name with two values is not constant."""
        self._constants[name] = value if self._constants.get(name, value) == value else None

    def _function(self, node: Node) -> None:
        body, declarator = node.child_by_field_name("body"), node.child_by_field_name("declarator")
        if body is None or declarator is None or declarator.type != "function_declarator":
            return
        returned = [each for each in body.named_children if each.type == "return_statement"]
        parameters = declarator.child_by_field_name("parameters")
        if len(body.named_children) == 1 and returned and parameters is not None:
            names = tuple(re.sub(r".*\W", "", _text(each)) for each in parameters.named_children)
            self._functions[_text(declarator.child_by_field_name("declarator"))] = (
                names,
                _text(returned[0]).removeprefix("return").rstrip(";"),
            )

    def constant(self, name: str, depth: int) -> Value:
        """Value of a name."""
        macro = self._macros.get(name)
        if macro is not None:
            return None if macro.parameters is not None else self.evaluated(macro.body, depth)
        text = self._constants.get(name)
        if text is None and "::" in name:
            text = self._constants.get("::".join(name.split("::")[-2:])) or self._constants.get(name.split("::")[-1])
        return None if text is None else self.evaluated(text, depth)

    def called(self, name: str, values: Sequence[Value], depth: int) -> Value:
        """Value of a function, or of a macro with parameters."""
        macro = self._macros.get(name)
        if macro is not None and macro.parameters is not None:
            names, body = macro.parameters, macro.body
        elif name in self._functions:
            names, body = self._functions[name]
        else:
            return None
        if len(names) != len(values):
            return None
        bound = dict(zip(names, values, strict=True))
        return self.evaluated(body, depth, bound)

    def evaluated(self, text: str, depth: int, bound: dict[str, Value] | None = None) -> Value:
        """Value of an expression, with bound names."""
        if depth > _DEPTH:
            return None
        known = bound or {}
        return evaluate(
            text,
            lambda name: known[name] if name in known else self.constant(name, depth + 1),
            lambda name, values: self.called(name, values, depth + 1),
        )


class _LaunchScope:
    """Local variables before a launch, in its function."""

    def __init__(self, values: _SourceConstants, launch: Node) -> None:
        self._values = values
        self._texts: dict[str, list[str]] = {}
        self._parts: dict[str, list[tuple[str, str]]] = {}
        self._changed: set[str] = set()
        function = _function_around(launch)
        if function is None:
            return
        for node in nodes_of(function, ("declaration", "parameter_declaration", "condition_declaration")):
            if node.start_byte < launch.start_byte and not _within_declaration(node):
                for name, value in _initialised(node, bare=True):
                    self._texts.setdefault(name, []).append(value)
        changes = ("assignment_expression", "update_expression", "pointer_expression", "input_expression")
        for node in nodes_of(function, changes):
            target = node.child_by_field_name("left") or node.child_by_field_name("argument")
            name, _, part = _text(target).partition(".")
            if node.type == "pointer_expression" and not _text(node).startswith("&"):
                continue
            if part and node.type == "assignment_expression" and node.start_byte < launch.start_byte:
                self._parts.setdefault(name, []).append((part.strip(), _text(node.child_by_field_name("right"))))
            elif not part:
                self._changed.add(name)

    def value(self, text: str, depth: int = 0) -> Value:
        """Value of an expression."""
        return (
            None
            if depth > _DEPTH
            else evaluate(
                text,
                lambda name: self._name(name, depth + 1),
                lambda name, values: self._values.called(name, values, depth + 1),
            )
        )

    def _name(self, name: str, depth: int) -> Value:
        base, _, part = name.partition(".")
        if part in ("x", "y", "z"):
            sizes = self.dim3(base, depth)
            return None if sizes is None else sizes["xyz".index(part)]
        text = self._only(base)
        if text is None:
            return None if base in self._texts else self._values.constant(name, depth)
        return self.value(text, depth)

    def _only(self, name: str) -> str | None:
        """Source text of a local variable's only value."""
        texts = self._texts.get(name, [])
        return texts[0] if len(texts) == 1 and name not in self._changed and texts[0] else None

    def dim3(self, text: str, depth: int = 0) -> Dim3 | None:
        """Three sizes from a ``dim3``, a list, a local variable, or a number."""
        text = text.strip()
        if depth > _DEPTH:
            return None
        if text in self._texts and (text in self._parts or self._texts[text] == [""]):
            return self._assigned(text, depth)
        if (local := self._only(text)) is not None:
            return self.dim3(local, depth + 1)
        listed = _DIM3.fullmatch(text)
        if listed is not None and (text.startswith(("dim3", "uint3", "{")) or "," in listed[1]):
            sizes = [self.value(part) for part in arguments_in(listed[1]) if part]
        else:
            sizes = [self.value(text)]
        return _whole([*sizes, 1, 1, 1][: max(3, len(sizes))])

    def _assigned(self, name: str, depth: int) -> Dim3 | None:
        """A ``dim3`` from assignments to its components, one each."""
        parts = self._parts.get(name, [])
        if name in self._changed or len(self._texts[name]) != 1 or len({part for part, _ in parts}) != len(parts):
            return None
        start = self._texts[name][0]
        sizes: list[Value] = [1, 1, 1]
        if start:
            listed = _DIM3.fullmatch(start)
            given = [self.value(part) for part in arguments_in(listed[1] if listed else start) if part]
            sizes = [*given, *sizes[len(given) :]]
        for part, text in parts:
            if part in ("x", "y", "z"):
                sizes["xyz".index(part)] = self.value(text, depth + 1)
        return _whole(sizes)

    def written(self, text: str) -> str:
        """Source text on one line; a variable is replaced by its value."""
        held = self._only(text)
        return re.sub(r"\s+", " ", text if held in (None, _GIVEN) else str(held))

    def kernel(self, text: str) -> str:
        """Name of the kernel; variables and numeric template arguments are replaced by their values."""
        held = self._only(text)
        text = re.sub(r"\s+", " ", text if held is None else held.lstrip("&* "))
        name, opening, arguments = text.partition("<")
        values = [(each, self.value(each)) for each in arguments_in(arguments.rpartition(">")[0])] if opening else []
        listed = ", ".join(each if value is None else str(value) for each, value in values)
        return f"{name}<{listed}>" if opening else name


def _whole(sizes: Sequence[Value]) -> Dim3 | None:
    if len(sizes) != 3 or any(size is None or size < 1 for size in sizes):
        return None
    x, y, z = (int(size) for size in sizes if size is not None)
    return x, y, z


def _initialised(node: Node, *, bare: bool = False) -> Iterator[tuple[str, str]]:
    """Names that a declaration declares, with the text of their values; ``bare`` includes names without a value."""
    for declarator in node.children_by_field_name("declarator"):
        if declarator.type == "init_declarator":
            name = _text(declarator.child_by_field_name("declarator")).lstrip("*& ")
            yield name, _text(declarator.child_by_field_name("value"))
        elif declarator.type == "function_declarator" and bare:  # the grammar may read dim3 grid(a, b) as a prototype
            yield (
                _text(declarator.child_by_field_name("declarator")),
                _text(declarator.child_by_field_name("parameters")),
            )
        elif node.type == "field_declaration":
            yield _text(declarator), _text(node.child_by_field_name("default_value"))
        elif bare:
            yield _text(declarator).lstrip("*& "), "" if node.type == "declaration" else _GIVEN


def _within_declaration(node: Node) -> bool:
    """Whether a parameter belongs to a local prototype, which may be a variable such as ``dim3 grid(a, b)``."""
    around = node.parent
    while node.type == "parameter_declaration" and around is not None and around.type != "function_definition":
        if around.type in ("declaration", "lambda_expression"):
            return around.type == "declaration"
        around = around.parent
    return False


def _function_around(node: Node) -> Node | None:
    """Outermost function that contains a node."""
    outermost = None
    around = node.parent
    while around is not None:
        outermost = around if around.type == "function_definition" else outermost
        around = around.parent
    return outermost


def _class_around(node: Node) -> str:
    around = node.parent
    while around is not None and around.type not in ("struct_specifier", "class_specifier"):
        around = around.parent
    return _text(around.child_by_field_name("name")) if around is not None else ""


def _text(node: Node | None) -> str:
    return (node.text or b"").decode("ascii") if node is not None else ""
