"""Declarations of a source file: host or device side, declared names, and used names.

A C++ parser (tree-sitter with its CUDA grammar) reads the shadow of the text (:mod:`.source_text`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from warpsan.build.host_headers import is_device_std
from warpsan.build.source_text import Lexed, Macros, PlainText, closing, words
from warpsan.errors import MachineError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

__all__ = ["Declaration", "Kind", "declarations_of", "nodes_of", "parsed", "parser"]

Kind: TypeAlias = Literal["function", "variable", "type", "macro", "assertion", "namespace"]


@dataclass(frozen=True)
class Declaration:
    """A declaration at namespace scope, or a member function of a class.

    Attributes
    ----------
    start, end : int
        Range in the text, including qualifiers and the semicolon.
    kind : Kind
    names : tuple of str
        Declared names.
    needs : frozenset of str
        Identifiers it contains.
    device : bool
        Whether a qualifier marks it as device code.
    constant : bool
        Whether it is ``constexpr``, or a ``const`` variable: device code may use it without a qualifier.
    unmarked : bool
        Whether NVRTC takes it as host code and rejects it.
    members : tuple of Declaration
        Member functions of a class.
    launches : bool
        Whether it contains ``<<<``.
    kernel : str
        Name of a ``__global__`` function with its namespaces; otherwise empty.
    """

    start: int
    end: int
    kind: Kind
    names: tuple[str, ...]
    needs: frozenset[str]
    device: bool = False
    constant: bool = False
    unmarked: bool = False
    members: tuple[Declaration, ...] = ()
    launches: bool = False
    kernel: str = ""


@lru_cache(maxsize=1)
def parser() -> Parser:
    """The C++ parser.

    Raises
    ------
    MachineError
        If it is not installed; the message names the packages.
    """
    try:
        import tree_sitter
        import tree_sitter_cuda
    except ImportError as error:
        raise MachineError(
            f"no parser of C++ for the source: pip install tree-sitter tree-sitter-cuda ({error})"
        ) from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


@lru_cache(maxsize=64)
def parsed(shadow: str) -> Node:
    """Root of the syntax tree of a shadow."""
    return parser().parse(shadow.encode("ascii")).root_node


_TYPES = ("struct_specifier", "class_specifier", "union_specifier", "enum_specifier")
_ALIASES = (
    *("type_definition", "alias_declaration", "using_declaration"),
    *("namespace_alias_definition", "concept_definition"),
)
_CONSTANT = re.compile(r"\b(?:constexpr|consteval|constinit)\b")
_CONST = re.compile(r"\b(?:constexpr|const)\b")
_INVOCATION = re.compile(r"[ \t]*([A-Za-z_]\w*)[ \t]*\(")
_STATEMENTS = frozenset(
    {"if", "for", "while", "switch", "return", "sizeof", "decltype", "static_assert", "asm", "catch"}
)


def declarations_of(source: Lexed, shadow: PlainText, macros: Macros) -> list[Declaration]:
    """All declarations of a text, in order, without ranges that the parser cannot read."""
    invoked, text = _invocations(source, shadow, macros)
    reader = _ScopeReader(source, shadow, macros, [each.end for each in invoked])
    declared = [*invoked, *reader.scope(parsed(text), 0)]
    return sorted(declared, key=lambda each: each.start)


def _invocations(source: Lexed, shadow: PlainText, macros: Macros) -> tuple[list[Declaration], str]:
    """Macro invocations without a semicolon at the start of a declaration, and the shadow without them."""
    invoked = []
    text = shadow.text
    for line in re.finditer(r"^.*$", text, re.MULTILINE):
        match = _INVOCATION.match(text, line.start())
        if match is None or match[1] in _STATEMENTS or not _is_invoked(match[1], macros):
            continue
        end = closing(text, match.end() - 1)
        before, after = text[: match.start(1)].rstrip(), text[end:]
        begins = not before or before[-1] in ";}" or _opens_scope(before)
        ends = not after.partition("\n")[0].strip() and after.lstrip()[:1] not in ("{", ";", ":", ",")
        if not begins or not ends or _depth(text, match.start()) > 0:
            continue
        device = macros.is_device(match[1])
        needs = words(source.code[match.start() : end])
        name = f"{match[1]}({text[match.end() : end - 1].partition(',')[0].strip()})"
        invoked.append(Declaration(match.start(1), end, "macro", (name,), needs, device, False, not device))
        text = text[: match.start()] + re.sub(r"[^\n]", " ", text[match.start() : end]) + text[end:]
    return invoked, text


def _is_invoked(name: str, macros: Macros) -> bool:
    """Whether a name looks like a macro: a known macro with parameters, or capitals."""
    return not macros.is_qualifier(name) and (macros.has_parameters(name) or name.isupper())


_SCOPE = re.compile(r'(?:namespace(?:\s+[\w:]+)?|extern\s*"[^"]*")\s*$')


def _opens_scope(before: str) -> bool:
    return before[-1] == "{" and _SCOPE.search(before[:-1]) is not None


def _depth(text: str, place: int) -> int:
    """Number of open braces at a position, excluding those of namespaces."""
    open_ones: list[bool] = []
    for match in re.finditer(r"[{}]", text[:place]):
        if match[0] == "{":
            open_ones.append(_SCOPE.search(text[max(0, match.start() - 200) : match.start()]) is None)
        elif open_ones:
            open_ones.pop()
    return sum(open_ones)


class _ScopeReader:
    """Reader of the scopes of one syntax tree."""

    def __init__(self, source: Lexed, shadow: PlainText, macros: Macros, invoked: Sequence[int]) -> None:
        self._source, self._shadow, self._macros, self._invoked = source, shadow, macros, invoked
        self._scope: tuple[str, ...] = ()

    def scope(self, node: Node, start: int, *, members: bool = False) -> Iterator[Declaration]:
        """Declarations among the children of a node; the first begins at ``start`` or later."""
        before = start
        for child in node.children:
            if not child.is_named:
                before = max(before, child.end_byte)
                continue
            if child.type in ("namespace_definition", "linkage_specification"):
                body = child.child_by_field_name("body")
                if body is not None and body.type == "declaration_list":
                    inside = self._scope
                    named = child.child_by_field_name("name") if child.type == "namespace_definition" else None
                    self._scope = (*inside, *([(named.text or b"").decode("ascii")] if named is not None else []))
                    yield from self.scope(body, body.start_byte, members=members)
                    self._scope = inside
                elif body is not None:
                    yield from self._declaration(body, child, before, members)
            elif child.type == "ERROR":
                yield from self.scope(child, before, members=members)
            else:
                yield from self._declaration(child, child, before, members)
            before = max(before, child.end_byte)

    def _declaration(self, node: Node, outer: Node, before: int, members: bool) -> Iterator[Declaration]:
        start = max(before, *(place for place in (before, *self._invoked) if place <= outer.start_byte))
        end = self._end(outer)
        inner = node
        while inner.type in ("template_declaration", "friend_declaration"):
            named = [each for each in inner.named_children if each.type != "comment"]
            if not named:
                return
            inner = named[-1]
        body = inner.child_by_field_name("body") if inner.type == "function_definition" else None
        initialised = next((each for each in inner.children if each.type == "field_initializer_list"), body)
        head_end = initialised.start_byte if initialised is not None else end
        marks = self._shadow.words_between(start, head_end)
        head = (
            f"{self._shadow.text[start:head_end]} {' '.join(' '.join(self._macros.body_words(word)) for word in marks)}"
        )
        device = any(map(self._macros.is_device, marks))
        needs = words(self._source.code[start:end])
        launches = "<<<" in self._source.code[start:end]
        fixed = bool(_CONSTANT.search(head))
        if inner.type == "function_definition":
            given = any(each.type in ("default_method_clause", "delete_method_clause") for each in inner.children)
            names = (_name_of(inner.child_by_field_name("declarator")),)
            loose = not device and not given
            is_kernel = any(word == "__global__" or "__global__" in self._macros.body_words(word) for word in marks)
            kernel = "::".join((*self._scope, *names)) if is_kernel else ""
            yield Declaration(start, end, "function", names, needs, device, fixed, loose, (), launches, kernel)
        elif inner.type in ("declaration", "field_declaration", "template_instantiation"):
            yield from self._declared(inner, start, end, needs, device, fixed, members)
        elif inner.type in _TYPES:
            yield self._type(inner, start, end, needs)
        elif members:
            return
        elif inner.type in _ALIASES:
            kind: Kind = "namespace" if _is_directive(inner) else "type"
            yield Declaration(start, end, kind, _aliased(inner), needs, unmarked=_is_of_the_host(inner))
        elif inner.type == "static_assert_declaration":
            yield Declaration(start, end, "assertion", (), needs)
        elif inner.type == "expression_statement":
            if not inner.named_children:
                return
            called = self._shadow.text[inner.start_byte : inner.end_byte].partition("(")[0].strip()
            loud = device or self._macros.is_device(called)
            yield Declaration(start, end, "macro", (called,), needs, loud, False, not loud)

    def _declared(
        self, node: Node, start: int, end: int, needs: frozenset[str], device: bool, fixed: bool, members: bool
    ) -> Iterator[Declaration]:
        """Declarations of variables, prototypes, fields of a class, and explicit instantiations."""
        declarators = node.children_by_field_name("declarator")
        functions = [each for each in declarators if _function_in(each) is not None]
        kind = node.child_by_field_name("type")
        if members:
            if functions and not _is_given(node):
                yield Declaration(start, end, "function", (_name_of(functions[0]),), needs, device, fixed, not device)
            elif kind is not None and kind.type in _TYPES:
                yield self._type(kind, start, end, needs)
            return
        names = tuple(filter(None, map(_name_of, declarators)))
        if node.type == "template_instantiation" and not functions:
            if kind is not None:
                yield Declaration(start, end, "type", (_name_of(kind.child_by_field_name("name")),), needs)
            return
        if functions:
            yield Declaration(start, end, "function", names, needs, device, fixed, not device)
            return
        if kind is not None and kind.type in _TYPES and kind.child_by_field_name("body") is not None:
            whole = self._type(kind, start, end, needs)
            yield Declaration(start, end, "type", (*whole.names, *names), needs, device, True, False, whole.members)
            return
        text = self._shadow.text[start:end].partition("=")[0]
        constant = fixed or _CONST.search(text) is not None
        yield Declaration(start, end, "variable", names, needs, device, constant, not device and not constant)

    def _type(self, node: Node, start: int, end: int, needs: frozenset[str]) -> Declaration:
        name = node.child_by_field_name("name")
        names = [_name_of(name)] if name is not None else []
        body = node.child_by_field_name("body")
        members: tuple[Declaration, ...] = ()
        if body is not None and node.type == "enum_specifier":
            names += [_name_of(each.child_by_field_name("name")) for each in body.named_children]
        elif body is not None:
            inside = list(self.scope(body, body.start_byte + 1, members=True))
            members = tuple(each for one in inside for each in (one.members if one.kind == "type" else (one,)))
        return Declaration(start, end, "type", tuple(names), needs, members=members)

    def _end(self, node: Node) -> int:
        """End of a declaration, including the semicolon that the grammar puts after a class."""
        following = node.next_sibling
        return following.end_byte if following is not None and following.type == ";" else node.end_byte


def _function_in(node: Node | None) -> Node | None:
    """Declarator of a function inside pointer and reference declarators; None for a pointer to a function."""
    while node is not None and node.type in ("pointer_declarator", "reference_declarator", "attributed_declarator"):
        node = node.child_by_field_name("declarator") or _last(node)
    if node is None or node.type != "function_declarator":
        return None
    inner = node.child_by_field_name("declarator")
    return None if inner is not None and inner.type == "parenthesized_declarator" else node


def _last(node: Node) -> Node | None:
    return node.named_children[-1] if node.named_children else None


def _is_given(node: Node) -> bool:
    return any(each.type in ("default_method_clause", "delete_method_clause") for each in node.children)


def _name_of(node: Node | None) -> str:
    """Last identifier of a declarator: without scope, template arguments, pointers and arrays."""
    while node is not None:
        if node.type in ("template_function", "template_type", "template_method", "qualified_identifier"):
            node = node.child_by_field_name("name")
            continue
        inner = node.child_by_field_name("declarator")
        if inner is None and node.type in ("reference_declarator", "parenthesized_declarator"):
            inner = _last(node)
        if inner is None:
            return (node.text or b"").decode("ascii")
        node = inner
    return ""


_HOST_SPACES = frozenset(
    {"torch", "at", "c10", "pybind11", "py", "nlohmann", "boost", "Eigen", "chrono", "literals", "cv", "thrust"}
)


def _is_of_the_host(node: Node) -> bool:
    """Whether a using or an alias refers to a host namespace, or to a std name without a device version."""
    text = (node.text or b"").decode("ascii")
    used = re.fullmatch(r"using\s+std\s*::\s*(\w+)\s*;", text)
    if used is not None:
        return not is_device_std(used[1])
    spaces = words(text.partition("=")[2] if node.type == "namespace_alias_definition" else text)
    return node.type in ("using_declaration", "namespace_alias_definition") and bool(spaces & _HOST_SPACES)


def _is_directive(node: Node) -> bool:
    return node.type == "using_declaration" and any(each.type == "namespace" for each in node.children)


def _aliased(node: Node) -> tuple[str, ...]:
    if node.type == "using_declaration":
        named = node.named_children
        whole = (named[-1].text or b"").decode("ascii") if named else ""
        return (whole if _is_directive(node) else re.sub(r".*::\s*", "", whole, flags=re.DOTALL),)
    if node.type == "type_definition":
        names = tuple(map(_name_of, node.children_by_field_name("declarator")))
        kind = node.child_by_field_name("type")
        own = kind.child_by_field_name("name") if kind is not None and kind.type in _TYPES else None
        return (*names, _name_of(own)) if own is not None else names
    return (_name_of(node.child_by_field_name("name") or (node.named_children[0] if node.named_children else None)),)


def nodes_of(root: Node, kinds: tuple[str, ...]) -> Iterator[Node]:
    """All nodes of the given kinds under a node, in order."""
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type in kinds:
            yield node
        pending += reversed(node.children)
