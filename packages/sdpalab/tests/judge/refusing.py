"""A machine whose kernel refuses namespaces."""

from __future__ import annotations

from pathlib import Path

from sdpalab.judge.sandbox import guarded

UNCONFINED = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("guard", {guard!r})
guard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard)
guard._enter_namespaces = lambda: ("", "Operation not permitted")
guard.main(json.loads(sys.argv[1]))
"""


def refusing_guard(folder: Path) -> Path:
    """A guard, in ``folder``, to which the kernel refuses namespaces."""
    script = folder / "guard.py"
    script.write_text(UNCONFINED.format(guard=str(guarded._GUARD)))
    return script
