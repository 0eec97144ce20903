"""What is kept of one build: its record, and the files behind it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from sdpalab.compile import Build
from sdpalab.compile.gate import GateResult
from sdpalab.compile.headers import resolve_headers
from sdpalab.compile.resources import Resources
from sdpalab.evidence.records import CUBIN, LOG, PTX, BuildRecord
from sdpalab.kernels.plan import INCLUDE_DIR, Module, Source

__all__ = ["BuiltModule", "built_module"]


@dataclass(frozen=True)
class BuiltModule:
    """One compiled module, ready for a bundle: its build, the files to keep by name, and the resources and the gate."""

    module: str
    build: Build
    files: Mapping[str, bytes]
    resources: Resources | None
    gate: GateResult | None

    def record(self, directory: str) -> BuildRecord:
        """The record, for files that lie in ``directory`` of the bundle."""
        build = self.build
        return BuildRecord(
            directory=directory,
            name=build.name,
            module=self.module,
            key=build.key,
            entry=build.entry,
            arch=build.arch,
            compiler=build.compiler,
            command=build.command,
            compile_seconds=build.compile_seconds,
            cache_hit=build.cache_hit,
            sources={self.module if name == build.module else name: digest for name, digest in build.sources.items()},
            files={name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()},
            resources=self.resources,
            gate=self.gate,
        )


def built_module(
    module: Source, build: Build, resources: Resources | None = None, gate: GateResult | None = None
) -> BuiltModule:
    """What to keep of one build.

    Parameters
    ----------
    module : Module or TritonModule
        What was compiled: its source and those headers that are not CUDA's own are kept in full.
    build : Build
        Its build.
    resources, gate
        What the cubin uses, and the result of the static gate; None where it was not run.
    """
    name = os.path.basename(module.name)
    files = {name: module.source.encode(), PTX: build.ptx, CUBIN: build.cubin, LOG: build.log.encode()}
    if isinstance(module, Module):
        own = [os.path.abspath(folder) for folder in (*module.include_dirs, INCLUDE_DIR)]
        for header in resolve_headers(module, (INCLUDE_DIR,)):
            if any(os.path.isfile(os.path.join(folder, header.name)) for folder in own):
                files[f"include/{header.name}"] = header.text
    return BuiltModule(name, build, files, resources, gate)
