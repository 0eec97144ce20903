"""Occupancy against NVIDIA's own calculator (cuda_occupancy.h, compiled on the spot) and by hand."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from warpsan.build.headers import cuda_include_dirs
from warpsan.build.residency import SM_LIMITS, occupancy, sm_limits
from warpsan.errors import UserError

REGISTERS = (0, 16, 24, 32, 40, 63, 64, 96, 120, 128, 168, 200, 255)
THREADS = (32, 64, 96, 128, 160, 256, 384, 512, 768, 1024)
SHARED = (0, 1, 1024, 12_345, 30_720, 48 * 1024, 65_536, 99 * 1024, 99 * 1024 + 1, 163 * 1024, 227 * 1024)

CALCULATOR = r"""
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
    int cc, warps, shared, optin, threads, registers, bytes;
    while (std::scanf("%d %d %d %d %d %d %d", &cc, &warps, &shared, &optin, &threads, &registers, &bytes) == 7) {
        cudaOccDeviceProp device;
        device.computeMajor = cc / 10;
        device.computeMinor = cc % 10;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = warps * 32;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = shared;
        device.numSms = 1;
        device.sharedMemPerBlockOptin = optin;
        device.reservedSharedMemPerBlock = 1024;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024;
        kernel.numRegs = registers;
        kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = bytes;
        kernel.numBlockBarriers = 0;
        cudaOccDeviceState state;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, bytes);
        std::printf("%d\n", status ? -1 : result.activeBlocksPerMultiprocessor);
    }
}
"""


def test_agrees_with_nvidias_calculator(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to compile cuda_occupancy.h")
    source, program = tmp_path / "calculator.cpp", tmp_path / "calculator"
    source.write_text(CALCULATOR)
    subprocess.run([compiler, f"-I{cuda_include_dirs()[0]}", str(source), "-o", str(program)], check=True)
    cases = list(itertools.product(SM_LIMITS, THREADS, REGISTERS, SHARED))
    lines = [
        f"{cc} {sm.warps} {sm.shared_bytes} {sm.shared_bytes_per_block} {threads} {registers} {shared}"
        for cc, threads, registers, shared in cases
        for sm in [SM_LIMITS[cc]]
    ]
    done = subprocess.run([str(program)], input="\n".join(lines), capture_output=True, text=True, check=True)
    expected = [int(line) for line in done.stdout.split()]
    assert len(expected) == len(cases)
    blocks = [
        occupancy(f"sm_{cc}", threads, registers, shared).blocks_per_sm for cc, threads, registers, shared in cases
    ]
    wrong = [(case, one, other) for case, one, other in zip(cases, blocks, expected, strict=True) if one != other]
    assert not wrong, wrong[:5]
    assert {0, 1, 2, 5, 16, 24, 32} <= set(expected)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limiter"),
    [
        (128, 128, 32 * 1024, 3, "shared memory"),  # 3 * (32 + 1) KiB fill 99 of the L4's 100 KiB
        (128, 128, 16 * 1024, 4, "registers"),  # 128 registers * 128 threads: a quarter of the file
        (1024, 32, 0, 1, "warps"),  # 48 warps hold one block of 32
        (32, 16, 0, 24, "blocks"),
        (128, 64, 100 * 1024, 0, "shared memory"),
    ],
)
def test_limiter_on_an_l4(threads: int, registers: int, shared: int, blocks: int, limiter: str) -> None:
    resident = occupancy("sm_89", threads, registers, shared)
    assert (resident.blocks_per_sm, resident.limiter) == (blocks, limiter)
    assert resident.warps_per_sm == blocks * threads // 32
    assert resident.fraction == resident.warps_per_sm / 48


def test_suffixed_architectures_share_their_limits() -> None:
    assert sm_limits("sm_90a") == sm_limits("sm_90")
    assert sm_limits("sm_90").shared_bytes_per_block == 227 * 1024


@pytest.mark.parametrize(("arch", "threads"), [("sm_75", 128), ("sm_89b", 128), ("sm_89", 0), ("sm_89", 1025)])
def test_what_cannot_be_is_refused(arch: str, threads: int) -> None:
    with pytest.raises(UserError, match=rf"{arch}|{threads}"):
        occupancy(arch, threads, 32, 0)
