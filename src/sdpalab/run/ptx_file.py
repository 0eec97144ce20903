"""A PTX text with a description of one launch beside it: the entry for PTX from other sources.

The description is JSON::

    {"entry": "saxpy", "grid": [4], "block": [256], "dynamic_smem": 0,
     "args": [{"dtype": "float32", "shape": [1000], "init": "normal"},
              {"dtype": "float32", "shape": [1000], "init": "poison"}, 2.0, 1000]}

``args`` fill the parameters in order. A number is passed by value in the type that the entry declares; an object is a
buffer with a NumPy (or ml_dtypes) ``dtype``, a ``shape``, and how it is filled: ``init`` is ``normal`` (the default),
``zeros``, ``ones``, ``arange``, ``poison`` (every byte 0xFF), or a number. ``entry`` may be left out where the PTX has
one; ``dynamic_smem`` and ``cluster`` have the defaults 0 and [1, 1, 1].
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.inputs import dtype_of

__all__ = ["PtxLaunch", "read_ptx_launch"]

INITS = ("normal", "zeros", "ones", "arange", "poison")
_KEYS = ("entry", "grid", "block", "args", "dynamic_smem", "cluster")
_MAX_BYTES = 1 << 30

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PtxLaunch:
    """One launch of one entry. ``args`` are numbers and buffer descriptions; :meth:`arguments` makes the arrays."""

    name: str
    ptx: str
    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[Any, ...]
    dynamic_smem: int = 0
    cluster: tuple[int, ...] = (1, 1, 1)

    def arguments(self) -> list[Any]:
        """Fresh arguments: the same values each time."""
        return [_buffer(value, place) if isinstance(value, dict) else value for place, value in enumerate(self.args, 1)]


def read_ptx_launch(ptx: Path, description: Path) -> PtxLaunch:
    """Read a PTX file and the JSON description of its launch.

    Raises
    ------
    UserError
        If one of them cannot be read, or the description is not one; the message says which part.
    """
    text, facts = _text(ptx), _object(description)
    unknown = [key for key in facts if key not in _KEYS]
    if unknown:
        raise UserError(f"{description}: there is no {unknown[0]!r} in a launch; it has {', '.join(_KEYS)}")
    missing = [key for key in ("grid", "block", "args") if key not in facts]
    if missing:
        raise UserError(f"{description}: a launch needs {missing[0]!r}")
    entries = re.findall(r"\.entry\s+([\w$%]+)", text)
    if "entry" not in facts and len(entries) != 1:
        raise UserError(f"{description}: say which 'entry' of {ptx} is meant; it has: {', '.join(entries) or 'none'}")
    if not isinstance(facts["args"], list):
        raise UserError(f"{description}: 'args' is a list, with one value for each parameter")
    dynamic_smem = facts.get("dynamic_smem", 0)
    if not _whole(dynamic_smem) or dynamic_smem < 0:
        raise UserError(f"{description}: 'dynamic_smem' is a number of bytes, not {dynamic_smem!r}")
    launch = PtxLaunch(
        ptx.name,
        text,
        str(facts.get("entry", entries[0] if entries else "")),
        _dims(facts["grid"], "grid", description),
        _dims(facts["block"], "block", description),
        tuple(facts["args"]),
        dynamic_smem,
        _dims(facts.get("cluster", [1, 1, 1]), "cluster", description),
    )
    try:
        launch.arguments()
    except UserError as error:
        raise UserError(f"{description}: {error}") from None
    return launch


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file") from None


def _object(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error.msg} (line {error.lineno})") from None
    if not isinstance(facts, dict):
        raise UserError(f"{path} must hold one JSON object with {', '.join(_KEYS)}")
    return facts


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _dims(value: Any, name: str, where: Path) -> tuple[int, ...]:
    dims = value if isinstance(value, list) else [value]
    if not 1 <= len(dims) <= 3 or not all(_whole(dim) and dim >= 1 for dim in dims):
        raise UserError(f"{where}: {name!r} takes one to three positive integers, not {value!r}")
    return tuple(dims)


def _buffer(described: dict[str, Any], place: int) -> Array:
    """The array of a buffer description."""
    if set(described) - {"dtype", "shape", "init"} or not {"dtype", "shape"} <= set(described):
        raise UserError(f"argument {place}: a buffer has 'dtype', 'shape' and perhaps 'init', not {sorted(described)}")
    shape, init = described["shape"], described.get("init", "normal")
    shape = shape if isinstance(shape, list) else [shape]
    try:
        dtype = dtype_of(str(described["dtype"]))
    except UserError as error:
        raise UserError(f"argument {place}: {error}") from None
    if not shape or not all(_whole(size) and size >= 1 for size in shape):
        raise UserError(f"argument {place}: 'shape' takes positive integers, not {described['shape']!r}")
    count = int(np.prod(shape, dtype=object))
    if count * dtype.itemsize > _MAX_BYTES:
        raise UserError(f"argument {place} has {count * dtype.itemsize} bytes, and at most {_MAX_BYTES} are allowed")
    values: Any
    if init == "normal":
        values = np.random.Generator(np.random.PCG64(place)).standard_normal(count)
        values = 16.0 * values if dtype.kind in "iu" else values
    elif init == "arange":
        values = np.arange(count)
    elif init == "poison":
        poison: Array = np.full(count * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)
        return poison
    elif init in ("zeros", "ones"):
        values = np.full(count, init == "ones")
    elif isinstance(init, (int, float)) and not isinstance(init, bool):
        values = np.full(count, init)
    else:
        raise UserError(f"argument {place}: 'init' is {', '.join(INITS)} or a number, not {init!r}")
    if dtype.kind == "u":
        values = np.abs(values)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(dtype).reshape(shape)
