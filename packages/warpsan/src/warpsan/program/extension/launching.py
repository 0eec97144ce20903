"""Kernels of an extension: compiled by NVRTC at the first launch, and executed on the simulator."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warpsan import LaunchError, SimError
from warpsan.build import Build, Module, build
from warpsan.errors import UserError
from warpsan.host.device import DeviceModule
from warpsan.program.extension.memory import DeviceMemory
from warpsan.program.extension.values import CLaunch
from warpsan.program.kernel_launches import KernelLaunches
from warpsan.ptx.names import short_name
from warpsan.ptx.parser import parse
from warpsan.report.groups import ENDINGS, SanitizedHazard, ending

__all__ = ["DeviceOptions", "ExtensionKernels", "KernelStopped"]

_INVALID_VALUE, _INVALID_CONFIGURATION = 1, 9
_NAME = re.compile(r"[A-Za-z_$][\w$]*")
_VARIABLE = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak|common)\s+)*\.(?:global|const)\b[^\n=;]*?\s([A-Za-z_$][\w$]*)(?:\[\d*\])*"
    r"(?:\s*=[^;\n]*)?;[ \t]*$",
    re.MULTILINE,
)
_MAX_DYNAMIC_SHARED = 8
"""cudaFuncAttributeMaxDynamicSharedMemorySize."""
_WITHOUT_OPT_IN, _MOST_SHARED = 48 * 1024, 227 * 1024


class KernelStopped(Exception):
    """A launch ended in a deadlock, an endless loop or a trap, or the simulator could not execute it."""


@dataclass(frozen=True)
class DeviceOptions:
    """Inputs of NVRTC beside the source: folders of headers, macros, options, and the architecture."""

    include_dirs: tuple[Path, ...]
    defines: Mapping[str, str]
    options: tuple[str, ...]
    arch: str


class ExtensionKernels:
    """The kernels of one extension.

    Parameters
    ----------
    sources : mapping of str to str
        CUDA sources by file name.
    compilation : DeviceOptions
    memory : DeviceMemory
    run : KernelLaunches
        Receives the launches.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        compilation: DeviceOptions,
        memory: DeviceMemory,
        run: KernelLaunches,
    ) -> None:
        self._sources, self._compilation = dict(sources), compilation
        self._memory, self._run, self._device = memory, run, memory.device
        self._builds: dict[str, Build] = {}
        self._modules: dict[str, DeviceModule] = {}
        self._shared: dict[str, int] = {}
        self._symbols: dict[str, tuple[int, bytes]] = {}

    def launch(self, asked: CLaunch) -> int:
        """Execute a launch; the number of a CUDA error, or 0.

        Raises
        ------
        UserError
            If NVRTC rejects the kernel.
        KernelStopped
            If it did not end.
        """
        arguments = [asked.template_arguments[i].decode() for i in range(asked.template_count)]
        name = asked.kernel.decode() + (f"<{', '.join(map(_device_type, arguments))}>" if arguments else "")
        module, entry = self._module(name)
        if asked.dynamic_smem > self._shared.get(name, _WITHOUT_OPT_IN) or 0 in (*asked.grid, *asked.block):
            return _INVALID_VALUE if asked.dynamic_smem > _WITHOUT_OPT_IN else _INVALID_CONFIGURATION
        sizes = [asked.sizes[i] for i in range(asked.count)]
        values = [ctypes.string_at(asked.arguments[i], size) for i, size in enumerate(sizes)]
        params = parse(module.text).entries[entry].params
        if [param.size for param in params] != sizes:
            raise UserError(
                f"{short_name(entry)}: the sizes of its parameters are {[each.size for each in params]} in device code "
                f"and {sizes} in host code"
            )
        run, file = self._run, (asked.file or b"").decode(errors="replace")
        run.launches += 1
        place = f" at {Path(file).name}:{asked.line}" if file else ""
        label, ptx = f"operation {run.launches} ({short_name(entry)}{place})", f"{short_name(entry)}.ptx"
        run.texts[ptx] = module.text
        self._memory.put_tensors()
        try:
            report = module[entry].launch(
                tuple(asked.grid),
                tuple(asked.block),
                values,
                dynamic_smem=asked.dynamic_smem,
                cluster=tuple(asked.cluster),
                cooperative=bool(asked.cooperative),
                **run.options.of_launch,
            )
        except LaunchError as error:
            run.refused = f"{label}: {error}"
            return _INVALID_CONFIGURATION
        except tuple(ENDINGS) as error:
            run.hazards += [SanitizedHazard.of(hazard, ptx, label) for hazard in error.hazards]
            run.hazards.append(ending(error, ptx, label))
            raise KernelStopped(str(error)) from None
        except SimError as error:
            run.fatal = run.fatal or f"{label}: {error}"
            raise KernelStopped(run.fatal) from None
        changed = self._memory.take_tensors()
        if run.observe is not None:
            run.observe(short_name(entry), module.text, changed, report)
        run.hazards += [SanitizedHazard.of(hazard, ptx, label) for hazard in report.hazards]
        return 0

    def set_attribute(self, name: str, attribute: int, value: int) -> int:
        """``cudaFuncSetAttribute`` of a kernel."""
        parts = re.fullmatch(r"(.*?)<(.*)>", name, re.DOTALL)
        if parts:
            name = f"{parts[1]}<{', '.join(map(_device_type, parts[2].split(', ')))}>"
        if attribute == _MAX_DYNAMIC_SHARED:
            if value > _MOST_SHARED:
                return _INVALID_VALUE
            self._shared[name] = max(value, _WITHOUT_OPT_IN)
        return 0

    def set_symbol(self, name: str, data: bytes, offset: int) -> int:
        """``cudaMemcpyToSymbol``, for the kernels that are loaded now and later."""
        self._symbols[name] = (offset, data)
        for module in self._modules.values():
            self._set_symbols(module)
        return 0

    def _set_symbols(self, module: DeviceModule) -> None:
        for name, (offset, data) in self._symbols.items():
            try:
                variable = module.variable(name)
            except (LaunchError, SimError, ValueError):
                continue  # the kernel does not use it
            variable[offset : offset + len(data)] = list(data)

    def _module(self, name: str) -> tuple[DeviceModule, str]:
        """The loaded module of a kernel, and its entry."""
        if name not in self._builds:
            self._builds[name] = self._built(name)
        built = self._builds[name]
        if self._device is not self._memory.device:
            self._device, self._modules = self._memory.device, {}
        if name not in self._modules:
            self._modules[name] = self._memory.device.module(_used_variables(built.ptx.decode()))
            self._set_symbols(self._modules[name])
        return self._modules[name], built.entry

    def _built(self, name: str) -> Build:
        plain = name.partition("<")[0].rpartition("::")[2]
        fitting = [file for file, text in self._sources.items() if re.search(rf"\b{plain}\s*\(", text)]
        error: UserError | None = None
        for file in fitting or self._sources:
            module = Module(
                file,
                self._sources[file],
                name,
                defines=self._compilation.defines,
                include_dirs=self._compilation.include_dirs,
                options=self._compilation.options,
            )
            try:
                return build(module, self._compilation.arch)
            except UserError as raised:
                error = error or raised
        raise error or UserError(f"no source has the kernel {name}")


def _used_variables(ptx: str) -> str:
    """PTX without the variables that nothing refers to, such as constants of templates, with as many lines: each would
    take an allocation of the device."""
    counts = Counter(_NAME.findall(ptx))
    return _VARIABLE.sub(lambda match: match[0] if counts[match[1]] > 1 else "", ptx)


def _device_type(text: str) -> str:
    """A template argument of host code in device code."""
    return text.replace("{anonymous}::", "").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
