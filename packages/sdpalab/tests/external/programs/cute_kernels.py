"""PTX of CuTe DSL kernels for sm_100a, compiled without a GPU: cute_kernels.py OUT.ptx fa4 HEAD_DIM HEADS KV_HEADS SEQ,
or cute_kernels.py OUT.ptx gemm FILE M N K.

Needs an environment with ``flash-attn-4`` and ``nvidia-cutlass-dsl``. FlashAttention-4 compiles on fake tensors; the
multiprocessors that it asks a GPU for are the 148 of a B200.
"""

import importlib.util
import os
import sys
from pathlib import Path

MULTIPROCESSORS = 148
os.environ |= {
    "CUTE_DSL_ARCH": "sm_100a",
    "CUTE_DSL_KEEP_PTX": "1",
    "FLASH_ATTENTION_ARCH": "sm_100",
    "FLASH_ATTENTION_NUM_SMS": str(MULTIPROCESSORS),
}
out, family, arguments = Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3:]

import cutlass  # noqa: E402
import cutlass.cute as cute  # noqa: E402
import cutlass.utils  # noqa: E402
import torch  # noqa: E402

compile_kernel = cute.compile


class Device:
    """A B200, as far as the host code asks."""

    multi_processor_count = MULTIPROCESSORS
    cuda_stream = 0

    def get_device_multiprocessor_count(self):
        return MULTIPROCESSORS

    def get_max_active_clusters(self, blocks):
        return MULTIPROCESSORS // blocks


def write(*given, **options):
    """Compile one kernel, write its PTX and end: nothing is launched."""
    options["options"] = options.get("options", "").replace("--enable-tvm-ffi", "") + " --keep-ptx"
    compiled = compile_kernel(*given, **options)
    text = getattr(compiled, "__ptx__", None) or compiled.artifacts.PTX
    out.write_text(text.replace("\0", ""))
    sys.exit()


def attention(head_dim, heads, kv_heads, seq):
    """FlashAttention-4, forward, FP16, no mask."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.cuda.get_device_capability = lambda *_, **__: (10, 0)
    torch.cuda.get_device_properties = torch.cuda.current_stream = lambda *_, **__: Device()
    cutlass.utils.HardwareInfo = Device
    for name in dir(compile_kernel):
        if not name.startswith("__"):
            setattr(write, name, getattr(compile_kernel, name))
    cute.compile = write
    from flash_attn.cute.interface import _flash_attn_fwd

    with FakeTensorMode():
        q, k, v = (
            torch.empty(1, seq, n, head_dim, device="cuda", dtype=torch.float16) for n in (heads, kv_heads, kv_heads)
        )
        _flash_attn_fwd(q, k, v)


def gemm(file, m, n, k):
    """A kernel of CUTLASS's tutorial: C = A B^T in FP16."""
    from cutlass.cute.runtime import make_fake_compact_tensor

    spec = importlib.util.spec_from_file_location("gemm", file)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).parent))
    spec.loader.exec_module(module)
    a, b, c = (
        make_fake_compact_tensor(cutlass.Float16, shape, stride_order=(1, 0), assumed_align=16)
        for shape in ((m, k), (n, k), (m, n))
    )
    write(module.host_function, a, b, c)


os.chdir(out.parent)  # the compiler leaves files in the current folder
if family == "fa4":
    attention(*map(int, arguments))
else:
    gemm(arguments[0], *map(int, arguments[1:]))
