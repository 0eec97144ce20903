"""The code that is translated from Python to machine code and compiled as one: the loop, and the callees of
operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["runtime_functions"]

_MODULES = (
    *(
        "clocks",
        "copies",
        "exact_sums",
        "flights",
        "frames",
        "groups",
        "hazards",
        "initialised",
        "lane_races",
        "map_fences",
        "mbarriers",
        "phases",
    ),
    *(
        "products",
        "scheduler",
        "suspects",
        "tensor_memory",
        "tensor_products",
        "traffic",
        "transfers",
        "updates",
        "watch",
    ),
    *("watch.cluster_memory", "watch.undefined_bytes", "watch.undefined_global", "watch.undefined_products"),
)


def runtime_functions() -> list[Callable[..., Any]]:
    """The functions with symbols, which the modules export."""
    modules = [import_module(f"warpsan.engine.{name}") for name in _MODULES]
    functions = {getattr(module, name) for module in modules for name in module.__all__}
    return sorted(filter(inspect.isfunction, functions), key=lambda each: (each.__module__, each.__name__))
