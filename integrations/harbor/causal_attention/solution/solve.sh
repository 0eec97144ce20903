#!/usr/bin/env bash
# The oracle: a Triton kernel with one block a tile of 16 rows.
set -euo pipefail
cat > "${APP:-/app}/submission.py" <<'PYTHON'
import torch
import triton
import triton.language as tl


@triton.jit
def attend(q_ptr, k_ptr, v_ptr, o_ptr, rows, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    head, dims = tl.program_id(1), tl.arange(0, D)
    at = head * rows * D + row[:, None] * D + dims[None, :]
    q = tl.load(q_ptr + at, mask=row[:, None] < rows, other=0.0)
    largest = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, D], tl.float32)
    for start in range(0, tl.minimum(rows, (tl.program_id(0) + 1) * M), N):
        key = start + tl.arange(0, N)
        inside = key < rows
        k = tl.load(k_ptr + head * rows * D + key[None, :] * D + dims[:, None], mask=inside[None, :], other=0.0)
        v = tl.load(v_ptr + head * rows * D + key[:, None] * D + dims[None, :], mask=inside[:, None], other=0.0)
        s = tl.where(inside[None, :] & (row[:, None] >= key[None, :]), tl.dot(q, k) * scale, -1e30)
        most = tl.maximum(largest, tl.max(s, 1))
        p = tl.exp(s - most[:, None])
        old = tl.exp(largest - most)
        total = total * old + tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out * old[:, None])
        largest = most
    tl.store(o_ptr + at, (out / total[:, None]).to(o_ptr.dtype.element_ty), mask=row[:, None] < rows)


class ModelNew(torch.nn.Module):
    def forward(self, Q, K, V):
        O = torch.empty_like(Q)
        grid = (triton.cdiv(Q.shape[2], 16), Q.shape[0] * Q.shape[1])
        attend[grid](Q, K, V, O, Q.shape[2], Q.shape[3] ** -0.5, Q.shape[3], 16, 32)
        return O
PYTHON
