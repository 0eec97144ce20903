"""The state of a launch in flight: the lanes of a chunk of CTAs, their registers, and the memory spaces.

Lanes are one vector over the whole chunk: lane = (warp_slot * n_cta + cta) * 32 + laneid. The same warp slot of all
CTAs is one contiguous slice, and a kernel whose CTAs run alike uses slices throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from warpsan.analysis.program import Program
from warpsan.engine.observer import Observer
from warpsan.engine.selection import WARP, Array, Indices, Mask
from warpsan.host.geometry import Dim3, Geometry
from warpsan.host.memory import POISON, Extent, Space
from warpsan.ptx.ir import Entry, Instruction, PtxModule
from warpsan.ptx.types import PtxType, unsigned

__all__ = ["AsyncUnit", "Machine", "Symbols", "frames_of", "source_of"]


@dataclass(frozen=True)
class Symbols:
    """Addresses of an entry's variables by name, as (space, address); and the resulting sizes.

    ``frames`` has, for each call cycle, the bytes of its local variables and the number of copies.
    """

    addresses: dict[str, tuple[str, int]]
    shared_bytes: int
    local_bytes: int
    frames: dict[frozenset[str], tuple[int, int]] = field(default_factory=dict)


class AsyncUnit:
    """Base of the units beside the lanes: barriers, asynchronous copies, matrix products in flight."""

    issued = 0
    """Number of operations put in flight that land by themselves."""

    def reset(self) -> None:
        """Reset for a new chunk of CTAs."""

    def land(self, number: int) -> None:
        """Complete an operation if it is still in flight, by the number of earlier operations."""

    def exited(self) -> None:
        """Threads have exited: lanes that waited only for them continue."""


class Machine:
    """Registers, special registers and memory of ``n_cta`` CTAs that run side by side.

    Parameters
    ----------
    module, entry, program : the parsed PTX, the entry in it, and its blocks
    geometry : Geometry
    n_cta : int
        CTAs that run at the same time.
    symbols : Symbols
    global_space : Space
        Shared by all chunks.
    params : bytes
        The parameter block.
    async_mode : {"late", "early"}
        The time at which asynchronous copies land.

    The CTAs of a cluster are next to each other in the chunk, by rank.
    Append to ``observers`` before anything is decoded.
    """

    def __init__(
        self,
        module: PtxModule,
        entry: Entry,
        program: Program,
        geometry: Geometry,
        n_cta: int,
        symbols: Symbols,
        global_space: Space,
        params: bytes,
        *,
        async_mode: str = "late",
    ) -> None:
        self.module, self.entry, self.program = module, entry, program
        self.geometry, self.symbols = geometry, symbols
        self.n_cta, self.params = n_cta, params
        self.observers: list[Observer] = []
        self.follows: Callable[[str, Indices], Mask] | None = None
        """The accesses of asynchronous operations to a space that observers receive, by their offsets; all of them
        if None."""
        self.descriptors: dict[int, bytes] = {}
        """Tensor maps of global memory at the time of their read, by their place; other maps are in memory."""
        self.homes: dict[int, Extent] = {}
        """The buffer that an access must stay in, by its pc, if it is known (the ``provenance`` check)."""
        self.async_mode = async_mode
        self.cluster_size = geometry.cluster_size
        self.warps = geometry.warps
        self.lanes = self.warps * n_cta * WARP
        lane = np.arange(self.lanes)
        self.laneid: Indices = lane % WARP
        self.cta: Indices = lane // WARP % n_cta
        self.thread: Indices = lane // (WARP * n_cta) * WARP + self.laneid
        """Linear thread index within the CTA."""
        self.shared_stride = self._stride(symbols.shared_bytes)
        """Bytes between the shared memory of two CTAs of the chunk."""
        self.local_stride = self._stride(symbols.local_bytes)
        """Bytes between the local memory of two lanes."""
        self.spaces = {
            "global": global_space,
            "shared": Space("shared", self.shared_stride * n_cta, symbols.shared_bytes),
            "local": Space("local", self.local_stride * self.lanes, symbols.local_bytes),
        }
        self.bases: dict[str, Indices | None] = {
            "global": None,
            "shared": self.cta * self.shared_stride,
            "local": lane * self.local_stride,
        }
        self.live = np.zeros(self.lanes, dtype=np.bool_)
        self.cta_ids: Indices = np.zeros(n_cta, dtype=np.int64)
        self._files: dict[int, Array] = {}
        self._rows: dict[str, Array] = {}
        self._special: dict[str, Array] = {}
        self.on_reset: list[Callable[[], None]] = []
        self.units: dict[str, AsyncUnit] = {}
        """State of barriers and asynchronous units, by name, made by the instructions that use them."""
        self._allocate_registers()

    @staticmethod
    def _stride(size: int) -> int:
        """Distance between the memory of two CTAs or lanes, aligned to the widest access."""
        return -(-size // 16) * 16

    def _allocate_registers(self) -> None:
        """Files of rows by width, in the program's layout."""
        for bits, rows in self.program.files.items():
            self._files[bits] = np.empty((rows, self.lanes), np.dtype(np.bool_) if bits == 1 else unsigned(bits))
        for name, (bits, row) in self.program.rows.items():
            self._rows[name] = self._files[bits][row]

    def reset(self, cta_ids: Indices) -> None:
        """Prepare to run these CTAs: poisoned registers and shared memory, all threads alive."""
        self.cta_ids[:] = cta_ids
        for bits, file in self._files.items():
            file.fill(False if bits == 1 else (1 << bits) - 1)
        for name in ("shared", "local"):
            self.spaces[name].data.fill(POISON)
        self.live[:] = self.thread < self.geometry.threads
        for name, values in self._special.items():
            values[:] = self._special_values(name)
        for unit in self.units.values():
            unit.reset()
        for action in self.on_reset:
            action()

    def address_of(self, name: str, dtype: np.dtype[np.generic]) -> Array | None:
        """The address of a variable in its own space, one value a lane; None if there is no such variable."""
        if name not in self.symbols.addresses:
            return None
        return np.broadcast_to(np.asarray(self.symbols.addresses[name][1]).astype(dtype), self.lanes)

    # ---- registers --------------------------------------------------------------------------------------------------

    def row(self, name: str) -> tuple[Array, PtxType] | None:
        """The raw values of a declared register, one a lane, and its declared type."""
        values = self._rows.get(name)
        return None if values is None else (values, self.entry.registers[name])

    def special(self, name: str) -> Array | None:
        """A special register's values, one a lane; None if it is not modelled."""
        if name not in self._special:
            values = self._special_values(name)
            if values is None:
                return None
            self._special[name] = np.broadcast_to(values, self.lanes).copy()
        return self._special[name]

    def _special_values(self, name: str) -> Array | None:
        """PTX ISA, "Special Registers"."""
        base, _, axis = name.partition(".")
        shape = self.geometry.cluster
        clusters = tuple(-(-many // size) for many, size in zip(self.geometry.grid, shape, strict=True))
        dims = {
            "%ntid": self.geometry.block,
            "%nctaid": self.geometry.grid,
            "%cluster_nctaid": shape,
            "%nclusterid": clusters,
        }
        if axis in ("x", "y", "z"):
            k = "xyz".index(axis)
            if base in dims:
                return np.array(dims[base][k], dtype=np.uint32)
            if base == "%tid":
                return _axis(self.thread, self.geometry.block, k)
            if base == "%ctaid":
                return _axis(self.cta_ids[self.cta], self.geometry.grid, k)
            if base == "%cluster_ctaid":
                return _axis(self.cta % self.cluster_size, shape, k)
            if base == "%clusterid":
                cluster: Array = _axis(self.cta_ids[self.cta], self.geometry.grid, k) // np.uint32(shape[k])
                return cluster
            return None
        bit = np.uint32(1) << self.laneid.astype(np.uint32)
        values: dict[str, Callable[[], Array]] = {
            "%laneid": lambda: self.laneid.astype(np.uint32),
            "%warpid": lambda: (self.thread // WARP).astype(np.uint32),
            "%nwarpid": lambda: np.array(self.warps, dtype=np.uint32),
            "%lanemask_eq": lambda: bit,
            "%lanemask_lt": lambda: bit - np.uint32(1),
            "%lanemask_le": lambda: bit | (bit - np.uint32(1)),
            "%lanemask_ge": lambda: ~(bit - np.uint32(1)),
            "%lanemask_gt": lambda: ~(bit | (bit - np.uint32(1))),
            "%dynamic_smem_size": lambda: np.array(self.geometry.dynamic_smem, dtype=np.uint32),
            "%cluster_ctarank": lambda: (self.cta % self.cluster_size).astype(np.uint32),
            "%cluster_nctarank": lambda: np.array(self.cluster_size, dtype=np.uint32),
            "%is_explicit_cluster": lambda: np.array(self.geometry.explicit_cluster),
            "%total_smem_size": lambda: np.array(self.symbols.shared_bytes, dtype=np.uint32),
        }
        return values[name]() if name in values else None

    # ---- what messages need -----------------------------------------------------------------------------------------

    def where(self, lane: int) -> tuple[Dim3, Dim3]:
        """(block index, thread index) of a lane, as CUDA writes them."""
        x, y, z = (int(_axis(self.thread[lane], self.geometry.block, k)) for k in range(3))
        return self.block_of(int(self.cta_ids[self.cta[lane]])), (x, y, z)

    def block_of(self, linear: int) -> Dim3:
        """The index of the block with that linear index."""
        x, y, z = (int(_axis(np.int64(linear), self.geometry.grid, k)) for k in range(3))
        return x, y, z

    def warp_of(self, lane: int) -> int:
        """The number in its block of a lane's warp."""
        return int(self.thread[lane]) // WARP

    def source(self, instruction: Instruction) -> str:
        """``flash.cu:42`` from the line information, or an empty string."""
        return source_of(self.module, instruction)

    def frames(self, instruction: Instruction) -> tuple[str, ...]:
        """See :func:`frames_of`."""
        return frames_of(self.module, instruction)


def source_of(module: PtxModule, instruction: Instruction) -> str:
    """``flash.cu:42`` from the line information, or an empty string."""
    name = _file_name(module, instruction.loc.file) if instruction.loc else ""
    return f"{name}:{instruction.loc.line}" if instruction.loc and name else ""


def frames_of(module: PtxModule, instruction: Instruction) -> tuple[str, ...]:
    """``flash.cu:42:9`` of the instruction, and of the calls through which it was inlined, outwards."""
    chain = instruction.loc.chain if instruction.loc else ()
    names = [(_file_name(module, place.file), place) for place in chain]
    return tuple(f"{name}:{place.line}:{place.column}" for name, place in names if name)


def _file_name(module: PtxModule, number: int) -> str:
    """The name of a source file without its folder; empty if there is no such number."""
    return module.files.get(number, "").replace("\\", "/").rsplit("/", 1)[-1]


def _axis(linear: Array | np.int64, dims: Dim3, k: int) -> Array:
    """Coordinate ``k`` of linear indices with x fastest."""
    below = (1, dims[0], dims[0] * dims[1])[k]
    return np.asarray(linear // below % dims[k], dtype=np.uint32)
