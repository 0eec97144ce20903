"""The snippets of docs/integrations.md, docs/flash-attn.md and docs/training.md run, and print what the pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.nn import attention as registry

import sdpalab


def snippet(root: Path, heading: str, page: str = "integrations.md") -> tuple[str, str]:
    """The Python of a section, and the output that the page shows after it."""
    path = root / "packages" / "sdpalab" / "docs" / page
    section = f"\n{path.read_text()}".split(f"\n{heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    shown = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    ") and line not in code)
    return code, shown


def test_transformers(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'sdpalab[transformers]'")
    from sdpalab.integrations import transformers as integration

    code, shown = snippet(root, "## transformers")
    try:
        exec(code, {})
    finally:
        integration.unregister()
    assert capsys.readouterr().out.strip() == shown.strip() != ""


@pytest.mark.parametrize(
    ("page", "heading"),
    [("flash-attn.md", "# FlashAttention's functions"), ("training.md", "## Kernels on the simulator")],
)
def test_another_page(root: Path, capsys: pytest.CaptureFixture[str], page: str, heading: str) -> None:
    code, shown = snippet(root, heading, page)
    exec(code, {})
    assert capsys.readouterr().out.strip() == shown.strip() != ""


@pytest.mark.skipif(not hasattr(registry, "register_flash_attention_impl"), reason="needs torch 2.11 or newer")
@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA, to put a flash attention there")
def test_the_registry_of_torch(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = snippet(root, "## torch's registry of flash attentions")
    q, k, v = torch.randn(3, 1, 2, 8, 16).unbind()
    active = []

    def attend(*arguments: torch.Tensor, **named: bool) -> None:
        active.append(registry.current_flash_attention_impl())

    with pytest.MonkeyPatch.context() as patch, torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_scaled_dot_product_flash_attention", lambda *arguments, **named: None, "CUDA")
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
        exec(code, {"q": q, "k": k, "v": v, "sdpalab": sdpalab})
    assert active == ["sdpalab"]
    assert registry.current_flash_attention_impl() is None
    assert capsys.readouterr().out.startswith("This call runs torch's scaled_dot_product_attention: ")
