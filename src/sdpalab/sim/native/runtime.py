"""All that is translated from Python to machine code, which is compiled as one: the loop, and what operations call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from sdpalab.sim.native import (
    clocks,
    copies,
    exact_sums,
    flights,
    frames,
    groups,
    initialised,
    mbarriers,
    phases,
    products,
    scheduler,
    suspects,
    trace,
    traffic,
    transfers,
    updates,
    watch,
)
from sdpalab.sim.native.watch import cluster_memory, undefined_bytes, undefined_global, undefined_products

__all__ = ["runtime_functions"]

_MODULES = (
    clocks,
    cluster_memory,
    copies,
    exact_sums,
    flights,
    frames,
    groups,
    initialised,
    mbarriers,
    phases,
    products,
    scheduler,
    suspects,
    trace,
    traffic,
    transfers,
    undefined_bytes,
    undefined_global,
    undefined_products,
    updates,
    watch,
)


def runtime_functions() -> list[Callable[..., Any]]:
    """The functions that have symbols: those that the modules offer to others."""
    functions = {getattr(module, name) for module in _MODULES for name in module.__all__}
    return sorted(filter(inspect.isfunction, functions), key=lambda each: (each.__module__, each.__name__))
