"""Source and configuration to PTX and cubin: compiler, content-keyed cache, resources, occupancy, static gate."""

from sdpalab.compile.builder import DEFAULT_ARCH, Build, build
from sdpalab.compile.cache import Cache
from sdpalab.compile.gate import GateResult, Rule, check
from sdpalab.compile.headers import cuda_include_dirs
from sdpalab.compile.host_code import SetAside, set_aside
from sdpalab.compile.kernel_build import completed
from sdpalab.compile.nvrtc import BuildError, check_arch, compiler_version, supported_archs
from sdpalab.compile.occupancy import Occupancy, SmLimits, occupancy, sm_limits
from sdpalab.compile.resources import Resources, resources
from sdpalab.compile.sass import disassemble

__all__ = [
    "DEFAULT_ARCH",
    "Build",
    "BuildError",
    "Cache",
    "GateResult",
    "Occupancy",
    "Resources",
    "Rule",
    "SetAside",
    "SmLimits",
    "build",
    "check",
    "check_arch",
    "compiler_version",
    "completed",
    "cuda_include_dirs",
    "disassemble",
    "occupancy",
    "resources",
    "set_aside",
    "sm_limits",
    "supported_archs",
]
