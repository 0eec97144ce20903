"""Evidence: records of a run, a bundle that anyone can verify, and a report.

The sequence, as ``sdpalab repro`` runs it::

    with BundleWriter(out_dir, command=["sdpalab", "repro"]) as bundle:
        for kernel in kernels:
            build, resources and gate for each module of the kernel's launch plan, then
            verdict = judge_candidate(kernel.name, twelve_cases(), store=bundle.arrays)
            bundle.add(
                kernel.name,
                config=str(config),
                idea=kernel.idea,
                builds=[built_module(module, build, resources, gate), ...],
                verdict=verdict,  # or None and failure="why there is no verdict"
            )
        written = bundle.write()
    written.tarball, written.report, written.name

If the ``with`` block ends without ``write``, all files are removed. ``verify_bundle`` checks a tarball or an unpacked
directory; ``render_report(ReportData.read(path))`` renders the report from a bundle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdpalab.evidence.built import BuiltModule, built_module
    from sdpalab.evidence.bundle import BundleWriter, WrittenBundle, verify_bundle
    from sdpalab.evidence.report.data import ReportData
    from sdpalab.evidence.report.page import render_report
    from sdpalab.evidence.store.files import ArrayStore
    from sdpalab.evidence.verifier.findings import Outcome

__all__ = [
    "ArrayStore",
    "BuiltModule",
    "BundleWriter",
    "Outcome",
    "ReportData",
    "WrittenBundle",
    "built_module",
    "render_report",
    "verify_bundle",
]

_HOME = {
    "ArrayStore": "store.files",
    "BuiltModule": "built",
    "BundleWriter": "bundle",
    "Outcome": "verifier.findings",
    "ReportData": "report.data",
    "WrittenBundle": "bundle",
    "built_module": "built",
    "render_report": "report.page",
    "verify_bundle": "bundle",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: judging a kernel needs neither matplotlib nor pydantic."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"sdpalab.evidence.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
