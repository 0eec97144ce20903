"""PTX around wgmma, and matrices laid out for its descriptors element by element, by the manual's canonical layouts."""

import numpy as np

import warpsan

HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n"
ATOM = {"none": 16, "128B": 128, "64B": 64, "32B": 32}
MODE = {"none": 0, "128B": 1, "64B": 2, "32B": 3}


def descriptor(start, leading, stride, swizzle):
    """The 64-bit matrix descriptor."""
    fields = ((start, 0), (leading, 16), (stride, 32))
    return sum((value & 0x3FFFF) >> 4 << shift for value, shift in fields) | MODE[swizzle] << 62


def swizzled(address, swizzle):
    """``Swizzle<B, 4, 3>``: B bits from bit 4 are XORed with those three bits higher."""
    mask = ATOM[swizzle] // 16 - 1
    return address ^ ((address >> 7) & mask) << 4


def lay_out(matrix, start, swizzle, k_major):
    """Place [rows, k] for one instruction (k is 32 bytes).

    Returns (byte addresses [rows, k], descriptor). The strides exceed the minimum, so that an assumed minimum is
    detected.
    """
    rows, depth = matrix.shape
    size, width = matrix.dtype.itemsize, ATOM[swizzle]
    per = 16 // size
    row, k = np.mgrid[:rows, :depth]
    if k_major:
        stride, leading = 8 * width + 1024, (8 * width + 1024) * rows // 8
        inside = row % 8 * width + row // 8 * stride + k % per * size
        address = inside + k // per * (leading if swizzle == "none" else 16)
    elif swizzle == "none":
        stride, leading = 128, 128 * rows // 8 + 256
        address = row % 8 * size + row // 8 * stride + k % 8 * 16 + k // 8 * leading
    else:
        wide = width // 2
        stride = 8 * width
        leading = 2 * stride + 1024
        address = row % wide * size + row // wide * leading + k % 8 * width + k // 8 * stride
    return swizzled(start + address, swizzle), descriptor(start, leading, stride, swizzle)


def image(size, *placed):
    """Shared memory with (matrix, addresses) in it; they must not overlap."""
    memory, written = np.zeros(size, np.uint8), np.zeros(size, bool)
    for matrix, addresses in placed:
        raw = np.ascontiguousarray(matrix).view(np.uint8).reshape(*matrix.shape, matrix.dtype.itemsize)
        for byte in range(matrix.dtype.itemsize):
            assert not written[addresses + byte].any()
            memory[addresses + byte], written[addresses + byte] = raw[..., byte], True
    return memory


def registers(prefix, first, number):
    return "{" + ", ".join(f"%{prefix}{first + i}" for i in range(number)) + "}"


def kernel(body, *, threads, words, smem, outputs):
    """Shared memory is filled from the first argument, %w0.. from the second, %d0.. stored to the third."""
    loads = "".join(f"ld.global.b32 %w{i}, [%in+{4 * i}];\n" for i in range(words))
    stores = "".join(f"st.global.b32 [%out+{4 * i}], %d{i};\n" for i in range(outputs))
    return (
        f"{HEAD}.entry k({', '.join(f'.param .u64 {name}' for name in ('image', 'inputs', 'outputs', 'a', 'b'))})\n{{\n"
        ".reg .b32 %t, %i, %x; .reg .b64 %in, %out, %src, %wide, %a, %b; .reg .pred %p, %yes, %no;\n"
        f".reg .b32 %w<{words + 1}>, %d<{outputs + 1}>;\n.shared .align 1024 .b8 smem[{smem}];\n"
        "mov.u32 %t, %tid.x; ld.param.u64 %src, [image]; ld.param.u64 %a, [a]; ld.param.u64 %b, [b];\n"
        f"ld.param.u64 %in, [inputs]; mul.wide.u32 %wide, %t, {4 * words}; add.u64 %in, %in, %wide;\n"
        f"ld.param.u64 %out, [outputs]; mul.wide.u32 %wide, %t, {4 * outputs}; add.u64 %out, %out, %wide;\n"
        "setp.eq.u32 %yes, 0, 0; setp.ne.u32 %no, 0, 0;\n"
        f"shl.b32 %i, %t, 2;\nFILL: setp.ge.u32 %p, %i, {smem}; @%p bra FULL;\n"
        "cvt.u64.u32 %wide, %i; add.u64 %wide, %src, %wide; ld.global.b32 %x, [%wide]; st.shared.b32 [%i], %x;\n"
        f"add.u32 %i, %i, {4 * threads}; bra FILL;\nFULL:\nfence.proxy.async;\nbar.sync 0;\n"
        f"{loads}{body}\n{stores}ret;\n}}\n"
    )


def run(body, memory, inputs, outputs, a=0, b=0, *, threads=128, **options):
    """Run a body in one block; the results are uint32 [threads, outputs]."""
    inputs = np.ascontiguousarray(inputs).view(np.uint32).reshape(threads, -1)
    out = np.zeros((threads, outputs), np.uint32)
    ptx = kernel(body, threads=threads, words=inputs.shape[1], smem=len(memory), outputs=outputs)
    report = warpsan.launch(ptx, "k", 1, threads, [memory, inputs, out, int(a), int(b)], **options)
    return report, out


def accumulator_fragment(matrix):
    """PTX ISA, "Register Fragments": [64, n] 32-bit elements as [128, n / 2], thread by thread."""
    out = np.zeros((128, matrix.shape[1] // 2), matrix.dtype)
    for thread in range(128):
        row, column = thread // 32 * 16 + thread % 32 // 4, 2 * (thread % 4)
        for i in range(out.shape[1]):
            out[thread, i] = matrix[row + 8 * (i // 2 % 2), column + 8 * (i // 4) + i % 2]
    return out


def packed_fragment(matrix):
    """The same for elements of 8, 16 or 32 bits packed in words: [64, k] as uint32 [128, words]."""
    per = 4 // matrix.dtype.itemsize
    out = np.zeros((128, matrix.size // 128 // per), np.uint32)
    for thread in range(128):
        row, column = thread // 32 * 16 + thread % 32 // 4, per * (thread % 4)
        for i in range(out.shape[1]):
            at = column + 4 * per * (i // 2)
            word = np.ascontiguousarray(matrix[row + 8 * (i % 2), at : at + per])
            out[thread, i] = word.view(np.uint32)[0]
    return out
