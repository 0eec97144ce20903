"""The JSON form of a record, derived from the record's own fields, for every record of the lab."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from pydantic import (
    ConfigDict,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import CoreSchema

from sdpalab.problem import FIELDS, Problem

__all__ = ["ENVELOPE", "RECORD", "JsonRecord", "ProblemField", "dataclass", "json_fields"]

ENVELOPE = ("schema", "version", "command", "subject", "status", "error")
"""The fields around the content of a command's JSON document (:mod:`sdpalab.commands.documents`)."""
RECORD = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Configuration of every record: unknown fields, NaN and infinity are rejected."""


Kind = TypeVar("Kind", bound="JsonRecord")


@dataclass(frozen=True, config=RECORD)
class JsonRecord:
    """Base of records: ``to_dict`` gives plain JSON values, ``from_dict`` is the inverse.

    A subclass is a ``pydantic.dataclasses.dataclass(frozen=True, config=RECORD)``, and validates in ``__post_init__``.

    Attributes
    ----------
    derived : tuple of str
        Properties that the JSON contains beside the fields; they must match the fields where present.
    added : tuple of str
        Fields with a default that JSON of an older format may lack; all other fields are required.
    sparse : tuple of str
        Fields that the JSON omits while they are empty, and derived properties that JSON of an older format may lack.
    """

    derived: ClassVar[tuple[str, ...]] = ()
    added: ClassVar[tuple[str, ...]] = ()
    sparse: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(data, Mapping):  # a record already, or the arguments of the constructor
            return handler(data)
        known = {field.name for field in fields(cls)}
        optional = {*cls.added, *cls.sparse}
        missing = sorted(known.union(cls.derived).difference(data, optional))
        if missing:
            raise ValueError(f"{cls.__name__}: {', '.join(missing)} must be there")
        record = handler({name: value for name, value in data.items() if name not in cls.derived})
        for name in (name for name in cls.derived if name in data):  # declaration order keeps messages stable
            value, stated = _plain(getattr(record, name)), _plain(data[name])
            if type(value) is not type(stated) or value != stated:
                raise ValueError(f"{cls.__name__}: {name} is {stated}, and its fields give {value}")
        return record

    @model_serializer(mode="wrap")
    def _write(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = {**{name: _plain(getattr(self, name)) for name in self.derived}, **handler(self)}
        return {name: value for name, value in values.items() if value or name not in self.sparse}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema of :meth:`to_dict`: with the derived properties, and with all fields required that it writes."""
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        written = json_fields(cls)
        for name in cls.derived:
            schema["properties"][name] = handler(TypeAdapter(written[name][0]).core_schema)
        schema["required"] = [name for name, (_, default) in written.items() if default is ...]
        return reference

    @classmethod
    def from_dict(cls: type[Kind], data: Mapping[str, Any]) -> Kind:
        """Build a record from the result of :meth:`to_dict`.

        Raises
        ------
        ValueError
            If a field is missing, unknown or of another type, a derived property contradicts the fields, or the record
            is invalid.
        """
        record: Kind = TypeAdapter(cls).validate_python(data)
        return record

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the fields and the derived properties."""
        values: dict[str, Any] = TypeAdapter(type(self)).dump_python(self, mode="json")
        return values


def json_fields(kind: type[JsonRecord]) -> dict[str, tuple[Any, Any]]:
    """Fields of a record's JSON, each with its type and its default; the default ``...`` means that it is always there.

    Parameters
    ----------
    kind : subclass of JsonRecord
    """
    hints = get_type_hints(kind, include_extras=True)
    hints |= {name: get_type_hints(getattr(kind, name).fget)["return"] for name in kind.derived}
    names = (*(field.name for field in fields(kind)), *kind.derived)
    return {name: (hints[name], None if name in kind.sparse else ...) for name in names}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _problem(value: Any) -> Problem:
    """A problem, or the problem with the fields of a mapping; ``Problem`` validates them."""
    if isinstance(value, Problem):
        return value
    names = [field.name for field in fields(Problem) if field.name not in FIELDS]
    if not isinstance(value, Mapping) or set(value) - set(FIELDS) != set(names):
        raise ValueError(f"a problem has the fields {', '.join(names)}, and perhaps {' and '.join(FIELDS)}")
    problem = Problem(**value)
    if problem.to_dict() != {**value}:
        raise ValueError(f"the fields of the problem are not in their one form, which is {problem.to_dict()}")
    return problem


class _ProblemSchema:
    """JSON Schema of :meth:`Problem.to_dict`: no field is null, and the features are omitted while they are empty."""

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = TypeAdapter(Problem).json_schema()
        for name, field in schema["properties"].items():
            schema["properties"][name] = field["anyOf"][0] if "anyOf" in field else {"type": field["type"]}
        schema["required"] = [name for name in schema["properties"] if name not in FIELDS]
        return {**schema, "description": "See sdpalab.problem.Problem.", "additionalProperties": False}


ProblemField = Annotated[Problem, PlainValidator(_problem), PlainSerializer(Problem.to_dict), _ProblemSchema()]
"""A problem as a field of a record."""
