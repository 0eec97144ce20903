"""Addresses of the reports and corrections of historical bugs."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["link"]

_REPOSITORIES: Mapping[str, str] = {
    "FA": "Dao-AILab/flash-attention",
    "PT": "pytorch/pytorch",
    "XF": "facebookresearch/xformers",
    "TE": "NVIDIA/TransformerEngine",
    "FI": "flashinfer-ai/flashinfer",
    "gym": "meta-pytorch/attention-gym",
    "vllm": "vllm-project/vllm",
    "transformers": "huggingface/transformers",
    "diffusers": "huggingface/diffusers",
    "levanter": "stanford-crfm/levanter",
    "tilelang": "tile-ai/tilelang",
    "fla": "fla-org/flash-linear-attention",
    "zml": "zml/zml",
    "nsa": "XunhaoLai/native-sparse-attention-triton",
}
_PLACES = {"#": "issues", "@": "commit", ":": "blob/main"}


def link(short: str) -> str:
    """Address of ``NAME#NUMBER``, an issue or a pull request, of ``NAME@COMMIT``, or of a file ``NAME:PATH``.

    Raises
    ------
    KeyError
        If the repository has no such name.
    """
    at = next(each for each in "#@:" if each in short)
    name, _, place = short.partition(at)
    return f"https://github.com/{_REPOSITORIES[name]}/{_PLACES[at]}/{place}"
