"""Contents of one build in a bundle: its record and its files."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sdpalab.compile import Build
from sdpalab.compile.gate import GateResult
from sdpalab.compile.resources import Resources
from sdpalab.evidence.records import CUBIN, LOG, PTX, BuildRecord
from sdpalab.evidence.user_source import DEVICE_ENDINGS
from sdpalab.kernels.plan import Module, Source
from warpsan.build import Header, resolve_headers

__all__ = ["BuiltModule", "built_module"]


_HEADERS = "include"
_NAME = re.compile(r"[\w+-][\w.+-]{0,99}")
"""One part of a path that is valid on any file system and stays within its folder."""


@dataclass(frozen=True)
class BuiltModule:
    """One compiled module, ready for a bundle.

    Attributes
    ----------
    module : str
        File name of its source.
    build : Build
    files : mapping of str to bytes
        Files of the bundle, by name.
    sources : mapping of str to str
        Digests of all files that the compiler could read; kept files have the same names.
    resources, gate
        As in :func:`built_module`.
    """

    module: str
    build: Build
    files: Mapping[str, bytes]
    sources: Mapping[str, str]
    resources: Resources | None
    gate: GateResult | None

    def record(self, directory: str) -> BuildRecord:
        """The record, for files in ``directory`` of the bundle."""
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
            sources=self.sources,
            files={name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()},
            resources=self.resources,
            gate=self.gate,
        )


def built_module(
    module: Source, build: Build, resources: Resources | None = None, gate: GateResult | None = None
) -> BuiltModule:
    """Collect the record and files of one build.

    Parameters
    ----------
    module : Module or TritonModule
        The compiled module: its source and all headers except CUDA's own are kept in full; a header without a
        device-code suffix (:data:`~sdpalab.evidence.user_source.DEVICE_ENDINGS`) is kept as a digest only.
    build : Build
        Its build.
    resources, gate
        Resources of the cubin, and the result of the static gate; None if it was not run.
    """
    name = posixpath.basename(module.name)
    if not _NAME.fullmatch(name) or name in (PTX, CUBIN, LOG, _HEADERS):
        name = "source.cu"
    files = {name: module.source.encode(), PTX: build.ptx, CUBIN: build.cubin, LOG: build.log.encode()}
    sources = {name if source == build.module else source: digest for source, digest in build.sources.items()}
    for header in resolve_headers(module, build.command) if isinstance(module, Module) else ():
        if not header.cuda and header.name.endswith(DEVICE_ENDINGS):
            sources.pop(header.name, None)
            path = _kept_name(header)
            if path in sources:  # other spellings of the path
                path = _by_digest(header)
            files[f"{_HEADERS}/{path}"], sources[path] = header.text, header.sha256
    return BuiltModule(name, build, files, sources, resources, gate)


def _kept_name(header: Header) -> str:
    """The normalised path of a header, if it stays within the folder of the headers."""
    path = posixpath.normpath(header.name)
    return path if all(map(_NAME.fullmatch, path.split("/"))) else _by_digest(header)


def _by_digest(header: Header) -> str:
    name = re.sub(r"[^\w.+-]", "_", posixpath.basename(header.name))[-60:].lstrip(".")
    return f"{header.sha256[:16]}/{name or 'header'}"
