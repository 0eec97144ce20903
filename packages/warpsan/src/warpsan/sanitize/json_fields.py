"""Strict JSON into frozen dataclasses, and the JSON schema of such a dataclass.

Fields are ``int``, ``float``, ``str``, ``bool``, ``None``, ``Any``, ``Literal``, ``list``, ``dict`` with text keys,
other dataclasses, and unions of these; ``Annotated`` adds a :class:`Rule`. A dataclass of a union is selected by its
``KEY``, a field that only it has; a dataclass without ``KEY`` takes every other object. Values are not converted,
except integers for floats.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["FieldError", "Rule", "read_fields", "schema_of"]

T = TypeVar("T")
Schema = dict[str, Any]


class FieldError(ValueError):
    """An invalid value: its path, and a sentence without a subject.

    ``key`` is the unknown or missing key of the object at ``path``, and ``owner`` its dataclass.
    """

    def __init__(self, path: tuple[str, ...], words: str, *, key: str = "", owner: type | None = None) -> None:
        super().__init__(words)
        self.path, self.words, self.key, self.owner = path, words, key, owner

    @property
    def missing(self) -> bool:
        """True for a missing key, False for an unknown one."""
        return self.words == "is missing"


@dataclass(frozen=True)
class Rule:
    """A condition on a value: minimum, pattern of a text, lengths of a list; and its description."""

    about: str = ""
    least: int | None = None
    pattern: str = ""
    least_items: int | None = None
    most_items: int | None = None


def read_fields(kind: type[T], value: Any, path: tuple[str, ...] = ()) -> T:
    """Read the dataclass ``kind`` from a JSON object.

    Raises
    ------
    FieldError
        If a key is missing or unknown, or a value has the wrong type or violates a rule.
    """
    if not isinstance(value, dict):
        raise FieldError(path, f"should be an object, not {_shown(value)}")
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    for key in value:
        if key not in hints:
            raise FieldError(path, "is unknown", key=str(key), owner=kind)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise FieldError(path, "is missing", key=field.name, owner=kind)
    return kind(**{key: _read(hints[key], item, (*path, key)) for key, item in value.items()})


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind, include_extras=True).items() if name in _names(kind)}


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def _read(hint: Any, value: Any, path: tuple[str, ...]) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        read = _read(arguments[0], value, path)
        for rule in arguments[1:]:
            _check(rule, read, path)
        return read
    if origin in (Union, types.UnionType):
        return _read_union(arguments, value, path)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool):
            raise FieldError(path, f"should be {_listed(arguments)}, not {_shown(value)}")
        return value
    if origin is list:
        _require(isinstance(value, list), "a list", value, path)
        return [_read(arguments[0], item, (*path, str(place))) for place, item in enumerate(value)]
    if origin is dict:
        _require(isinstance(value, dict), "an object", value, path)
        return {key: _read(arguments[1], item, (*path, key)) for key, item in value.items()}
    if is_dataclass(hint):
        return read_fields(hint, value, path)  # type: ignore[arg-type]
    if hint is Any:
        return value
    _require(_fits(hint, value), _NAMES[hint], value, path)
    return float(value) if hint is float else value


_NAMES: Mapping[Any, str] = {
    int: "an integer", float: "a number", str: "a text", bool: "true or false", type(None): "null", None: "null",
}  # fmt: skip


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value has the JSON type of a hint, regardless of items and rules."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(arguments[0], value)
    if origin in (Union, types.UnionType):
        return any(_fits(each, value) for each in arguments)
    if origin is Literal:
        return any(isinstance(value, type(each)) for each in arguments)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (None, type(None)):
        return value is None
    kind = origin or (dict if is_dataclass(hint) else hint)
    return hint is Any or isinstance(value, kind)


def _read_union(members: tuple[Any, ...], value: Any, path: tuple[str, ...]) -> Any:
    """Read a value of a union: its type, or the key of an object, selects the member."""
    fitting = [member for member in members if _fits(member, value)]
    if isinstance(value, dict):
        keyed = [member for member in fitting if getattr(member, "KEY", "") in value]
        fitting = keyed or [member for member in fitting if not getattr(member, "KEY", "")] or fitting
    elif isinstance(value, int):
        fitting.sort(key=lambda member: member is float)  # integers stay integers if allowed
    for member in fitting[:-1]:  # a text may match several literals
        try:
            return _read(member, value, path)
        except FieldError:
            continue
    if not fitting:
        raise FieldError(path, f"cannot be {_shown(value)}")
    return _read(fitting[-1], value, path)


def _check(rule: Any, value: Any, path: tuple[str, ...]) -> None:
    if not isinstance(rule, Rule):
        return
    if rule.least is not None and isinstance(value, (int, float)) and not value >= rule.least:
        raise FieldError(path, f"should be greater than or equal to {rule.least}, not {_shown(value)}")
    if rule.pattern and isinstance(value, str) and not re.search(rule.pattern, value):
        raise FieldError(path, f"should match the pattern {rule.pattern}, not {_shown(value)}")
    if isinstance(value, list):
        if rule.least_items is not None and len(value) < rule.least_items:
            raise FieldError(path, f"should have at least {rule.least_items} item, not {len(value)}")
        if rule.most_items is not None and len(value) > rule.most_items:
            raise FieldError(path, f"should have at most {rule.most_items} items, not {len(value)}")


def _require(right: bool, what: str, value: Any, path: tuple[str, ...]) -> None:
    if not right:
        raise FieldError(path, f"should be {what}, not {_shown(value)}")


def _listed(words: tuple[Any, ...]) -> str:
    return ", ".join(map(json.dumps, words[:-1])) + f" or {json.dumps(words[-1])}" if len(words) > 1 else repr(words[0])


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---- schema ----------------------------------------------------------------------------------------------------------


def schema_of(*kinds: type) -> Schema:
    """JSON schema (draft 2020-12) of an object of one of these dataclasses."""
    definitions: dict[str, Schema] = {}
    alternatives = [_schema(kind, definitions) for kind in kinds]
    head: Schema = alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
    return {**head, "$defs": dict(sorted(definitions.items()))}


def _schema(hint: Any, definitions: dict[str, Schema]) -> Schema:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema = _schema(arguments[0], definitions)
        for rule in arguments[1:]:
            schema = _with_rule(schema, rule)
        return schema
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(each, definitions) for each in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if is_dataclass(hint):
        return _reference(hint, definitions)  # type: ignore[arg-type]
    return {"type": _TYPES[hint]} if hint in _TYPES else {}


_TYPES: Mapping[Any, str] = {
    int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null", None: "null",
}  # fmt: skip


def _reference(kind: type, definitions: dict[str, Schema]) -> Schema:
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # for a recursive dataclass
        properties, required = {}, []
        for field in fields(kind):
            properties[field.name] = _schema(_hints(kind)[field.name], definitions)
            if field.default is MISSING and field.default_factory is MISSING:
                required.append(field.name)
            elif field.default is not MISSING and field.default is not None:
                properties[field.name] = {**properties[field.name], "default": field.default}
        definitions[name] = {
            "description": " ".join((kind.__doc__ or "").split()),
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}


def _with_rule(schema: Schema, rule: Any) -> Schema:
    if not isinstance(rule, Rule):
        return schema
    words: Mapping[str, Any] = {
        "minimum": rule.least,
        "pattern": rule.pattern or None,
        "minItems": rule.least_items,
        "maxItems": rule.most_items,
        "description": rule.about or None,
    }
    return {**schema, **{name: value for name, value in words.items() if value is not None}}
