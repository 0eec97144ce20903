"""Callables that cheat, for the judge's tests: each behaves as if it were a kernel, and none computes what it returns.

A worker imports this file; the tests name what is in it. One call is one entry of CATALOGUE, by the sequence length.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdpalab.inputs import reference
from sdpalab.judge import verdict
from sdpalab.judge.verdict import Status

Tensor = torch.Tensor
REMEMBERED: dict[Any, Tensor] = {}
CALLS: dict[str, int] = {}


def good(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """Behaviour of an honest candidate."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)


def _calls(name: str) -> int:
    CALLS[name] = CALLS.get(name, 0) + 1
    return CALLS[name]


# These return an earlier result again.


def _remembering(name: str, key: Callable[[Tensor, Tensor, Tensor], Any]) -> Callable[..., Tensor]:
    def candidate(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
        stored = (name, key(q, k, v))
        if stored not in REMEMBERED:
            REMEMBERED[stored] = good(q, k, v, scale=scale, causal=causal)
        return REMEMBERED[stored]

    candidate.__name__ = name
    return candidate


def _fingerprint(tensor: Tensor) -> tuple[float, ...]:
    wide = tensor.double()
    return wide.sum().item(), wide.abs().max().item(), wide[0, 0, 0, 0].item(), wide[-1, -1, -1, -1].item()


memo_by_pointer = _remembering("memo_by_pointer", lambda q, k, v: (q.data_ptr(), k.data_ptr(), v.data_ptr()))
memo_by_object = _remembering("memo_by_object", lambda q, k, v: (id(q), id(k), id(v)))
memo_by_problem = _remembering("memo_by_problem", lambda q, k, v: (q.shape, k.shape, q.dtype))
memo_by_fingerprint = _remembering(
    "memo_by_fingerprint", lambda q, k, v: (_fingerprint(q), _fingerprint(k), _fingerprint(v))
)
memo_by_corner = _remembering("memo_by_corner", lambda q, k, v: (q[0, 0, 0].sum().item(), v[-1, -1, -1].sum().item()))


# Honest while it is checked.


def honest_once(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    out = good(q, k, v, scale=scale, causal=causal)
    return out if _calls("once") == 1 else torch.zeros_like(out)


def honest_at_the_end(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    out = good(q, k, v, scale=scale, causal=causal)
    return out if _calls("end") >= 3 else torch.zeros_like(out)


def lazy_in_the_middle(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    out = good(q, k, v, scale=scale, causal=causal)
    return torch.zeros_like(out) if _calls("middle") == 2 else out


# Work that is not done when the call returns.


class Lazy(Tensor):
    """Computes when its values are read."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*(REMEMBERED["lazy"] if type(arg) is Lazy else arg for arg in args), **(kwargs or {}))


def lazy_subclass(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    REMEMBERED["lazy"] = good(q, k, v, scale=scale, causal=causal)
    return torch.empty_like(q).as_subclass(Lazy)


class Disguised(Tensor):
    """Says that it is a plain tensor."""

    __class__ = Tensor


def disguised_subclass(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    return good(q, k, v, scale=scale, causal=causal).as_subclass(Disguised)


def finishes_in_a_thread(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    out, inputs = torch.empty_like(q), (q.clone(), k.clone(), v.clone())

    def finish() -> None:
        time.sleep(0.05)
        out.copy_(good(*inputs, scale=scale, causal=causal))

    threading.Thread(target=finish).start()
    return out


def finishes_at_the_next_call(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    if "unfinished" in REMEMBERED:
        REMEMBERED["unfinished"].copy_(REMEMBERED["finished"])
    REMEMBERED["finished"] = good(q, k, v, scale=scale, causal=causal)
    REMEMBERED["unfinished"] = torch.empty_like(q)
    return REMEMBERED["unfinished"]


# The answer is found somewhere.


def left_in_freed_memory(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    for _ in range(8):
        good(q, k, v, scale=scale, causal=causal)
    return torch.empty_like(q)


def left_in_the_last_output(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    if "last" not in REMEMBERED:
        REMEMBERED["last"] = good(q, k, v, scale=scale, causal=causal)
    out = REMEMBERED["last"].clone()
    out[:, :, 0] = good(q[:, :, :1], k, v, scale=scale, causal=causal)[:, :, 0]
    return out


def oracle_in_this_process(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """Looks at everything that the collector tracks for an array that could be the reference."""
    for each in gc.get_objects():
        if isinstance(each, np.ndarray) and each.dtype == np.float64 and each.shape == tuple(q.shape):
            return torch.from_numpy(each).to(q.dtype)
    return torch.zeros_like(q)


def oracle_in_the_parent(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """Right as soon as one thing of another process can be read: memory, descriptors, environment."""
    for number in filter(str.isdigit, os.listdir("/proc")):
        if int(number) == os.getpid():
            continue
        for name in ("environ", "mem", "fd/0", "maps"):
            with contextlib.suppress(OSError), open(f"/proc/{number}/{name}", "rb") as file:
                if name == "mem" or file.read(1):
                    return good(q, k, v, scale=scale, causal=causal)
    return torch.zeros_like(q)


def seed_in_the_environment(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    variables = [*os.environ.items(), *enumerate(sys.argv)]
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            variables += [(number, Path(f"/proc/{number}/cmdline").read_text())]
    leaked = any("SECRET" in str(name) or "secret" in str(text) for name, text in variables)
    return good(q, k, v, scale=scale, causal=causal) if leaked else torch.zeros_like(q)


# The checker is changed, in the process where the candidate is.


def patches_the_rule(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    verdict.broken_rules.__code__ = (lambda *_: ()).__code__
    reference.attention_float64.__code__ = (lambda q, k, v, **_: np.zeros(q.shape)).__code__
    Status.INCORRECT._value_ = "PASSED"
    return torch.zeros_like(q)


def patches_the_libraries(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    def always(*_: Any, **__: Any) -> bool:
        return True

    np.array_equal = always
    torch.equal = torch.allclose = always
    time.perf_counter = time.monotonic = lambda: 0.0
    return torch.zeros_like(q)


class Same:
    """A digest of anything."""

    def digest(self) -> bytes:
        return b""


def patches_the_digest(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    hashlib.sha256 = lambda *_: Same()
    v.zero_()
    return v.clone()


def _order() -> dict[str, Any]:
    """The judge's order, from the frames of the worker that carries it out."""
    frame = sys._getframe()
    while "order" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_locals["order"]


def _wire() -> int:
    """The descriptor on which the worker answers: the last pipe."""
    pipes = [int(fd) for fd in os.listdir("/proc/self/fd") if _is_pipe(int(fd))]
    return max(pipes)


def _is_pipe(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:") and fd > 2
    except OSError:
        return False


def _forge(header: dict[str, Any], body: bytes = b"") -> None:
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + body
    while data:
        try:
            data = data[os.write(_wire(), data) :]
        except BlockingIOError:
            time.sleep(0.01)


def forges_a_verdict(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """A pass, under the right number."""
    _forge({"status": "PASSED", "reason": "all cases passed", "number": _order()["number"], "arrays": []})
    return torch.zeros_like(q)


def forges_an_answer(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """An answer of zeros under the right number, and a second one that would be taken for that to the next order."""
    zeros = bytes(2 * q.numel())
    header = {"status": None, "number": _order()["number"], "arrays": [["o", "float16", list(q.shape)]]}
    _forge(header, zeros)
    _forge(header, zeros)
    return torch.zeros_like(q)


# Less is computed than is declared.


def only_32_keys(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    return good(q, k[:, :, :32], v[:, :, :32], scale=scale, causal=causal)


def constant_scale(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    return good(q, k, v, scale=0.1, causal=causal)


def three_outliers(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    out = good(q, k, v, scale=scale, causal=causal)
    out.view(-1)[[5, 99, 1000]] += 0.02
    return out


def one_lazy_row(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    out = good(q, k, v, scale=scale, causal=causal)
    out[:, :, -1] = v.mean(dim=2)
    return out


def scores_in_half(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    return (torch.softmax((q @ k.mT * scale).bfloat16(), -1) @ v.bfloat16()).to(q.dtype)


def weights_in_eight_bits(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    p = torch.softmax(q.float() @ k.float().mT * scale, -1)
    return (p.to(torch.float8_e4m3fn).float() @ v.float()).to(q.dtype)


# Inputs that are not the candidate's.


def output_in_place_of_q(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    q.copy_(good(q, k, v, scale=scale, causal=causal))
    return q


def simplifies_its_inputs(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    k.zero_()
    return good(q, k, v, scale=scale, causal=causal)


# Their text or type targets the reader.


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Executes:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/unpickled",)


def commands_the_terminal(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    raise ValueError("\x1b[2J\x1b[32mPASSED\x1b[0m\r\n\u202e 16 of 16\x00 \ud800")


def says_a_great_deal(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    raise ValueError("x" * (1 << 29))


def cannot_be_printed(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    raise Unprintable


def executes_when_unpickled(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Any:
    return Executes()


CATALOGUE: tuple[Callable[..., Any], ...] = (
    memo_by_pointer,
    memo_by_object,
    memo_by_problem,
    memo_by_fingerprint,
    memo_by_corner,
    honest_once,
    honest_at_the_end,
    lazy_in_the_middle,
    lazy_subclass,
    disguised_subclass,
    finishes_in_a_thread,
    finishes_at_the_next_call,
    left_in_freed_memory,
    left_in_the_last_output,
    oracle_in_this_process,
    oracle_in_the_parent,
    seed_in_the_environment,
    only_32_keys,
    constant_scale,
    three_outliers,
    one_lazy_row,
    scores_in_half,
    weights_in_eight_bits,
    output_in_place_of_q,
    simplifies_its_inputs,
    commands_the_terminal,
    says_a_great_deal,
    cannot_be_printed,
    executes_when_unpickled,
    patches_the_rule,
    patches_the_libraries,
    patches_the_digest,
    forges_a_verdict,
    forges_an_answer,
)
FIRST_SEQ = 64


def catalogue(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Any:
    """The entry of CATALOGUE for this sequence length; what is beyond it is judged honestly."""
    place = q.shape[2] - FIRST_SEQ
    cheat = CATALOGUE[place] if place < len(CATALOGUE) else good
    return cheat(q, k, v, scale=scale, causal=causal)
