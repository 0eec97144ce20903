"""Candidates for the judge's tests, good and bad. A worker imports this file; the tests only name what is in it."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import time
from typing import Any

import torch

CALLS = {"previous": 0, "noisy": 0}


def good(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)


def zeros(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return torch.zeros_like(q)


def never_written(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return torch.empty_like(q)


def partly_written(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    out = torch.empty_like(q)
    out[:, :, :-1] = good(q, k, v, scale=scale, causal=causal)[:, :, :-1]
    return out


def previous_output(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    """Right at first; then whatever lies in freshly freed memory, where the right answer was."""
    CALLS["previous"] += 1
    return good(q, k, v, scale=scale, causal=causal) if CALLS["previous"] == 1 else torch.empty_like(q)


def noisy(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    out = good(q, k, v, scale=scale, causal=causal)
    CALLS["noisy"] += 1
    return out if CALLS["noisy"] % 3 else torch.nextafter(out, out + 1)


def changes_v(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    out = good(q, k, v, scale=scale, causal=causal)
    v.zero_()
    return out


def wrong_shape(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return good(q, k, v, scale=scale, causal=causal).transpose(1, 2)


def wrong_dtype(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return good(q, k, v, scale=scale, causal=causal).float()


def not_a_tensor(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return None


class Lazy(torch.Tensor):
    pass


def subclass(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return good(q, k, v, scale=scale, causal=causal).as_subclass(Lazy)


def strided(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return good(q, k, v, scale=scale, causal=causal).transpose(2, 3).contiguous().transpose(2, 3)


def one_nan(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    out = good(q, k, v, scale=scale, causal=causal)
    out[0, 1, 2, 3] = float("nan")
    return out


def raises(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    raise ValueError("tiles do not divide")


def exits(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    sys.exit(0)


def leaves(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    print("about to leave")
    os._exit(0)


def segfaults(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return ctypes.string_at(0)


def hangs_in_children(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    if not os.fork() and not os.fork():
        print("child of a child", flush=True)
    time.sleep(600)


def prints_a_lot(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    for _ in range(8):
        os.write(1, b"x" * (1 << 20) + b"\n")
    return good(q, k, v, scale=scale, causal=causal)


def eats_memory(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return bytearray(1 << 36)


def _wire() -> int:
    """The descriptor on which the worker answers: the last pipe that can be written to."""
    return max(int(fd) for fd in os.listdir("/proc/self/fd") if _is_pipe(int(fd)))


def _is_pipe(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:") and fd > 2
    except OSError:
        return False


def forges_a_pass(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    text = b'{"status": "PASSED", "reason": "", "arrays": []}'
    os.write(_wire(), struct.pack("<Q", len(text)) + text)
    time.sleep(600)


def sends_garbage(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    os.write(_wire(), b"\x10" + bytes(7) + b"this is no JSON.")
    time.sleep(600)


def looks_around(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    assert "SDPALAB_TEST_SECRET" not in os.environ
    assert not any("secret" in argument for argument in sys.argv)
    return good(q, k, v, scale=scale, causal=causal)


NOT_A_KERNEL = 3

CATALOGUE = (
    good,
    strided,
    prints_a_lot,
    zeros,
    never_written,
    partly_written,
    previous_output,
    noisy,
    changes_v,
    wrong_shape,
    wrong_dtype,
    not_a_tensor,
    subclass,
    one_nan,
    raises,
    exits,
    eats_memory,
    leaves,
    segfaults,
    forges_a_pass,
    sends_garbage,
    looks_around,
    hangs_in_children,
    good,
)
FIRST_SEQ = 40


def catalogue(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    """One candidate that behaves as a different entry of CATALOGUE for each sequence length from FIRST_SEQ on."""
    return CATALOGUE[q.shape[2] - FIRST_SEQ](q, k, v, scale=scale, causal=causal)
