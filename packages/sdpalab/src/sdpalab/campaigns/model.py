"""Modelled times of machine code that others have timed: FlashAttention-2, from a wheel, against published tables.

The wheel of vllm-flash-attn 2.6.2 holds the cubins of FlashAttention-2 for sm_80 and sm_90 (``pip download
vllm-flash-attn==2.6.2 --no-deps``); nothing of it is kept but its digest. There is no PTX to simulate: the paths follow
from the FLOPs of a warp's matrix instructions, which is arithmetic. Nothing here is run on a GPU.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.compile.sass import SassInstruction, parse
from sdpalab.errors import UserError
from sdpalab.model.matching import role_by_flops
from sdpalab.model.operations import Memory
from sdpalab.model.pipes import pipes_of
from sdpalab.model.rank import kendall_tau, top_k_regret
from sdpalab.model.schedule import Schedule
from warpsan.build import occupancy, run_tool
from warpsan.gpus import Gpu, gpu_named

__all__ = ["PACKAGES", "cubins", "run"]

PACKAGES = ("numpy", "nvidia-cuda-nvdisasm")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS, HIDDEN = 16384, 2048
"""Of the published tables: batch times length, and heads times head_dim."""
H100_TFLOPS: Mapping[tuple[int, bool], tuple[int, ...]] = {
    (64, False): (282, 306, 318, 321, 322, 324),
    (128, False): (309, 350, 362, 368, 370, 370),
    (256, False): (275, 313, 321, 323, 324, 326),
    (64, True): (180, 229, 262, 284, 295, 299),
    (128, True): (191, 260, 298, 319, 333, 335),
    (256, True): (208, 251, 278, 293, 297, 298),
}
"""FlashAttention-2 forward on an H100 SXM by head_dim, causal and length."""
SOURCES = {
    "H100 SXM": "Shah et al., FlashAttention-3 (2024), figure 5: FlashAttention-2 forward, FP16",
    "L20": "LeetCUDA cb6a049: FlashAttention-2 forward, FP16, D=64, N=8192: 100 to 109 TFLOPS",
}
L20 = Gpu(
    *("L20", "sm_89", 92, 2520, 119.5, 239.0, 864, 96, 16, 64, None, ("l2_bytes_per_clk_sm",)),
    source="NVIDIA L20 datasheet: 119.5 TFLOPS FP16 dense, 864 GB/s, 92 SM, 2.52 GHz, 96 MB of L2",
)
EM_CUDA = 190


@dataclass(frozen=True)
class _Tile:
    """Rows and columns of scores that a CTA computes at a time, and its warps."""

    m: int
    n: int
    warps: int


@dataclass(frozen=True)
class _PublishedTime:
    """One published time; ``arch`` is what the machine code is for."""

    gpu: Gpu
    arch: str
    head_dim: int
    causal: bool
    length: int
    batch_heads: int
    tflops: float

    @property
    def tile(self) -> _Tile:
        """As FlashAttention-2 2.6 chooses it without dropout, for even lengths."""
        wide = _Tile(64, 64, 4) if self.arch == "sm_90" else _Tile(128, 64, 8)
        return {64: _Tile(128, 128, 4), 128: _Tile(128, 64, 4), 256: wide}[self.head_dim]

    @property
    def symbol(self) -> str:
        """What the kernel's mangled name begins with: traits, then dropout, causal, local, alibi, even MN and K."""
        traits = f"ILi{self.head_dim}ELi{self.tile.m}ELi{self.tile.n}ELi{self.tile.warps}E"
        flags = "".join(f"ELb{int(flag)}" for flag in (False, self.causal, False, False, self.head_dim <= 128, True))
        return (
            f"_Z16flash_fwd_kernelI23Flash_fwd_kernel_traits{traits}Lb0ELb0EN7cutlass6half_tE19Flash_kernel_traits"
            f"{traits}S2_E{flags}ELb0ELb0E"
        )

    @property
    def flops(self) -> float:
        """As the published tables count them: half of them if causal."""
        return 4 * self.batch_heads * self.length**2 * self.head_dim / (2 if self.causal else 1)


def _cases() -> list[_PublishedTime]:
    h100 = gpu_named("H100 SXM")
    cases = [
        _PublishedTime(h100, "sm_90", dim, causal, length, TOKENS // length * HIDDEN // dim, rate)
        for (dim, causal), rates in H100_TFLOPS.items()
        for length, rate in zip(LENGTHS, rates, strict=True)
    ]
    return [*cases, _PublishedTime(L20, "sm_80", 64, False, 8192, 8, 104.5)]


def cubins(content: bytes) -> Iterator[bytes]:
    """The cubins in a shared library, uncompressed ones only.

    Source: the System V ABI's ELF header, 64 bits; machine 190 is CUDA.
    """
    for magic in re.finditer(rb"\x7fELF\x02\x01", content):
        start = magic.start()
        header = content[start : start + 64]
        if len(header) < 64 or struct.unpack_from("<H", header, 18)[0] != EM_CUDA:
            continue
        programs, sections = struct.unpack_from("<QQ", header, 32)
        program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", header, 54)
        end = max(programs + program_size * program_count, sections + section_size * section_count)
        yield content[start : start + end]


def _codes(
    library: bytes, cases: list[_PublishedTime]
) -> dict[tuple[str, str], tuple[tuple[SassInstruction, ...], int]]:
    """Machine code and registers of each kernel that a case needs, by its architecture and symbol."""
    needed = {(case.arch, case.symbol) for case in cases}
    codes = {}
    for cubin in cubins(library):
        arch = f"sm_{cubin[48]}"
        symbols = [symbol for of, symbol in needed if of == arch and b".text." + symbol.encode() in cubin]
        if not symbols:
            continue
        text = run_tool("nvdisasm", ("-c", "-hex"), cubin)
        for name, code in parse(text).items():
            for symbol in symbols:
                if name.startswith(symbol):
                    codes[arch, symbol] = code, _registers(code)
    missing = [symbol for key in needed - codes.keys() for symbol in key[1:]]
    if missing:
        raise UserError(f"the wheel has no kernel whose name begins with {missing[0]}: take vllm-flash-attn 2.6.2")
    return codes


def _registers(code: tuple[SassInstruction, ...]) -> int:
    """Of a thread, as many as the code names: no tool of CUDA 13 reads that figure from cubins of CUDA 12.1."""
    named = (int(number) for one in code for number in re.findall(r"\bR(\d+)\b", one.operands))
    return min(255, ceil((max(named) + 4) / 8) * 8)  # the last operand may be the first of four


def _modelled_us(case: _PublishedTime, code: tuple[SassInstruction, ...], registers: int) -> float:
    tile = case.tile
    rows = range(1, case.length // tile.m + 1)
    tiles = [ceil(row * tile.m / tile.n) if case.causal else case.length // tile.n for row in rows]
    flops = 4 * tile.m * tile.n * case.head_dim * sum(tiles) / len(tiles) / tile.warps
    pipes = pipes_of(case.gpu)
    role = role_by_flops(code, tile.warps, flops)
    schedule = Schedule(code, [role], Memory(), pipes)
    shared = (tile.m + 2 * tile.n) * case.head_dim * 2
    blocks = occupancy(case.gpu.arch, 32 * tile.warps, registers, shared).blocks_per_sm
    return schedule.last_end(tiles * case.batch_heads, blocks, case.gpu.sms) / case.gpu.clock_mhz + pipes.launch_us


def run(wheel: Path, say: Say) -> CampaignResult:
    """Model every published case, with a line for each.

    Raises
    ------
    UserError
        If the file is no wheel, or has not the kernels.
    MachineError
        If there is no disassembler.
    """
    try:
        with zipfile.ZipFile(wheel) as opened:
            libraries = [name for name in opened.namelist() if name.endswith(".so")]
            library = b"".join(opened.read(name) for name in libraries)
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel} is no wheel that can be read: {error}") from None
    cases = _cases()
    codes = _codes(library, cases)
    entries = []
    for case in cases:
        us = _modelled_us(case, *codes[case.arch, case.symbol])
        tflops = case.flops / us / 1e6
        shape = {"head_dim": case.head_dim, "causal": case.causal, "length": case.length}
        off = tflops / case.tflops - 1
        entries.append({"gpu": case.gpu.name, **shape, "published": case.tflops, "modelled": tflops, "error": off})
        label = f"D={case.head_dim} S={case.length}{' causal' if case.causal else ''}"
        say(f"{case.gpu.name:8} {label:22} {tflops:6.0f} TFLOPS modelled, {case.tflops:g} published, {off:+.0%}")
    groups = {
        "all": entries,
        "not causal": [each for each in entries if not each["causal"]],
        "causal": [each for each in entries if each["causal"]],
    }
    summary = {name: _summary(group) for name, group in groups.items()}
    for name, figures in summary.items():
        say(
            f"{name:12} median error {figures['median_error']:.1%}, worst {figures['worst_error']:.1%}, "
            f"tau {figures['tau']:.2f}"
        )
    content = {
        "kind": "modelled, against published times",
        "wheel": {"name": wheel.name, "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()},
        "sources": SOURCES,
        "summary": summary,
        "cases": entries,
    }
    return CampaignResult(content, True, f"{len(entries)} published times modelled")


def _summary(entries: list[dict[str, Any]]) -> dict[str, float]:
    """Errors relative to what is published; tau and regret of the order of rates on the H100."""
    errors = [abs(each["error"]) for each in entries]
    pairs = [(each["modelled"], each["published"]) for each in entries if each["gpu"] == "H100 SXM"]
    times = [(1 / modelled, 1 / published) for modelled, published in pairs]
    return {
        "median_error": median(errors),
        "worst_error": max(errors),
        "tau": kendall_tau([modelled for modelled, _ in pairs], [published for _, published in pairs]),
        "top_3_regret": top_k_regret([modelled for modelled, _ in times], [published for _, published in times], 3),
    }
