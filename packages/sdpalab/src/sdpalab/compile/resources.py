"""SM resources of a compiled kernel, read from its cubin."""

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
        Per thread.
    stack_bytes : int
        Stack frame of a thread, including those of called functions.
    spill_bytes : int
        Bytes that the SASS stores to and loads from local memory, each instruction once, in all functions of the
        module. They include spills and local arrays that do not fit into registers; 0 means that there are neither.
    reported_spill_bytes : int
        Spill stores plus spill loads in the log of ptxas; for comparison only, not for the gate.
    static_shared_bytes, dynamic_shared_bytes : int
        Per block.
    constant_bytes : int
        All constant banks of the entry, parameters included, and those shared by the module's entries.
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
    """Read the resources of a build with the launch configuration of ``launch``.

    Registers, stack and shared memory come from ``cuobjdump --dump-resource-usage`` of the cubin; the other figures
    from its disassembly.

    Parameters
    ----------
    build : Build
    launch : Launch
        Source of block and dynamic shared memory; those of a Triton kernel come from its build.
    cache : Cache, optional
        Cache of the disassembly. Default: the user's.

    Raises
    ------
    UserError
        If the block size is impossible.
    MachineError
        If a tool is not installed, or its output lacks the entry.
    """
    launch = completed(launch, build)
    usage = _usage(build)
    code = analyse(build, cache)
    x, y, z = launch.block
    shared = max(0, usage["SHARED"] - _reserved_shared(build.arch))  # no reservation without shared memory
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
    """System-reserved shared memory in the cubin's figure: 1 KiB from sm_90 on, otherwise 0."""
    return RESERVED_SHARED if capability(arch) >= 90 else 0


def _reported_spills(build: Build) -> int:
    """Spill stores plus loads of the entry in the log of ptxas; 0 if the log has none."""
    own = build.log.partition(f"Function properties for {build.entry}\n")[2].partition("\n")[0]
    return sum(int(size) for size in re.findall(r"(\d+) bytes spill (?:stores|loads)", own))
