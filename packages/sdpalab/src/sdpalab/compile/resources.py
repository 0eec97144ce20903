"""What a compiled kernel uses of an SM, read from its cubin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from sdpalab.compile.kernel_build import completed
from sdpalab.compile.sass import analyse, tool_output
from sdpalab.errors import MachineError
from sdpalab.kernels.plan import Launch
from sdpalab.record import RECORD, JsonRecord
from warpsan.build import RESERVED_SHARED, Build, Cache, capability, occupancy

__all__ = ["Resources", "resources"]


Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, config=RECORD)
class Resources(JsonRecord):
    """Resources of one launch of one build.

    Attributes
    ----------
    arch : str
    registers : int
        A thread's.
    stack_bytes : int
        A thread's stack frame, that of the functions it calls included.
    spill_bytes : int
        Bytes that the SASS stores to and loads from local memory, each instruction once, in all functions of the
        module. Spills are in it, and so are local arrays that did not fit into registers: it is 0 only if there is
        neither.
    reported_spill_bytes : int
        Spill stores plus spill loads as ptxas counted them in the log; for comparison, never for the gate.
    static_shared_bytes, dynamic_shared_bytes : int
        A block's.
    constant_bytes : int
        All constant banks of the entry, its parameters included, and those that the module's entries share.
    threads_per_block : int
    blocks_per_sm, warps_per_sm : int
        Theoretical occupancy; ``limiter`` is the resource that limits the blocks.
    sass, main_loop : mapping of str to int
        Instructions by class, of the whole kernel and of its main loop.
    tensor_share : float or None
        Tensor-core instructions' share of the main loop.
    """

    arch: str
    registers: Count
    stack_bytes: Count
    spill_bytes: Count
    reported_spill_bytes: Count
    static_shared_bytes: Count
    dynamic_shared_bytes: Count
    constant_bytes: Count
    threads_per_block: Annotated[int, Field(ge=1)]
    blocks_per_sm: Count
    warps_per_sm: Count
    limiter: str
    sass: Mapping[str, int]
    main_loop: Mapping[str, int]
    tensor_share: Annotated[float, Field(ge=0, le=1)] | None

    @property
    def shared_bytes(self) -> int:
        """Static and dynamic shared memory of a block, bytes."""
        return self.static_shared_bytes + self.dynamic_shared_bytes


def resources(build: Build, launch: Launch, cache: Cache | None = None) -> Resources:
    """Read the resources of a build that is launched as ``launch`` says.

    Registers, stack and shared memory are what ``cuobjdump --dump-resource-usage`` finds in the cubin; the rest comes
    from its disassembly.

    Parameters
    ----------
    build : Build
    launch : Launch
        Its block and its dynamic shared memory count; those of a Triton kernel come from its build.
    cache : Cache, optional
        Where the disassembly is kept. Default: the user's.

    Raises
    ------
    UserError
        If a block of that size cannot be.
    MachineError
        If a tool is not installed, or its output does not hold the entry.
    """
    launch = completed(launch, build)
    usage = _usage(build)
    code = analyse(build, cache)
    x, y, z = launch.block
    shared = max(0, usage["SHARED"] - _reserved_shared(build.arch))  # nothing is reserved where nothing is used
    resident = occupancy(build.arch, x * y * z, usage["REG"], shared + launch.dynamic_smem)
    return Resources(
        arch=build.arch,
        registers=usage["REG"],
        stack_bytes=usage["STACK"] + usage["LOCAL"],
        spill_bytes=code.local_bytes,
        reported_spill_bytes=_reported_spills(build),
        static_shared_bytes=shared,
        dynamic_shared_bytes=launch.dynamic_smem,
        constant_bytes=sum(size for name, size in usage.items() if name.startswith("CONSTANT")),
        threads_per_block=x * y * z,
        blocks_per_sm=resident.blocks_per_sm,
        warps_per_sm=resident.warps_per_sm,
        limiter=resident.limiter,
        sass=code.sass,
        main_loop=code.main_loop,
        tensor_share=code.tensor_share,
    )


def _usage(build: Build) -> dict[str, int]:
    text = tool_output(build, "cuobjdump", ("--dump-resource-usage",))
    usage: dict[str, int] = {}
    for heading in ("Common", f"Function {build.entry}"):
        match = re.search(rf"^\s*{re.escape(heading)}:\s*\n(.*)$", text, re.MULTILINE)
        figures = re.findall(r"([A-Z]+(?:\[\d+\])?):(\d+)", match[1] if match else "")
        usage |= {name: int(size) for name, size in figures}
    missing = {"REG", "STACK", "SHARED", "LOCAL"} - usage.keys()
    if missing:
        raise MachineError(f"cuobjdump does not say {', '.join(sorted(missing))} of {build.entry}")
    return usage


def _reserved_shared(arch: str) -> int:
    """Shared memory in the cubin's figure that is reserved by the system: 1 KiB from sm_90 on, else none."""
    return RESERVED_SHARED if capability(arch) >= 90 else 0


def _reported_spills(build: Build) -> int:
    """Spill stores plus loads of the entry as ptxas reports them; 0 if it reports nothing."""
    own = build.log.partition(f"Function properties for {build.entry}\n")[2].partition("\n")[0]
    return sum(int(size) for size in re.findall(r"(\d+) bytes spill (?:stores|loads)", own))
