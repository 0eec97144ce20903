"""Attention in Triton, forward and backward, compared with double precision: external_attention.py KERNEL SEQ [causal]

KERNEL: flash_attn (the Triton version of FlashAttention), fla (parallel_attn of FLA, causal), sage (SageAttention,
forward), gpt_oss (forward with tensor descriptors, causal, with attention sinks).
"""

import sys

import torch
from comparison import compare, finish

kernel, seq, causal = sys.argv[1], int(sys.argv[2]), "causal" in sys.argv[3:] or sys.argv[1] in ("fla", "gpt_oss")
torch.manual_seed(1)
HEADS, HEAD_DIM = 2, 64
dtype = torch.bfloat16 if kernel == "gpt_oss" else torch.float16
# [batch, sequence, heads, head_dim]
q, k, v = (torch.randn(1, seq, HEADS, HEAD_DIM, dtype=dtype, device="cuda").requires_grad_() for _ in range(3))
sinks = torch.randn(HEADS, dtype=dtype, device="cuda") if kernel == "gpt_oss" else None
scale = HEAD_DIM**-0.5

if kernel == "flash_attn":
    from flash_attn_triton import flash_attn_func

    o = flash_attn_func(q, k, v, None, causal, scale)
elif kernel == "fla":
    from fla.ops.attn import parallel_attn

    o = parallel_attn(q, k, v, scale=scale)
elif kernel == "sage":
    from sageattention import sageattn

    with torch.no_grad():
        o = sageattn(q, k, v, tensor_layout="NHD", is_causal=causal, sm_scale=scale)
else:
    from gpt_oss.triton.attention import attention

    with torch.no_grad():
        start = torch.zeros(1, dtype=torch.int32, device="cuda")
        o = attention(q.unsqueeze(3), k, v, sinks, scale, None, start).view_as(q)

wide_q, wide_k, wide_v = (x.detach().double().requires_grad_() for x in (q, k, v))
scores = torch.einsum("bihd,bjhd->bhij", wide_q, wide_k) * scale
if causal:
    scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), -torch.inf)
if sinks is not None:
    scores = torch.cat([scores, sinks.double().view(1, HEADS, 1, 1).expand(1, HEADS, seq, 1)], -1)
expected = torch.einsum("bhij,bjhd->bihd", torch.softmax(scores, -1)[..., :seq], wide_v)
compare("o", o, expected, {"sage": 3e-2, "gpt_oss": 2e-2}.get(kernel, 4e-3))
if o.requires_grad:
    grad_o = torch.randn_like(o)
    o.backward(grad_o)
    expected.backward(grad_o.double())
    for name, narrow, wide in (("grad_q", q, wide_q), ("grad_k", k, wide_k), ("grad_v", v, wide_v)):
        compare(name, narrow.grad, wide.grad, 1e-2)
finish()
