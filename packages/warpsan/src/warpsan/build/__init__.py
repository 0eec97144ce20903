"""CUDA C++, Triton and PTX to PTX and cubin, through a content-keyed cache."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpsan.build.builder import Build as Build
    from warpsan.build.builder import build as build
    from warpsan.build.cache import FOREIGN as FOREIGN
    from warpsan.build.cache import Cache as Cache
    from warpsan.build.cache import ForwardedCache as ForwardedCache
    from warpsan.build.cache import key_of as key_of
    from warpsan.build.constants import arguments_in as arguments_in
    from warpsan.build.headers import MOST_BYTES as MOST_BYTES
    from warpsan.build.headers import Header as Header
    from warpsan.build.headers import cuda_include_dirs as cuda_include_dirs
    from warpsan.build.headers import resolve_headers as resolve_headers
    from warpsan.build.headers import share_headers as share_headers
    from warpsan.build.host_code import SetAside as SetAside
    from warpsan.build.host_code import set_aside as set_aside
    from warpsan.build.host_launches import HostLaunch as HostLaunch
    from warpsan.build.host_launches import launch_of as launch_of
    from warpsan.build.host_launches import only_kernel as only_kernel
    from warpsan.build.kernel_parameters import KernelSignature as KernelSignature
    from warpsan.build.kernel_parameters import kernel_signatures as kernel_signatures
    from warpsan.build.nvrtc import BuildError as BuildError
    from warpsan.build.nvrtc import Compiled as Compiled
    from warpsan.build.nvrtc import check_arch as check_arch
    from warpsan.build.nvrtc import compile_program as compile_program
    from warpsan.build.nvrtc import compiler_version as compiler_version
    from warpsan.build.nvrtc import supported_archs as supported_archs
    from warpsan.build.residency import RESERVED_SHARED as RESERVED_SHARED
    from warpsan.build.residency import Occupancy as Occupancy
    from warpsan.build.residency import SmLimits as SmLimits
    from warpsan.build.residency import capability as capability
    from warpsan.build.residency import occupancy as occupancy
    from warpsan.build.residency import sm_limits as sm_limits
    from warpsan.build.source import DEFAULT_ARCH as DEFAULT_ARCH
    from warpsan.build.source import Module as Module
    from warpsan.build.source import PtxSource as PtxSource
    from warpsan.build.source import Source as Source
    from warpsan.build.source import TritonModule as TritonModule
    from warpsan.build.tools import run_tool as run_tool
    from warpsan.build.tools import tool_version as tool_version
    from warpsan.build.triton_compiler import TESTED as TESTED
    from warpsan.build.triton_compiler import assemble as assemble
    from warpsan.build.triton_compiler import ptxas_version as ptxas_version
    from warpsan.build.untrusted import Workshop as Workshop
    from warpsan.build.untrusted import foreign as foreign
    from warpsan.build.untrusted import workshop_of as workshop_of
else:
    from warpsan.exports import exports

    __getattr__, __all__ = exports(
        {
            "warpsan.build.builder": ["Build", "build"],
            "warpsan.build.cache": ["Cache", "FOREIGN", "ForwardedCache", "key_of"],
            "warpsan.build.constants": ["arguments_in"],
            "warpsan.build.untrusted": ["Workshop", "foreign", "workshop_of"],
            "warpsan.build.headers": ["Header", "MOST_BYTES", "cuda_include_dirs", "resolve_headers", "share_headers"],
            "warpsan.build.host_code": ["SetAside", "set_aside"],
            "warpsan.build.host_launches": ["HostLaunch", "launch_of", "only_kernel"],
            "warpsan.build.kernel_parameters": ["KernelSignature", "kernel_signatures"],
            "warpsan.build.nvrtc": [
                "BuildError",
                "Compiled",
                "check_arch",
                "compile_program",
                "compiler_version",
                "supported_archs",
            ],
            "warpsan.build.residency": [
                "Occupancy",
                "RESERVED_SHARED",
                "SmLimits",
                "capability",
                "occupancy",
                "sm_limits",
            ],
            "warpsan.build.source": ["DEFAULT_ARCH", "Module", "PtxSource", "Source", "TritonModule"],
            "warpsan.build.tools": ["run_tool", "tool_version"],
            "warpsan.build.triton_compiler": ["TESTED", "assemble", "ptxas_version"],
        }
    )
