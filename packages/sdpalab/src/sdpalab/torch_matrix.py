"""One candidate with several versions of torch: did the kernel change, or the reference?

pip installs each version into its own folder of the cache. A fresh process has that folder first on ``sys.path``, and
every other package from this environment. It judges the candidate, and computes torch's attention by each backend and
by torch's own choice. The first version that ran is the base of the comparison:

- the kernel changed if any bit of its output differs: its inputs have the same bits;
- the reference changed if the error of one of torch's attentions against float64 changed by more than rounding: over
  all elements by more than a factor sqrt(2), or in the worst row by more than 2. Errors below half a unit roundoff u,
  or u for a row, count as that much.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.compile import Cache
from sdpalab.errors import MachineError, UserError
from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.rule.limits import UNIT_ROUNDOFF, measure
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.torch_backends import BACKENDS, BackendUnavailable, backend_device, backend_output
from sdpalab.judge.verdict import Errors, Status, keeps_original_contract
from warpsan.build import key_of
from warpsan.sanitize import Progress

__all__ = ["CHOICE", "KERNEL", "CannotInstall", "conclude", "install", "run_matrix", "versions_for"]

KERNEL, CHOICE = "kernel", "own choice"
"""Names of two outputs of a version: the candidate's, and that of the backend that torch chooses."""

Row = dict[str, Any]

_VERSION = re.compile(r"(\d+)(?:\.(\d+))?(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-z0-9.]+)?")
_FOR_NUMPY_1 = ("numpy>=1.26,<2", "ml_dtypes")
"""Packages besides a torch older than 2.3, which does not accept arrays of NumPy 2."""
_SAME = ("cuda-", "nvidia-cuda-")
"""Prefixes of the compiler's packages; another version would compile another kernel."""
_BOOT = "import sys; sys.path[:0] = sys.argv[2:]; from sdpalab.torch_matrix import judge_here; judge_here(sys.argv[1])"


class CannotInstall(Exception):
    """No such version of torch; the message has the reason in one sentence."""


def versions_for(given: Sequence[str]) -> list[str]:
    """The distinct versions in order; a single one is supplemented by that of this environment.

    Raises
    ------
    UserError
        Without a version, or if one is invalid or older than 2.0, the first with scaled_dot_product_attention.
    """
    if not given:
        raise UserError("--torch takes a version such as 2.5.1 and may be repeated: name at least one")
    for text in given:
        match = _VERSION.fullmatch(text)
        if match is None:
            raise UserError(f"--torch takes a version such as 2.5.1 or 2.5.1+cpu, not {text!r}")
        if int(match[1]) < 2:
            raise UserError(f"--torch {text}: scaled_dot_product_attention is in torch since 2.0")
    versions = list(dict.fromkeys(given))
    return versions if len(versions) > 1 or _is_installed(versions[0]) else [*versions, metadata.version("torch")]


def _is_installed(version: str) -> bool:
    here = metadata.version("torch")
    return version in (here, here.partition("+")[0])


def install(version: str, packages: Sequence[str] = (), progress: Progress = lambda text: None) -> str:
    """Folder with ``torch==version`` and ``packages``, from the cache or created now; empty for the installed torch.

    Raises
    ------
    CannotInstall
        If pip fails.
    """
    if not packages and _is_installed(version):
        return ""
    old = tuple(map(int, re.findall(r"\d+", f"{version}.0")[:2])) < (2, 3)
    wanted = (f"torch=={version}", *(_FOR_NUMPY_1 if old else ()), *packages)
    installed = {each.name.lower().replace("_", "-"): each.version for each in metadata.distributions()}
    same = sorted(f"{name}=={installed[name]}" for name in installed if name.startswith(_SAME))
    folder = Cache().root / "torch" / f"{version}-{key_of(sys.version, *wanted, *same)[:12]}"
    if folder.is_dir():
        return str(folder)
    progress(f"torch {version}: installing (gigabytes if it is a CUDA build)")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as draft:
            constraints, target = Path(draft, "constraints.txt"), Path(draft, "packages")
            constraints.write_text("\n".join(same))
            pip = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
            command = [*pip, "--target", str(target), "-c", str(constraints), *wanted]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            if done.returncode:
                errors = re.findall(r"^ERROR: (?!ResolutionImpossible)(.+)", done.stderr, re.MULTILINE)
                raise CannotInstall(f"pip: {[f'exit code {done.returncode}', *errors][-1]}"[:500])
            with suppress(FileExistsError):  # another process created it meanwhile
                os.rename(target, folder)
    except OSError as error:
        raise CannotInstall(f"{folder.parent} cannot be written: {error.strerror or error}") from None
    return str(folder)


def run_matrix(
    candidate: str,
    versions: Sequence[str],
    specs: Sequence[CaseSpec],
    *,
    config: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    progress: Progress = lambda text: None,
) -> list[Row]:
    """Judge ``candidate`` with each of :func:`versions_for`, on cases with public seeds; one row per version, in order.

    A row has ``asked``, ``torch``, ``reason`` (why the verdict is missing; empty with a verdict), and with a verdict
    also ``verdict``, ``outputs`` (by name and case: digest and error against float64), ``contract_passed`` and
    ``missing`` (torch's message by backend).

    Raises
    ------
    UserError
        If a version is invalid, the candidate does not load here, or these cases do not suit it.
    MachineError
        If no version ran.
    """
    chosen = versions_for(versions)
    progress("trying the candidate here")
    judge_candidate(candidate, specs[:1], config=config)  # reports bad input before downloads of gigabytes
    order = pickle.dumps((candidate, config, specs))
    rows = [_run(version, packages, order, progress) for version in chosen]
    if all(row["reason"] for row in rows):
        raise MachineError("; ".join(f"torch {row['asked']}: {row['reason']}" for row in rows))
    return rows


def _run(version: str, packages: Sequence[str], order: bytes, progress: Progress) -> Row:
    """Run one version in a process of its own."""
    row: Row = {"asked": version, "torch": None, "reason": ""}
    try:
        folder = install(version, packages, progress)
    except CannotInstall as error:
        return row | {"reason": str(error)}
    progress(f"torch {version}: judging")
    path = [entry or str(Path.cwd()) for entry in ([folder] if folder else []) + sys.path]
    with tempfile.TemporaryDirectory(prefix="sdpalab-torch-") as name:
        target = Path(name, "row.json")
        done = subprocess.run([sys.executable, "-I", "-c", _BOOT, str(target), *path], input=order, capture_output=True)
        if not target.exists():
            lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            return row | {"reason": f"the judging process failed: {lines[-1]}"}
        result: Row = json.loads(target.read_text())
        return row | result


def judge_here(target: str) -> None:
    """In a version's process: execute the order on standard input, and write a row of :func:`run_matrix` as JSON."""
    import torch

    torch.set_num_threads(1)  # as in the judge's worker: the number of threads changes the order of sums
    candidate, config, specs = pickle.load(sys.stdin.buffer)
    row: Row = {"torch": str(torch.__version__)}
    store = _Arrays()
    try:
        verdict = judge_candidate(candidate, specs, config=config or None, store=store)
        if verdict.status is Status.INFRA_ERROR:
            row["reason"] = verdict.reason  # no result for the kernel, for example because this torch has no reference
        else:
            outs = {case.name: store[digest] for case in verdict.cases if (digest := case.digests.get("o", ""))}
            row |= {"verdict": verdict.to_dict(), **_outputs(specs, outs, store)}
    except (UserError, MachineError) as error:
        row["reason"] = str(error)
    Path(target).write_text(json.dumps(row))


class _Arrays(dict[str, npt.NDArray[Any]]):
    """Arrays by the sha256 of their bytes."""

    def put(self, array: npt.NDArray[Any]) -> str:
        """Store ``array`` and return its digest."""
        digest = sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        self[digest] = array
        return digest


def _outputs(specs: Sequence[CaseSpec], outs: Mapping[str, npt.NDArray[Any]], store: _Arrays) -> Row:
    """Digests and errors of the candidate's outputs and of torch's on the same inputs."""
    outputs: dict[str, dict[str, Row]] = {}
    missing: dict[str, str] = {}
    within = 0
    device = backend_device()
    for spec in specs:
        inputs, dtype = make_inputs(spec.problem, spec.inputs, spec.seed or 0), spec.problem.dtype
        scoring = spec.problem.scoring_with(inputs.arrays)
        reference = attention_float64(*inputs.qkv, **scoring)
        arrays = {KERNEL: outs[spec.name]} if spec.name in outs else {}
        for backend in (None, *BACKENDS[device]):
            name = CHOICE if backend is None else backend.value
            try:
                arrays[name] = backend_output(inputs.q, inputs.k, inputs.v, backend=backend, device=device, **scoring)
            except BackendUnavailable as error:
                missing.setdefault(name, str(error))
        for name, out in arrays.items():
            errors = _figures(measure(out, reference, dtype))
            outputs.setdefault(name, {})[spec.name] = {"digest": store.put(out), "dtype": dtype, "errors": errors}
        if {KERNEL, CHOICE} <= arrays.keys() and np.isfinite(arrays[CHOICE].astype(np.float64)).all():
            within += keeps_original_contract(measure(arrays[KERNEL], arrays[CHOICE].astype(np.float64), dtype))
    return {"outputs": outputs, "contract_passed": within, "missing": missing}


def _figures(errors: Errors) -> dict[str, float] | None:
    """Errors as JSON; None if an element is not finite."""
    names = ("rel_l2", "max_abs", "worst_row_rel_l2")
    return None if errors.not_finite else {name: getattr(errors, name) for name in names}


def conclude(rows: Sequence[Row]) -> Row:
    """The ``base``, the ``conclusion`` and its ``sentence``; adds ``changes`` and ``own_choice`` to the rows that ran.

    ``changes`` has for each output its change from the base (same bits, rounding, changed, not compared), the number of
    cases that differ, and its largest error over the cases (None: not finite). ``own_choice`` is the backend with the
    same bits as torch's own choice.
    """
    ran = [row for row in rows if not row["reason"]]
    base = ran[0]
    for row in ran:
        mine, theirs = row["outputs"], base["outputs"]
        row["changes"] = {name: _change(name, mine.get(name, {}), theirs.get(name, {})) for name in {**theirs, **mine}}
        digests = {name: [each["digest"] for each in cases.values()] for name, cases in mine.items()}
        same = (name for name in digests if name not in (KERNEL, CHOICE) and digests[name] == digests.get(CHOICE))
        row["own_choice"] = next(same, "")
    if len(ran) == 1:
        sentence = f"nothing was compared: torch {base['torch']} is the only version that ran"
        return {"base": base["torch"], "conclusion": "nothing was compared", "sentence": sentence}
    every = [(row, name, change["change"]) for row in ran for name, change in row["changes"].items()]
    kernel = [(row, name) for row, name, change in every if name == KERNEL and change != "same bits"]
    torchs = [(row, name) for row, name, change in every if name != KERNEL and change == "changed"]
    who = " and ".join([*(["the kernel"] if kernel else []), *(["the reference"] if torchs else [])])
    conclusion = f"{who} changed" if who else "neither the kernel nor the reference changed"
    parts = (
        _worst(kernel, base) if kernel else "the kernel's output is the same bits with every version",
        _worst(torchs, base) if torchs else "no attention of torch's changed by more than rounding",
    )
    return {"base": base["torch"], "conclusion": conclusion, "sentence": f"{conclusion}: {'; '.join(parts)}"}


def _change(name: str, mine: Mapping[str, Row], theirs: Mapping[str, Row]) -> Row:
    """The change of one output from the base; a case without the output counts as changed, as backends come and go."""
    cases = {**theirs, **mine}
    differ = [case for case in cases if mine.get(case, {}).get("digest") != theirs.get(case, {}).get("digest")]
    errors = [each["errors"] for each in mine.values()]
    worst = None if not errors or None in errors else max(each["rel_l2"] for each in errors)
    if name != KERNEL and not (mine and theirs):
        return {"change": "not compared", "cases": 0, "rel_l2": worst}
    rounding = all(case in mine and case in theirs and _is_rounding(mine[case], theirs[case]) for case in differ)
    change = "same bits" if not differ else "rounding" if rounding else "changed"
    return {"change": change, "cases": len(differ), "rel_l2": worst}


def _is_rounding(mine: Row, theirs: Row) -> bool:
    if mine["errors"] is None or theirs["errors"] is None:
        return False
    u = UNIT_ROUNDOFF[mine["dtype"]]
    for name, most, least in (("rel_l2", math.sqrt(2.0), u / 2), ("worst_row_rel_l2", 2.0, u)):
        low, high = sorted(max(each["errors"][name], least) for each in (mine, theirs))
        if high > most * low:
            return False
    return True


def _worst(changed: Sequence[tuple[Row, str]], base: Row) -> str:
    """The change with the largest error in words; at equal errors, a backend precedes torch's own choice of it."""

    def size(row: Row, name: str) -> tuple[float, bool]:
        error = row["changes"][name]["rel_l2"]
        return math.inf if error is None else error, name != CHOICE

    row, name = max(changed, key=lambda pair: size(*pair))
    change = row["changes"][name]
    output = "the kernel's output" if name == KERNEL else f"torch's {name}"
    more = "no more than" if change["change"] == "rounding" else "more than"
    errors = [each["changes"].get(name, {}).get("rel_l2") for each in (base, row)]
    before, after = ("none that is finite" if each is None else f"{each:.2e}" for each in errors)
    text = f"with torch {row['torch']} {output} differs from that with {base['torch']} in {change['cases']} of "
    text += f"{len(row['verdict']['cases'])} cases, {more} rounding explains; its error against float64 (relative L2) "
    text += f"went from {before} to {after}"
    if name != KERNEL and len({base["own_choice"], row["own_choice"], ""}) == 3:
        text += f", and its own choice from {base['own_choice']} to {row['own_choice']}"
    return text
