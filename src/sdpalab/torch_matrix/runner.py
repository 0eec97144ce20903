"""The process inside one environment: the lab's own judge on the candidate, and every witness on the same inputs.

``main(ORDER.json)`` is started by :mod:`sdpalab.torch_matrix.run` with that environment's interpreter. It derives
nothing: arrays go into a folder under the sha256 of their bytes, and a JSON file says which is which. On stdout it
prints a line for each step that is done.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError, UserError
from sdpalab.inputs import make_inputs
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Case
from sdpalab.judge.witness import BACKENDS, WitnessUnavailable, witness_device, witness_output
from sdpalab.problem import Problem
from sdpalab.torch_matrix.matrix import OWN_CHOICE

__all__ = ["main"]


class _Folder:
    """Keeps arrays as files that are named after their digest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, array: npt.NDArray[Any]) -> str:
        """Keep ``array`` and return the sha256 of its bytes, in hex."""
        data = np.ascontiguousarray(array).tobytes()
        digest = hashlib.sha256(data).hexdigest()
        (self._folder / digest).write_bytes(data)
        return digest


def main(order_file: str) -> None:
    """Carry out an order and write its ``result`` file."""
    order = json.loads(Path(order_file).read_text())
    Path(order["result"]).write_text(json.dumps(_result(order)))


def _result(order: dict[str, Any]) -> dict[str, Any]:
    import torch

    # One thread, as in the worker: how work is split over threads must not look like a change of torch.
    torch.set_num_threads(1)
    device = witness_device()
    about = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu",
    }
    specs = [CaseSpec(**{**fields, "problem": Problem(**fields["problem"])}) for fields in order["specs"]]
    store = _Folder(Path(order["arrays"]))
    try:
        verdict = judge_candidate(
            order["candidate"], specs, config=order["config"] or None, store=store, progress=_judged
        )
    except (UserError, MachineError) as error:
        return {**about, "refused": str(error), "users_fault": isinstance(error, UserError)}
    return {**about, "verdict": verdict.to_dict(), **_witnesses(specs, store, device)}


def _judged(case: Case) -> None:
    _say(f"{case.name}: {case.status.value}")


def _witnesses(specs: list[CaseSpec], store: _Folder, device: str) -> dict[str, Any]:
    """Digest of each witness's output by case; and for a backend that gave none on some case, torch's message."""
    digests: dict[str, dict[str, str]] = {}
    missing: dict[str, str] = {}
    for spec in specs:
        inputs = make_inputs(spec.problem, spec.inputs, spec.seed or 0)
        digests[spec.name] = {}
        for backend in (None, *BACKENDS[device]):
            name = OWN_CHOICE if backend is None else backend.value
            try:
                out = witness_output(
                    *(inputs.q, inputs.k, inputs.v),
                    backend=backend,
                    device=device,
                    **spec.problem.scoring_with(inputs.arrays),
                )
            except WitnessUnavailable as error:
                missing.setdefault(name, str(error))
                continue
            digests[spec.name][name] = store.put(out)
        _say(f"{spec.name}: witnesses")
    return {"witnesses": digests, "missing": missing}


def _say(line: str) -> None:
    print(line, file=sys.stdout, flush=True)
