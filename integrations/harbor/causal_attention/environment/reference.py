import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, Q, K, V):
        return torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=True)


def get_inputs():
    return [torch.randn(2, 8, 512, 64, device="cuda", dtype=torch.float16) for _ in range(3)]


def get_init_inputs():
    return []
