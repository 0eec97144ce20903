"""Chunked kernels of FLA, forward and backward, compared with their recurrence in double precision:
fla_recurrence.py RULE SEQ

RULE: linear (linear attention), gla (a gate for each key dimension), delta (the delta rule), gated_delta.
"""

import sys

import torch
from comparison import compare, finish
from torch.nn.functional import logsigmoid, normalize

rule, seq = sys.argv[1], int(sys.argv[2])
torch.manual_seed(1)
HEADS, HEAD_DIM = 2, 64
scale = HEAD_DIM**-0.5


def draw(*shape, change=lambda x: x, dtype=torch.float16):
    """Random numbers that a gradient is taken of."""
    return change(torch.randn(1, seq, HEADS, *shape, device="cuda")).to(dtype).requires_grad_()


q, v = draw(HEAD_DIM), draw(HEAD_DIM)
k = draw(HEAD_DIM, change=lambda x: normalize(x, dim=-1))
beta = draw(change=torch.sigmoid) if "delta" in rule else None
gate = draw(HEAD_DIM, change=logsigmoid, dtype=torch.float32) if rule == "gla" else None
if rule == "gated_delta":
    gate = draw(change=logsigmoid, dtype=torch.float32)

if rule == "linear":
    from fla.ops.linear_attn import chunk_linear_attn

    o, _ = chunk_linear_attn(q, k, v, scale=scale, normalize=False)
elif rule == "gla":
    from fla.ops.gla import chunk_gla

    o, _ = chunk_gla(q, k, v, gate, scale=scale)
elif rule == "delta":
    from fla.ops.delta_rule import chunk_delta_rule

    o, _ = chunk_delta_rule(q, k, v, beta, scale=scale)
else:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    o, _ = chunk_gated_delta_rule(q, k, v, gate, beta, scale=scale)

inputs = {"q": q, "k": k, "v": v, "beta": beta, "gate": gate}
inputs = {name: x for name, x in inputs.items() if x is not None}
wide = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
state, rows = torch.zeros(1, HEADS, HEAD_DIM, HEAD_DIM, dtype=torch.float64), []  # [batch, heads, key, value]
for t in range(seq):
    key, value = wide["k"][:, t], wide["v"][:, t]
    if "gate" in wide:
        decay = wide["gate"][:, t].exp()
        state = state * (decay[..., None] if rule == "gla" else decay[..., None, None])
    if "beta" in wide:
        value = wide["beta"][:, t, :, None] * (value - torch.einsum("bhk,bhkv->bhv", key, state))
    state = state + torch.einsum("bhk,bhv->bhkv", key, value)
    rows.append(torch.einsum("bhk,bhkv->bhv", wide["q"][:, t] * scale, state))
expected = torch.stack(rows, 1)
compare("o", o, expected, 4e-3)
grad_o = torch.randn_like(o)
o.backward(grad_o)
expected.backward(grad_o.double())
for name, x in inputs.items():
    compare(f"grad_{name}", x.grad, wide[name].grad, 1e-2)
finish()
