"""Train a small transformer twice, with torch's attention and with sdpalab's, and draw both curves of the loss.

    python examples/train_transformer.py                            # 300 steps on the CPU
    python examples/train_transformer.py --simulator --steps 40     # a tiny shape; the kernels run on the simulator

Two layers learn to continue sequences that repeat with a period that differs from one to the next, which needs
attention. Both runs have the same weights and batches at the start, so their losses differ by rounding alone; the
script fails if a loss differs by more than --bound, relative to torch's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import sdpalab

VOCABULARY, LAYERS = 16, 2
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal attention of Q [B, S, H, D] and K and V [B, S, Hkv, D]."""


def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2)


def by_sdpalab(q: Tensor, k: Tensor, v: Tensor, *, deterministic: bool = False) -> Tensor:
    out = sdpalab.flash_attn_func(q, k, v, causal=True, deterministic=deterministic)
    assert isinstance(out, Tensor)
    return out


class Layer(nn.Module):
    """Attention and a perceptron, each on normalised inputs and added to them."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, attention: Attention) -> None:
        super().__init__()
        width = heads * head_dim
        self.sizes, self.attention = ((heads, head_dim), (kv_heads, head_dim), (kv_heads, head_dim)), attention
        self.project = nn.Linear(width, (heads + 2 * kv_heads) * head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(self.first(x)).split([heads * columns for heads, columns in self.sizes], dim=-1)
        q, k, v = (part.unflatten(-1, size) for part, size in zip(parts, self.sizes, strict=True))
        x = x + self.out(self.attention(q, k, v).flatten(-2))
        return x + self.perceptron(self.second(x))


class Model(nn.Module):
    """Tokens [B, S] to logits [B, S, VOCABULARY]."""

    def __init__(self, length: int, heads: int, kv_heads: int, head_dim: int, attention: Attention) -> None:
        super().__init__()
        width = heads * head_dim
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(heads, kv_heads, head_dim, attention) for _ in range(LAYERS)))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(self.tokens(tokens) + self.places(places)))


def batch(size: int, length: int, generator: torch.Generator) -> Tensor:
    """Sequences [size, length + 1] that repeat after 3 to 6 random tokens."""
    rows = []
    for _ in range(size):
        period = int(torch.randint(3, 7, (), generator=generator))
        pattern = torch.randint(VOCABULARY, (period,), generator=generator)
        rows.append(pattern.repeat(length // period + 1)[: length + 1])
    return torch.stack(rows)


def train(attention: Attention, options: argparse.Namespace) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    model = Model(options.length, options.heads, options.kv_heads, options.head_dim, attention)
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.rate)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(options.steps):
        tokens = batch(options.batch, options.length, generator)
        # Attention and products in bfloat16, weights and loss in float32.
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bfloat16):
            logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def draw(torchs: list[float], ours: list[float], path: Path, title: str) -> None:
    """Both curves, and below them their relative difference, as SVG."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"], rcParams["svg.fonttype"] = "sdpalab", "none"
    figure = Figure(figsize=(7, 4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    upper.plot(torchs, color="#888888", linewidth=3, label="torch")
    upper.plot(ours, color="#1f5fbf", linewidth=1, label="sdpalab")
    upper.set(ylabel="loss", ylim=(0, None), title=title)
    upper.legend(frameon=False)
    lower.plot([abs(a - b) / b for a, b in zip(ours, torchs, strict=True)], color="#1f5fbf", linewidth=1)
    lower.set(xlabel="step", ylabel="difference", ylim=(0, None))
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--simulator", action="store_true", help="run flash and flash_backward on the simulator")
    parser.add_argument("--bound", type=float, help="largest relative difference; 0.001, and 0.005 in bfloat16")
    parser.add_argument("--picture", type=Path, help="SVG to write")
    parser.add_argument("--json", type=Path, help="file for both lists of losses")
    options = parser.parse_args()
    sizes = {"batch": 8, "length": 32, "heads": 4, "kv_heads": 2, "head_dim": 16, "rate": 3e-3, "bfloat16": False}
    if options.simulator:
        sizes |= {"batch": 4, "length": 16, "heads": 2, "kv_heads": 1, "head_dim": 64, "bfloat16": True}
    vars(options).update(sizes)
    bound = options.bound or (0.005 if options.bfloat16 else 0.001)
    torch.set_num_threads(1)  # the model is so small that several threads mostly wait for each other
    torchs = train(by_torch, options)
    kernels = sdpalab.on_simulator("flash", "flash_backward") if options.simulator else nullcontext()
    with kernels as ran, sdpalab.no_fallback() if options.simulator else nullcontext():
        # On the CPU sdpalab's own gradients, from the saved log-sum-exp, stand against torch's.
        ours = train(partial(by_sdpalab, deterministic=not options.simulator), options)
    worst = max(abs(a - b) / b for a, b in zip(ours, torchs, strict=True))
    print(f"loss {torchs[0]:.4f} to {torchs[-1]:.4f} with torch, {ours[0]:.4f} to {ours[-1]:.4f} with sdpalab")
    print(f"largest relative difference {worst:.2e}, bound {bound:g}")
    if ran is not None:
        counts = {name: sum(each == name for each, _ in ran.launches) for name in ("flash", "flash_backward")}
        print(", ".join(f"{count} launches of {name}" for name, count in counts.items()) + " on the simulator")
    if options.json:
        options.json.write_text(json.dumps({"torch": torchs, "sdpalab": ours}) + "\n")
    if options.picture:
        where = "kernels on the simulator, bfloat16" if options.simulator else "CPU, float32"
        draw(torchs, ours, options.picture, f"Two layers, {options.steps} steps, {where}")
    return 0 if worst <= bound else 1


if __name__ == "__main__":
    sys.exit(main())
