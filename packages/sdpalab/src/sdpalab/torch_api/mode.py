"""``no_fallback``: whether calls of a thread without a certified kernel raise an error instead of running torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sdpalab.errors import UserError

__all__ = ["fall_back", "fall_back_compiled", "no_fallback"]

Tensor = torch.Tensor


class _Mode(threading.local):
    """Settings of this thread."""

    fallback = True


_mode = _Mode()
_lock = threading.Lock()
_refusals = 0
_any_refuses = False
"""Whether any thread is within no_fallback. Compiled code guards on this flag; it cannot guard on a thread's
setting."""


@contextmanager
def no_fallback() -> Iterator[None]:
    """Context in which a call of this thread without a certified kernel raises UserError with the reason.

    It also applies to compiled code, if entered outside of that code. A backward pass runs the kernel of its forward
    pass, also outside the context.
    """
    before, _mode.fallback = _mode.fallback, False
    _count(+1)
    try:
        yield
    finally:
        _count(-1)
        _mode.fallback = before


def _count(change: int) -> None:
    global _refusals, _any_refuses
    with _lock:
        _refusals += change
        _any_refuses = _refusals > 0


def fall_back(reason: str) -> None:
    """Raise UserError if fallback is not allowed."""
    if not _mode.fallback:
        raise UserError(f"no proven kernel computes this, and falling back to torch is disabled: {reason}")


def fall_back_compiled(q: Tensor, reason: str) -> Tensor:
    """``q``, in compiled code with a check that raises UserError at run time if fallback is not allowed."""
    if not torch.compiler.is_compiling():
        fall_back(reason)
    elif _any_refuses:
        checked: Tensor = torch.ops.sdpalab.fall_back(q, reason)
        return checked
    return q


@torch.library.custom_op("sdpalab::fall_back", mutates_args=(), schema="(Tensor q, str reason) -> Tensor")
def _checked(q: Tensor, reason: str) -> Tensor:
    """A copy of ``q`` if this thread allows fallback in compiled code; raises UserError otherwise."""
    fall_back(reason)
    return q.clone()


@_checked.register_fake
def _fake_checked(q: Tensor, reason: str) -> Tensor:
    return torch.empty_like(q)


_checked.register_autograd(lambda ctx, grad: (grad, None))
