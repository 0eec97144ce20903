"""Blackwell kernels that nobody here wrote, compiled by their own wheels and launched on the simulator.

    python -m venv ENV && ENV/bin/pip install flash-attn-4==VERSION nvidia-cutlass-dsl==VERSION
    python tests/external/blackwell_gallery.py DIR --compile ENV/bin/python --cutlass CUTLASS  # writes the PTX into DIR
    python tests/external/blackwell_gallery.py DIR                                             # launches it

``blackwell_gallery.json`` has the versions, the kernels, and the hazards that are expected of each with their cause.
CUTLASS is a checkout of NVIDIA/cutlass 4.x. The parameters of the entries are deduced from their PTX: shapes, tensor
maps, the scale, divisors with their magic numbers.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import warpsan
from warpsan import TensorMap

HERE = Path(__file__).resolve().parent
GALLERY: dict[str, Any] = json.loads((HERE / "blackwell_gallery.json").read_text())
KERNELS: list[dict[str, Any]] = GALLERY["kernels"]
SMEM = 227 * 1024
TOLERANCE = 1e-3
"""Largest error over the largest result: outputs are FP16, sums FP32."""


def compile_all(folder: Path, python: str, cutlass: Path) -> None:
    """Write the PTX of every kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    for kernel in (each for each in KERNELS if "compile" in each):
        tutorial = str((cutlass / GALLERY["tutorial"]).absolute())
        words = [word.replace("{tutorial}", tutorial) for word in kernel["compile"]]
        out = folder / f"{kernel['name']}.ptx"
        command = [python, str(HERE / "programs/cute_kernels.py"), str(out), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(f"{kernel['name']}: {'compiled' if out.is_file() else done.stderr[-500:]}", flush=True)


def divisor(d: int) -> bytes:
    """A divisor with its multiplier and shifts (Granlund and Montgomery, 1994), as CuTe's FastDivmod passes it."""
    bits = max(0, (d - 1).bit_length())
    return struct.pack("<IIBBxx", d, (((1 << bits) - d) << 32) // d + 1, min(bits, 1), max(bits - 1, 0))


def attention_map(x: np.ndarray) -> TensorMap:
    """The map of a [batch, seq, heads, head_dim] tensor, in boxes of 128 rows and 64 columns of a head."""
    batch, seq, heads, dim = x.shape
    s = x.strides
    shape, strides = (batch, heads, seq, dim), (s[0], s[2], s[1], s[3])
    return TensorMap(x, box=(1, 1, 128, 64), swizzle="128B", shape=shape, strides=strides)


Outcome = tuple[float, set[str]]
"""Largest error over the largest result, and the kinds of the hazards."""


def attention_case(seq: int, keys: int, heads: int, dim: int) -> tuple[np.ndarray, ...]:
    """Q, K and V in FP16, [1, seq, heads, dim], and the result in float64."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, heads, dim)).astype(np.float16) for n in (seq, keys, keys))
    scores = np.einsum("bqhd,bkhd->bhqk", q.astype(float), k.astype(float)) / np.sqrt(dim)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v.astype(float))
    return q, k, v, want


def attention(kernel: dict[str, Any], text: str, entry: str, shape: list[int], mode: str) -> Outcome:
    """A launch of FlashAttention-4 at [seq_q, seq_k]."""
    (seq, keys), (dim, heads) = shape, map(int, kernel["compile"][1:3])
    q, k, v, want = attention_case(seq, keys, heads, dim)
    out = np.zeros_like(q)
    tiles = -(-seq // 256)
    blocks = tiles * heads
    shapes = [struct.pack("<4i", *each, heads, 1) for each in ((seq, dim), (keys, dim), (dim, keys), (seq, dim))]
    scale = np.float32(np.log2(np.e) / np.sqrt(dim))
    maps = [attention_map(x) for x in (q, k, v, out)]
    arguments = [*shapes, *maps, scale, bytes(32), bytes(32), divisor(tiles), 0, divisor(heads), 0, blocks, 0]
    report = warpsan.launch(text, entry, blocks, 512, arguments, dynamic_smem=SMEM, async_mode=mode)
    return abs(out - want).max() / abs(want).max(), {hazard.kind for hazard in report.hazards}


def gemm(kernel: dict[str, Any], text: str, entry: str, mode: str) -> Outcome:
    """A launch of a GEMM of the tutorial: one tile of C = A B^T, of one CTA or a pair."""
    m, n, k = map(int, kernel["compile"][2:])
    ctas = kernel.get("cluster", 1)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    want, c = a.astype(float) @ b.astype(float).T, np.zeros((m, n), np.float16)
    maps = [TensorMap(x, box=(len(x) // ctas, 64), swizzle="128B") for x in (a, b)]
    stores = "cp.async.bulk.tensor.2d.global" in text
    target = TensorMap(c, box=(128, 32), swizzle="64B") if stores else c
    product = int(re.findall(r"_param_0\[(\d+)\]", text)[0])
    arguments = [bytes(product), *maps, target]  # zeros: nothing negated
    options: dict[str, Any] = {"cluster": (ctas, 1, 1), "dynamic_smem": SMEM, "async_mode": mode}
    report = warpsan.launch(text, entry, ctas, kernel["threads"], arguments, **options)
    return abs(c - want).max() / abs(want).max(), {hazard.kind for hazard in report.hazards}


def triton_kernel(kernel: dict[str, Any], shape: list[int], mode: str) -> Outcome:
    """A launch of Triton's code: of a product at [M, K], or of one head of attention at [seq_q, seq_k]."""
    sys.path.insert(0, str(HERE / "programs"))
    import triton_blackwell

    text, smem = triton_blackwell.compiled(kernel["triton"])
    inputs: list[Any]
    if kernel["triton"] == "attention":
        q, k, v, want = attention_case(*shape, 1, 64)
        inputs, more = [q, k, v], [shape[1], np.float32(np.log2(np.e) / 8)]
    else:
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal(each).astype(np.float16) for each in (shape, (shape[1], 128))]
        want, more = inputs[0].astype(float) @ inputs[1].astype(float), [shape[1]]
    out = np.zeros(want.shape, np.float16)
    arguments = [*inputs, out, *more, np.zeros(16, np.uint8), np.zeros(16, np.uint8)]  # two scratch buffers
    options: dict[str, Any] = {"dynamic_smem": smem, "async_mode": mode}
    report = warpsan.launch(text, kernel["triton"], shape[0] // 128, 128, arguments, **options)
    return abs(out - want).max() / abs(want).max(), {hazard.kind for hazard in report.hazards}


def why_not(kernel: dict[str, Any], folder: Path) -> str:
    """Why a kernel cannot be launched here; empty if it can."""
    if "triton" in kernel:
        return "" if find_spec("triton") else "Triton is not installed"
    if (folder / f"{kernel['name']}.ptx").is_file():
        return ""
    return f"{kernel['name']}.ptx not in {folder}: blackwell_gallery.py {folder} --compile PYTHON"


def outcomes(kernel: dict[str, Any], folder: Path) -> Iterator[tuple[str, Outcome]]:
    """The outcome of each launch of a kernel, with the launch in words."""
    text = "" if "triton" in kernel else (folder / f"{kernel['name']}.ptx").read_text()
    entry = re.findall(r"\.entry (\w+)|$", text)[0]
    for mode in ("late", "early"):
        for shape in kernel.get("shapes", [[]]):
            if "triton" in kernel:
                launched = triton_kernel(kernel, shape, mode)
            else:
                launched = attention(kernel, text, entry, shape, mode) if shape else gemm(kernel, text, entry, mode)
            yield f"{'x'.join(map(str, shape)) or 'one tile'}, {mode}", launched


def main() -> int:
    """Compile or launch the kernels; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the PTX")
    parser.add_argument("--compile", metavar="PYTHON", help="Python of an environment with the wheels")
    parser.add_argument("--cutlass", type=Path, default=Path("cutlass"), help="a checkout of CUTLASS")
    given = parser.parse_args()
    if given.compile:
        compile_all(given.folder, given.compile, given.cutlass)
        return 0
    bad = 0
    for kernel in KERNELS:
        if reason := why_not(kernel, given.folder):
            print(f"{kernel['name']}: skipped: {reason}")
            continue
        for launch, (error, hazards) in outcomes(kernel, given.folder):
            right = error < TOLERANCE and hazards == set(kernel.get("hazards", []))
            bad += not right
            print(f"{kernel['name']} ({launch}): {'as expected' if right else 'WRONG'}: {error:.1e}, {sorted(hazards)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
