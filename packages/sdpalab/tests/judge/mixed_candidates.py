"""Functions that mix torch and Triton kernels: some compute attention with their kernels, others only seem to."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl


@triton.jit
def attend(q_ptr, k_ptr, v_ptr, o_ptr, rows, keys, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    head = tl.program_id(1)
    row = tl.program_id(0) * M + tl.arange(0, M)
    dims = tl.arange(0, D)
    at = head * rows * D + row[:, None] * D + dims[None, :]
    q = tl.load(q_ptr + at, mask=row[:, None] < rows, other=0.0)
    largest = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, D], tl.float32)
    for start in range(0, keys, N):
        key = start + tl.arange(0, N)
        k = tl.load(k_ptr + head * keys * D + key[None, :] * D + dims[:, None], mask=key[None, :] < keys, other=0.0)
        v = tl.load(v_ptr + head * keys * D + key[:, None] * D + dims[None, :], mask=key[:, None] < keys, other=0.0)
        s = tl.where(key[None, :] < keys, tl.dot(q, k) * scale, -1e30)
        most = tl.maximum(largest, tl.max(s, 1))
        p = tl.exp(s - most[:, None])
        old = tl.exp(largest - most)
        total = total * old + tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out * old[:, None])
        largest = most
    tl.store(o_ptr + at, (out / total[:, None]).to(o_ptr.dtype.element_ty), mask=row[:, None] < rows)


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def branching_copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x, mask=at < n)
    if n > 1000000:
        tl.store(y_ptr + at, x * 2, mask=at < n)


@triton.jit
def weights(s_ptr, p_ptr, keys, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * keys
    s = tl.load(s_ptr + row + at, mask=at < keys, other=-1e30).to(tl.float32)
    p = tl.exp(s - tl.max(s, 0))
    tl.store(p_ptr + row + at, (p / tl.sum(p, 0)).to(p_ptr.dtype.element_ty), mask=at < keys)


def _launch(q, k, v, scale):
    o = torch.empty_like(q)
    heads, (rows, d), keys = q.shape[0] * q.shape[1], q.shape[2:], k.shape[2]
    attend[(triton.cdiv(rows, 16), heads)](q, k, v, o, rows, keys, scale, d, 16, 32)
    return o


def _copied(x):
    y = torch.empty_like(x)
    copy[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 256)
    return y


def _eager(q, k, v, scale):
    return torch.softmax((q.float() @ k.float().transpose(-1, -2)) * scale, -1).to(q.dtype) @ v


def whole(q, k, v, *, scale, causal=False):
    return _launch(q.contiguous(), k.contiguous(), v.contiguous(), scale)


def branches(q, k, v, *, scale, causal=False):
    """Wrong for large outputs."""
    o = _launch(q.contiguous(), k.contiguous(), v.contiguous(), scale)
    y = torch.empty_like(o)
    branching_copy[(triton.cdiv(o.numel(), 256),)](o, y, o.numel(), 256)
    return y


def moved(q, k, v, *, scale, causal=False):
    """As users of [B, S, H, D] write it: torch only changes the layout."""
    o = _launch(q.clone(), k.contiguous(), v.contiguous(), scale)
    out = torch.empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3], dtype=q.dtype, device="cuda")
    out.copy_(o.transpose(1, 2))
    return torch.cat([out[:, :1], out[:, 1:]], 1).transpose(1, 2)


def decoy(q, k, v, *, scale, causal=False):
    """The kernel's result is not used."""
    _launch(q.contiguous(), k.contiguous(), v.contiguous(), scale)
    return _eager(q, k, v, scale)


def never_launched(q, k, v, *, scale, causal=False):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)


def fig_leaf(q, k, v, *, scale, causal=False):
    """A trivial kernel copies the output of torch."""
    return _copied(_eager(q, k, v, scale).contiguous())


def softmax_alone(q, k, v, *, scale, causal=False):
    s = ((q.float() @ k.float().transpose(-1, -2)) * scale).contiguous()
    p = torch.empty_like(s, dtype=q.dtype)
    weights[(s.numel() // s.shape[-1],)](s, p, s.shape[-1], triton.next_power_of_2(s.shape[-1]))
    return _copied((p @ v).contiguous())


def fallback(q, k, v, *, scale, causal=False):
    try:
        attend[(1, 1)](q, k, v, None, q.shape[2], k.shape[2], scale, 24, 16, 32)  # tl.arange takes powers of two
        return q
    except Exception:
        return _eager(q, k, v, scale)


def one_head(q, k, v, *, scale, causal=False):
    """The kernel computes the first head, and torch the others."""
    o = _eager(q, k, v, scale)
    o[:, :1] = _launch(q[:, :1].contiguous(), k[:, :1].contiguous(), v[:, :1].contiguous(), scale)
    return o


def past_the_end(q, k, v, *, scale, causal=False):
    o = torch.empty_like(q)
    copy[(triton.cdiv(q.numel(), 256),)](q.contiguous(), o, q.numel() + 256, 256)
    copy[(triton.cdiv(q.numel(), 256) + 1,)](q.contiguous(), o, q.numel() + 256, 256)
    return o


def wrong(q, k, v, *, scale, causal=False):
    return _launch(q.contiguous(), k.contiguous(), v.contiguous(), scale * math.sqrt(2))
