"""Meaning of the parameters of attention kernels, by the names that authors give them."""

from __future__ import annotations

import re

__all__ = ["argument_of", "bare_name", "buffer_of", "stride_of"]

_BUFFERS = {
    "q": "q query queries",
    "k": "k key keys",
    "v": "v value values val",
    "o": "o out output outputs dst result res y ctx attnout",
    "lse": "lse logsumexp softmaxlse",
    "qkv": "qkv packed packedqkv",
}
_SCALARS = {
    "problem.seq_q": "n s l t m seq seqlen sequence sequencelength len length nq sq lq tq mq qlen seqq seqlenq rows "
    "numrows nqueries queries numqueries numq nrows",
    "problem.seq_kv": "nk skv sk lk tk nkv kvlen seqkv seqk seqlenk seqlenkv klen numkeys nkeys keys lkv tkv",
    "problem.head_dim": "d dim headdim hd hs dk dh headsize dhead headdimension embed",
    "problem.batch": "b bs batch batchsize bsz nb nbatch numbatch",
    "problem.heads": "h nh heads numheads nheads hq numqheads nhead qheads headsq",
    "problem.kv_heads": "hkv kvheads numkvheads nkvheads hk headskv headsk",
    "problem.group": "group groupsize nrep gqa ratio gqaratio qperkv",
    "problem.batch * problem.heads": "bh batchheads nbh numbh bxh totalheads",
    "problem.scale": "scale softmaxscale smscale scaling invsqrtd alpha rsqrtd qkscale attnscale",
    "problem.scale * 1.4426950408889634": "scalelog2 softmaxscalelog2 smscalelog2 scaleslog2e",
    "int(problem.causal)": "causal iscausal masked usecausal causalmask",
}
_STRIDE_AXES = {"b": "b z", "h": "h", "s": "s m n l t k row rows seq", "d": "d"}
_PREFIXES = re.compile(r"^(?:d|g|p|dev|ptr|gm|global|in|h)_(?=\w)|^(?:p|g|k)(?=[A-Z])")
_SUFFIXES = re.compile(r"_(?:ptr|d|dev|gpu|g|gmem|global|in|buf|data|tensor)$|(?:Ptr|Data)$")


def bare_name(name: str) -> str:
    """A name without prefixes of pointers and memory spaces, in lower case without underscores: ``d_Q`` is ``q``."""
    previous = ""
    while previous != name:
        previous, name = name, _SUFFIXES.sub("", _PREFIXES.sub("", name))
    return name.replace("_", "").lower()


def buffer_of(name: str) -> str:
    """The lab's buffer that a pointer of this name refers to; empty if unknown."""
    return _listed(_BUFFERS, name)


def argument_of(name: str) -> str:
    """Python expression on ``problem`` of a number of this name; empty if unknown."""
    return _listed(_SCALARS, name)


def stride_of(name: str, layout: str) -> str:
    """Python expression of a stride such as ``stride_qh`` or ``q_stride_s``, in elements; empty for other names."""
    if "stride" not in name.lower():
        return ""
    rest = name.lower().replace("stride", "").strip("_").replace("__", "_").replace("_", "")
    match = re.fullmatch(r"([qkvo]|kv|out)(\w+)", rest)
    axis = next((axis for axis, names in _STRIDE_AXES.items() if match and match[2] in names.split()), "")
    if match is None or not axis:
        return ""
    heads = "problem.heads" if match[1] in ("q", "o", "out") else "problem.kv_heads"
    rows = "problem.seq_q" if match[1] in ("q", "o", "out") else "problem.seq_kv"
    dense = {"b": f"{heads} * {rows} * problem.head_dim", "d": "1"}
    inner = {"bshd": {"s": f"{heads} * problem.head_dim", "h": "problem.head_dim"}}
    return {**dense, **inner.get(layout, {"h": f"{rows} * problem.head_dim", "s": "problem.head_dim"})}[axis]


def _listed(table: dict[str, str], name: str) -> str:
    bare = bare_name(name)
    plain = name.replace("_", "").lower()
    return next((meaning for meaning, names in table.items() if {bare, plain} & set(names.split())), "")
