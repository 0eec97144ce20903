"""The verifier as bundles carry it, loaded as one module: what the tests of the verifier take apart."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from sdpalab.evidence.verifier.assemble import assembled

__all__ = ["verify"]

verify: Any = ModuleType("standalone_verify")
sys.modules[verify.__name__] = verify  # dataclasses look their module up
exec(compile(assembled(), "verify.py", "exec"), verify.__dict__)
