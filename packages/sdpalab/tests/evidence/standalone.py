"""The verifier as bundles carry it, loaded from its one file: what the tests of the verifier take apart."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from sdpalab.evidence.verifier.assemble import PACKAGE, assembled

__all__ = ["verify"]


class _Standalone:
    """The names that the modules of the file's verifier export, and those of the rule in it."""

    def __init__(self) -> None:
        exec(compile(assembled(), "verify.py", "exec"), {"__name__": "standalone_verify"})
        parts = (f"{PACKAGE}.evidence.verifier.", f"{PACKAGE}.judge.rule.")
        self.modules = [module for name, module in sys.modules.items() if name.startswith(parts)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module_with(name), name)

    def module_with(self, name: str) -> ModuleType:
        """The module that defines a name."""
        return next(module for module in self.modules if name in getattr(module, "__all__", vars(module)))


verify: Any = _Standalone()
