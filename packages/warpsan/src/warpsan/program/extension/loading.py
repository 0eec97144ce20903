"""``torch.utils.cpp_extension`` on the simulator: ``load_inline`` and ``load`` return modules whose kernels it runs."""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional

from warpsan.build import Module
from warpsan.errors import UserError
from warpsan.gpus import default_gpu
from warpsan.program.cpu_tensors import describe_gpu
from warpsan.program.errors import error_text
from warpsan.program.extension.compiling import compiled_host
from warpsan.program.extension.host_text import host_code
from warpsan.program.extension.launching import DeviceOptions, ExtensionKernels
from warpsan.program.extension.memory import DeviceMemory
from warpsan.program.extension.values import DTYPES, CProcess, CValue, Handles
from warpsan.program.kernel_launches import KernelLaunches
from warpsan.program.options import RunOptions
from warpsan.program.properties import attribute_of, device_properties, properties_of

__all__ = ["Extensions"]

_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty")
_CUDA = ".cu", ".cuh"
_FLAGS = ("use_fast_math", "fmad=false", "ftz=true", "prec-div=false", "prec-sqrt=false")
"""Options of nvcc that change the arithmetic of device code; NVRTC gets these alone."""


class Extensions:
    """All extensions of this process, and the simulated device that they share.

    Attributes
    ----------
    run : KernelLaunches
    kernels : list of str
        Names of their kernels.
    texts : dict
        Text of the sources by name.
    """

    def __init__(self, arch: str) -> None:
        gpu = default_gpu(arch)
        self.run = KernelLaunches(RunOptions(gpu=gpu, arch=arch))
        self.memory = DeviceMemory(self.run.options.fill)
        self.kernels: list[str] = []
        self.texts: dict[str, str] = {}
        self._facts = device_properties(gpu, arch, self.run.options.memory)
        self._arch, self._handles = arch, Handles()
        self._of: list[ExtensionKernels] = []
        self._error: BaseException | None = None
        call, release, launch = (kind for _, kind in CProcess._fields_)
        self._callbacks = CProcess(call(self._call), release(self._handles.release), launch(self._launch))
        self._current: ExtensionKernels | None = None
        self._functions: dict[str, Callable[..., Any]] = {
            "cudaFuncSetAttribute": lambda *a: self._kernels.set_attribute(*a),
            "cudaMemcpyToSymbol": self._to_symbol,
            "cudaMemcpy": lambda to, source, size: self.memory.copy(to, source, size),
            "cudaMemset": lambda to, value, size: self.memory.fill(to, value, size),
            "cudaFree": lambda address: self.memory.free(address),
            "allocate": self.memory.allocate,
            "occupancy": lambda threads, smem: max(1, min(2048 // max(threads, 1), 227 * 1024 // max(smem, 1))),
            "error text": self._error_text,
            "device attribute": lambda number: attribute_of(self._facts, number) or 0,
            "cudaGetDeviceProperties": self._properties,
        }

    def install(self) -> None:
        """Replace ``load_inline`` and ``load`` in this process, and let torch describe the simulated GPU."""
        from torch.utils import cpp_extension

        cpp_extension.load_inline = self.load_inline
        cpp_extension.load = self.load  # type: ignore[assignment]
        assert self.run.options.gpu is not None
        describe_gpu(self.run.options.gpu, self._arch, self.run.options.memory)

    def load_inline(
        self,
        name: str,
        cpp_sources: str | Sequence[str],
        cuda_sources: str | Sequence[str] | None = None,
        sycl_sources: Any = None,
        functions: Any = None,
        extra_cflags: Sequence[str] | None = None,
        extra_cuda_cflags: Sequence[str] | None = None,
        *others: Any,
        **more: Any,
    ) -> ModuleType:
        """As ``torch.utils.cpp_extension.load_inline``; options of the linker have no effect."""
        if not isinstance(sycl_sources, (str, type(None))) and functions is None:
            functions = sycl_sources  # its place before torch 2.7
        cpp, cuda = (([each] if isinstance(each, str) else list(each or [])) for each in (cpp_sources, cuda_sources))
        functions = [functions] if isinstance(functions, str) else list(functions or [])
        lines = [f'    module.def("{each}", {each});' for each in functions]
        binding = ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {", *lines, "}"] if functions else []
        sources = {"main.cpp": "\n".join([*cpp, *binding])}
        sources |= {"cuda.cu": "\n".join(cuda)} if cuda else {}
        flags = [*(extra_cflags or ()), *(extra_cuda_cflags or ())]
        return self._loaded(name, sources, [*map(Path, more.get("extra_include_paths") or ())], flags)

    def load(
        self,
        name: str,
        sources: str | Sequence[str],
        extra_cflags: Sequence[str] | None = None,
        extra_cuda_cflags: Sequence[str] | None = None,
        extra_ldflags: Sequence[str] | None = None,
        extra_include_paths: str | Sequence[str] | None = None,
        *others: Any,
        **more: Any,
    ) -> ModuleType:
        """As ``torch.utils.cpp_extension.load``; options of the linker have no effect."""
        paths = [Path(each) for each in ([sources] if isinstance(sources, str) else sources)]
        missing = [str(each) for each in paths if not each.is_file()]
        if missing:
            raise UserError(f"the extension {name} has no source {missing[0]}")
        folders = list(dict.fromkeys(each.resolve().parent for each in paths))
        given = [extra_include_paths] if isinstance(extra_include_paths, str) else list(extra_include_paths or ())
        texts = {each.name: each.read_text(errors="replace") for each in paths}
        flags = [*(extra_cflags or ()), *(extra_cuda_cflags or ())]
        return self._loaded(name, texts, [*folders, *map(Path, given)], flags)

    def _loaded(self, name: str, texts: dict[str, str], includes: Sequence[Path], flags: Sequence[str]) -> ModuleType:
        macros_given = [each[2:].partition("=") for each in flags if each.startswith("-D")]
        defines = {key: value or "1" for key, _, value in macros_given}
        folders = tuple(each.resolve() for each in includes)
        host: dict[str, str] = {}
        kernels: list[str] = []
        for file, text in texts.items():
            if file.endswith(_CUDA):
                module = Module(file, text, "", defines=defines, include_dirs=folders)
                code = host_code(module)
                host |= {each: f'#line 1 "{each}"\n{part}' for each, part in code.texts.items()}
                kernels += code.kernels
            else:
                host[file] = f'#line 1 "{file}"\n{text}'
        macros = "".join(f"#define {key} {value}\n" for key, value in defines.items())
        host = {file: macros + text if file in texts else text for file, text in host.items()}
        folder = Path(tempfile.mkdtemp(prefix="extension-")) / "build"
        library = ctypes.CDLL(str(compiled_host(name, host, folder, folders)))
        cuda = {file: text for file, text in texts.items() if file.endswith(_CUDA)}
        options = tuple(each for each in flags if each.lstrip("-") in _FLAGS)
        owner = ExtensionKernels(cuda, DeviceOptions(folders, defines, options, self._arch), self.memory, self.run)
        self.texts |= cuda
        self.kernels += [each for each in dict.fromkeys(kernels) if each not in self.kernels]
        library.warpsan_name.restype = library.warpsan_failure.restype = ctypes.c_char_p
        library.warpsan_parameter.restype = ctypes.POINTER(CValue)
        library.warpsan_bind(ctypes.byref(self._callbacks))
        module_ = ModuleType(name)
        for i in range(library.warpsan_count()):
            function = _ExtensionFunction(self, owner, library, i)
            space, _, short = function.__name__.rpartition("::")
            setattr(getattr(torch.ops, space) if space else module_, short, function)
        sys.modules.setdefault(name, module_)
        return module_

    @property
    def handles(self) -> Handles:
        """Tensors that host code holds."""
        return self._handles

    @property
    def _kernels(self) -> ExtensionKernels:
        assert self._current is not None
        return self._current

    def invoke(self, owner: ExtensionKernels, library: ctypes.CDLL, number: int, arguments: Sequence[Any]) -> Any:
        """Call a function of an extension."""
        array, memory = self._handles.array(arguments)
        result = CValue()
        before, self._current, self._error = self._current, owner, None
        try:
            code = library.warpsan_call(number, array, len(arguments), ctypes.byref(result))
        finally:
            self._current = before
        del memory
        if code:
            error, self._error = self._error, None
            if code == 2 and error is not None:
                raise error
            raise RuntimeError((library.warpsan_failure() or b"").decode(errors="replace"))
        value = self._handles.decode(result)
        library.warpsan_forget()
        return value

    def _launch(self, asked: Any) -> int:
        try:
            return self._kernels.launch(asked.contents)
        except BaseException as error:
            self._error = error
            return -1

    def _call(self, name: bytes, arguments: Any, count: int, result: Any) -> int:
        try:
            values = [self._handles.decode(arguments[i]) for i in range(count)]
            given = {each[0]: each[1] for i, each in enumerate(values) if arguments[i].kind == _KEYWORD}
            plain = [each for i, each in enumerate(values) if arguments[i].kind != _KEYWORD]
            self._handles.encode(self._answer(name.decode(), plain, given), result.contents)
            return 0
        except BaseException as error:
            self._error = error
            return 1

    def _answer(self, name: str, values: list[Any], given: dict[str, Any]) -> Any:
        """Result of a function that host code calls."""
        space, _, function = name.partition(".")
        if not function:
            return self._functions[name](*values)
        values = ["cpu" if isinstance(each, str) and each.startswith("cuda") else each for each in values]
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        if space == "Tensor":
            return self._of_tensor(function, values[0], values[1:], given)
        operation = getattr(torch, function, None) or getattr(torch.nn.functional, function)
        out = operation(*values, **given)
        if function in _EMPTY:
            self.memory.is_new(out)
        return out

    def _of_tensor(self, name: str, tensor: torch.Tensor, values: list[Any], given: dict[str, Any]) -> Any:
        if name == "data_ptr":
            return self.memory.address(tensor)
        if name == "dtype number":
            return next(number for number, each in DTYPES.items() if each is tensor.dtype)
        if name == "requires_grad value":
            return tensor.requires_grad
        if name in ("size", "stride"):
            every = list(getattr(tensor, name)())
            return every if not values else every[values[0]]
        out = getattr(tensor, name)(*values, **given)
        if name in _EMPTY:
            self.memory.is_new(out)
        return out

    def _error_text(self, number: int) -> str:
        """Text of a CUDA error, with the reason why the simulator refused the launch."""
        reason = f" ({self.run.refused})" if number == _INVALID_CONFIGURATION and self.run.refused else ""
        return error_text(number) + reason

    def _to_symbol(self, symbol: str, source: int, size: int, offset: int) -> int:
        return self._kernels.set_symbol(symbol.strip("& "), ctypes.string_at(source, size), offset)

    def _properties(self, address: int, size: int) -> int:
        data = properties_of(self._facts, "13")[:size]
        ctypes.memmove(address, data, len(data))
        return 0


_KEYWORD = 8
_INVALID_CONFIGURATION = 9
"""cudaErrorInvalidConfiguration."""


class _ExtensionFunction:
    """A function of an extension."""

    def __init__(self, extensions: Extensions, owner: ExtensionKernels, library: ctypes.CDLL, number: int) -> None:
        self._extensions, self._owner, self._library, self._number = extensions, owner, library, number
        self.__name__ = library.warpsan_name(number).decode()
        self._parameters: list[tuple[str, bool, Any]] = []
        for place in range(library.warpsan_parameters(number)):
            value = library.warpsan_parameter(number, place).contents
            default = extensions.handles.decode(value.items[0]) if value.count else None
            self._parameters.append(((value.text or b"").decode(), bool(value.count), default))

    def __call__(self, *arguments: Any, **given: Any) -> Any:
        values = list(arguments)
        for name, has_default, default in self._parameters[len(values) :]:
            if name not in given and not has_default:
                raise TypeError(f"{self.__name__} is called without its argument {name}")
            values.append(given.pop(name, default))
        if given:
            raise TypeError(f"{self.__name__} has no parameter {next(iter(given))}")
        return self._extensions.invoke(self._owner, self._library, self._number, values)
