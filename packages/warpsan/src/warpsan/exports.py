"""Public names of a package, imported from their modules on first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["exports"]


def exports(homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], list[str]]:
    """``__getattr__`` and ``__all__`` for the calling package; ``homes`` has its names by module."""
    package = sys._getframe(1).f_globals
    module_of = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(module_of[name]), name)
        return value

    return find, sorted(module_of)
