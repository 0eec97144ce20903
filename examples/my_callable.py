"""Your own attention as a function on torch tensors.

    sdpalab judge examples/my_callable.py

calls it on CPU tensors and compares the result with a float64 reference.
"""

import torch

BLOCK = 128


def blocked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
    """Attention in blocks of keys with a running maximum, in float32.

    q is [B, H, Sq, D]; k and v are [B, Hkv, Skv, D], where H is a multiple of Hkv. The result is as q.
    """
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, dim=1).float()
    v = v.repeat_interleave(group, dim=1).float()
    query = q.float() * scale
    rows = torch.arange(q.shape[2]).unsqueeze(1)

    maximum = torch.full((*q.shape[:3], 1), -torch.inf)
    total = torch.zeros_like(maximum)
    out = torch.zeros_like(query)
    for start in range(0, k.shape[2], BLOCK):
        keys = torch.arange(start, min(start + BLOCK, k.shape[2]))
        scores = query @ k[:, :, keys].transpose(-1, -2)
        if causal:
            scores = scores.masked_fill(keys > rows, -torch.inf)
        new_maximum = torch.maximum(maximum, scores.amax(-1, keepdim=True))
        rescale = torch.exp(maximum - new_maximum)
        weights = torch.exp(scores - new_maximum)
        total = total * rescale + weights.sum(-1, keepdim=True)
        out = out * rescale + weights @ v[:, :, keys]
        maximum = new_maximum
    return (out / total).to(q.dtype)
