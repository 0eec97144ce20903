"""The candidate in a form that can be sent to a worker without loading it here."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.triton_kernel import bare_triton_reason
from sdpalab.kernels.userfile import is_user_file

__all__ = ["Candidate", "CandidateSpec", "prepare"]

Candidate: TypeAlias = "str | Kernel | Callable[..., Any]"
"""A registry name, ``FILE.py[:NAME]``, a CudaKernel or TritonKernel, or a function on torch tensors,
``fn(q, k, v, *, scale, causal) -> out``, with parameters such as ``window_size=(-1, -1)``, ``softcap=0.0``,
``attn_mask=None`` or ``enable_gqa=False`` for what else it computes; without ``causal`` it computes no causal mask."""


@dataclass(frozen=True)
class CandidateSpec:
    """A candidate on its way to a worker. ``kind`` is ``registry`` or ``file`` (``spec`` says which), or ``pickle``."""

    kind: str
    spec: str
    pickle: npt.NDArray[np.uint8]


def prepare(candidate: Candidate) -> CandidateSpec:
    """Make ``candidate`` ready to send. A name or a file is only looked up in the worker; nothing is imported here.

    Raises
    ------
    UserError
        If it is none of the things that can be judged, the file does not exist, or the object cannot be pickled.
    """
    nothing = np.empty(0, np.uint8)
    if isinstance(candidate, str):
        if not is_user_file(candidate):
            return CandidateSpec("registry", candidate, nothing)
        stem, _, _ = f"{candidate}:".partition(".py:")
        if not Path(f"{stem}.py").is_file():
            raise UserError(f"{stem}.py does not exist or is not a file; a kernel is given as NAME or FILE.py[:NAME]")
        return CandidateSpec("file", candidate, nothing)
    if reason := bare_triton_reason(candidate):
        raise UserError(reason)
    if not (isinstance(candidate, Kernel) or callable(candidate)):
        raise UserError(
            "a candidate is a registry name, FILE.py[:NAME], a CudaKernel, a TritonKernel or a callable, "
            f"not {type(candidate).__name__}"
        )
    return CandidateSpec("pickle", "", np.frombuffer(_pickled(candidate), np.uint8))


def _pickled(candidate: object) -> bytes:
    import cloudpickle

    parts = vars(candidate).values() if isinstance(candidate, Kernel) else [candidate]
    modules = {getattr(part, "__module__", None) for part in parts if callable(part)}
    # A worker could not import these by name, so their functions travel as code.
    unimportable = [sys.modules[name] for name in modules if name in sys.modules and not _importable(name)]
    for module in unimportable:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(candidate))
    except Exception as error:
        raise UserError(
            f"the candidate cannot be sent to a worker process ({type(error).__name__}: {error}); "
            "give it as FILE.py:NAME instead"
        ) from error
    finally:
        for module in unimportable:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(module: str) -> bool:
    """True if ``import module`` in a fresh process with this one's ``sys.path`` would find the same file."""
    if module == "__main__":
        return True  # cloudpickle sends it by value already
    top = module.partition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(top)
    loaded = getattr(sys.modules.get(top), "__file__", None)
    return spec is not None and (loaded is None or spec.origin == loaded)
