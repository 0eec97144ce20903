"""Writing, verifying and reporting a bundle, for the commands that produce one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sdpalab.judge.verdict import Verdict
from sdpalab.kernels.userfile import is_user_file
from warpsan.terminal.console import conclude
from warpsan.terminal.invocation import command_line

if TYPE_CHECKING:
    from sdpalab.evidence import WrittenBundle

__all__ = ["JudgedEvidence", "print_bundle"]


class JudgedEvidence:
    """Evidence of one judgement, a context manager: arrays and executed plans during it, then a bundle.

    Attributes
    ----------
    arrays, plans
        ``store`` and ``on_plan`` of the judge.
    """

    def __init__(self, folder: Path, key: Path | None = None) -> None:
        from sdpalab.evidence import BundleWriter
        from sdpalab.evidence.executed import ExecutedPlans
        from sdpalab.evidence.signing import private_key

        self._key = private_key(key) if key is not None else None
        self._writer = BundleWriter(folder, command=command_line())
        self.arrays, self.plans = self._writer.arrays, ExecutedPlans()

    def __enter__(self) -> JudgedEvidence:
        return self

    def __exit__(self, *error: Any) -> None:
        self._writer.__exit__(*error)

    def write(self, console: Console, spec: str, verdict: Verdict, include_dirs: Sequence[Path] = ()) -> WrittenBundle:
        """Write and verify the bundle of a verdict on the kernel ``spec`` of the command line."""
        from sdpalab.evidence.user_source import user_files
        from sdpalab.judge.sandbox.workshop import workshop_for

        with workshop_for(spec, include_dirs) as workshop:
            builds = self.plans.builds(verdict, workshop=workshop)
        self._writer.add(
            verdict.kernel,
            config=verdict.config,
            builds=builds,
            verdict=verdict,
            sources=user_files(spec) if is_user_file(spec) else None,
        )
        written = self._writer.write_verified(self._key)
        print_bundle(console, written)
        return written


def print_bundle(console: Console, written: WrittenBundle) -> None:
    """Print the path of a verified bundle, and the command that verifies it again."""
    conclude(console, f"bundle  {written.tarball}")
    console.print(f"report  {written.report} (open it in any browser)", soft_wrap=True)
    console.print(f"verify  {_own_command()} verify {written.tarball} (just done: accepted)", soft_wrap=True)
    if written.envelope is not None:
        console.print(f"signed  {written.envelope} (key {written.fingerprint})", soft_wrap=True)


def _own_command() -> str:
    """The command line that runs this command from here, also if it is not on the path."""
    if shutil.which("sdpalab"):
        return "sdpalab"
    script = Path(sys.executable).with_name("sdpalab")
    if not script.exists():
        return f"{sys.executable} -m sdpalab"
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)
