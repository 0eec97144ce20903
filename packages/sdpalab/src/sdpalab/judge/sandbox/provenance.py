"""The origin of a callable's output: the last writer of each byte, and floating-point operations.

A callable that launches Triton functions runs on CPU tensors, with the simulator as Triton's GPU. A dispatch mode
observes the operators of torch: an operator that only moves data (a copy, a concatenation, a change of dtype) keeps the
writers of its source; any other operator makes torch the writer. The process of the callable states all this, so a
callable that tampers with its own process can forge it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

__all__ = ["NOBODY", "TORCH", "Provenance", "triton_functions"]

NOBODY, INPUTS, TORCH = "nobody", "the inputs", "torch"
_FIRST = (NOBODY, INPUTS, TORCH)

_MOVES = {
    *("clone", "_to_copy", "contiguous", "cat", "stack", "index_select", "gather", "flip", "roll", "repeat", "index"),
    *("_reshape_copy", "_unsafe_view", "constant_pad_nd", "tril", "triu", "view_copy", "expand_copy", "take"),
}
"""Operators of torch that move elements and compute nothing."""
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "resize_")


def triton_functions() -> dict[str, str]:
    """Triton functions that exist in this process beside Triton's own: their files by their names."""
    jit = sys.modules.get("triton.runtime.jit")
    if jit is None:
        return {}
    functions = [each for each in gc.get_objects() if type(each) is jit.JITFunction]
    own = [each.fn for each in functions if not each.fn.__module__.startswith("triton.")]
    return {each.__name__: each.__code__.co_filename for each in own}


class Provenance(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """Mode that tracks writers and operations of one call."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = list(_FIRST)
        self._writers: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = {}
        self.flops = {TORCH: 0}
        self.launches = 0
        for tensor in inputs:
            self._bytes(tensor).fill_(self._names.index(INPUTS))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch's hook: without it the first call imports the compiler, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Observe one operator."""
        kwargs = dict(kwargs or {})
        known = {_storage(each) for each in _tensors((args, kwargs))}
        out = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        written = self._written(func, args, kwargs)
        created = [each for each in _tensors(out) if _storage(each) not in known]
        if name == "copy_":
            self._put(args[0], self._of(args[1]).expand_as(args[0]) if isinstance(args[1], torch.Tensor) else None)
            return out
        moved = self._moved(func, name, args, kwargs) if created and not written else None
        for each in (*written, *created):
            self._put(each, None if name not in _EMPTY else NOBODY) if moved is None else self._put(each, moved)
        if moved is None and (written or created) and name not in _EMPTY:
            self.flops[TORCH] += _operations(func, args, kwargs, out)
        return out

    def launched(self, name: str, changed: Mapping[int, npt.NDArray[np.bool_]], flops: int) -> None:
        """A kernel has changed bytes of storages, given by their addresses."""
        self.launches += 1
        writer = f"kernel {name}"
        if writer not in self._names:
            self._names.append(writer)
        self.flops[writer] = self.flops.get(writer, 0) + flops
        for address, mask in changed.items():
            _, writers = self._writers.setdefault(address, (None, torch.zeros(mask.size, dtype=torch.uint8)))
            writers[torch.from_numpy(mask)] = self._names.index(writer)

    def writers(self, tensor: torch.Tensor) -> dict[str, int]:
        """Number of elements of a tensor by their last writer."""
        numbers, counts = np.unique(self._of(tensor).numpy(), return_counts=True)
        return {self._names[number]: int(count) for number, count in zip(numbers, counts, strict=True)}

    def _bytes(self, tensor: torch.Tensor) -> torch.Tensor:
        """Writers of the bytes of a tensor's storage."""
        storage = tensor.untyped_storage()
        known = self._writers.get(storage.data_ptr())
        if known is None or known[1].numel() < storage.nbytes():
            # The tensor is kept, so that no other storage gets its address.
            known = tensor, torch.zeros(storage.nbytes(), dtype=torch.uint8)
            self._writers[storage.data_ptr()] = known
        return known[1]

    def _of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Writer of each element: that of its first byte."""
        return self._at(tensor, 0)

    def _at(self, tensor: torch.Tensor, byte: int) -> torch.Tensor:
        size = tensor.element_size()
        strides = [stride * size for stride in tensor.stride()]
        return self._bytes(tensor).as_strided(tensor.shape, strides, tensor.storage_offset() * size + byte)

    def _put(self, tensor: torch.Tensor, writers: torch.Tensor | str | None) -> None:
        """Set the writers of a tensor's elements; None for torch."""
        value = self._names.index(writers or TORCH) if not isinstance(writers, torch.Tensor) else writers
        for byte in range(tensor.element_size()):
            target = self._at(tensor, byte)
            target.copy_(value) if isinstance(value, torch.Tensor) else target.fill_(value)

    def _moved(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        """Writers of the result of an operator that moves elements: the same operator on the writers."""
        if name not in _MOVES:
            return None
        plain = {key: value for key, value in kwargs.items() if key not in ("dtype", "device", "layout", "pin_memory")}
        first = True

        def writers(value: Any) -> Any:
            nonlocal first
            if isinstance(value, torch.Tensor) and (first or name in ("cat", "stack")):
                first = False
                return self._of(value).contiguous()
            if isinstance(value, (list, tuple)) and name in ("cat", "stack"):
                return [writers(each) for each in value]
            return value

        result = func(*map(writers, args), **plain)
        return result if isinstance(result, torch.Tensor) else None

    @staticmethod
    def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Arguments that an operator writes to."""
        written: list[torch.Tensor] = []
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[number] if number < len(args) else kwargs.get(argument.name)
                written += _tensors(value)
        return written


def _operations(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Floating-point operations of an operator: of the products by torch's own count, otherwise one for each element of
    its largest floating-point tensor."""
    if func.overloadpacket.__name__.startswith("_scaled_dot_product"):
        query, key = args[:2]
        return int(4 * query.numel() * key.shape[-2])
    count: Callable[..., int] | None = flop_registry.get(func.overloadpacket)
    if count is not None:
        return int(count(*args, **kwargs, out_val=out))
    sizes = [each.numel() for each in _tensors((args, kwargs, out)) if each.is_floating_point()]
    return max(sizes, default=0)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
