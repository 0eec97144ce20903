"""A small real bundle: real attention computed in NumPy, judged by the judge's own functions, beside a real build.

And what a forger of it does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from standalone import verify

from sdpalab.compile import Build, build
from sdpalab.compile.gate import check
from sdpalab.compile.resources import resources
from sdpalab.evidence import BundleWriter, WrittenBundle, built_module
from sdpalab.evidence.store.files import ArrayStore
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.judge.rule.evaluate import evaluate
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64
from sdpalab.judge.rule.numerics import intended_output
from sdpalab.judge.unjudged import EntryCode, UnjudgedCode
from sdpalab.judge.verdict import Case, Verdict
from sdpalab.kernels.kernel import MISSION_LIMITS, Numerics
from sdpalab.kernels.plan import Launch, Module
from sdpalab.problem import Problem

Array = npt.NDArray[Any]

PROBLEMS = (
    Problem(1, 2, 33, 32),
    Problem(1, 4, 17, 64, kv_heads=2, seq_kv=40, causal=True),
    Problem(1, 2, 64, 64),
    Problem(1, 2, 64, 64),
)
"""Seeds are their positions; the third is one of the twelve contract cases."""

UNJUDGED = UnjudgedCode(("scale.cu:3-4",), "scale.cu:2:5", "if (factor > 2.0f) {", ("arguments",))

SOURCE = """
extern "C" __global__ void scale(float* x, float factor) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = factor * tile[63 - threadIdx.x];
}
"""
MODULE = Module("scale.cu", SOURCE, "scale")


def honest(problem: Problem, inputs: Inputs) -> Array:
    """A correct kernel: P rounded to 16 bits, everything else in float32 or better."""
    return intended_output(*inputs.qkv, **problem.scoring_with(inputs.arrays), numerics=Numerics())


def judged(
    problem: Problem,
    seed: int,
    store: ArrayStore,
    compute: Callable[..., Array | Mapping[str, Array]],
    ptx: str,
    *,
    kind: str = "normal",
    numerics: Numerics | None = None,
    lse: bool = False,
) -> Case:
    """One case, judged by the judge on what ``compute`` makes of the inputs, with their ``lse`` rounded to float32."""
    inputs = make_inputs(problem, kind, seed)
    out = compute(problem, inputs)
    about = {"device": "simulator sm_89", "config": "BLOCK_M=64", "numerics": asdict(numerics or Numerics())}
    named = out if isinstance(out, Mapping) else {"o": out}
    outputs = {f"{run}.{name}": each for run in ("first", "second") for name, each in named.items()}
    if lse:
        exact, _ = log_sum_exp_float64(
            *inputs.qkv, **problem.scoring_with(inputs.arrays), numerics=numerics or Numerics()
        )
        outputs["first.lse"] = exact.astype(np.float32)
    evidence = evaluate(problem, inputs, about, {"ptx_sha256": [ptx]}, outputs)
    digests = {name: store.put(array) for name, array in {**inputs.arrays, **evidence.arrays}.items()}
    return Case(
        f"{problem.label} {kind} seed {seed}",
        problem,
        kind,
        seed,
        evidence.status,
        evidence.reason,
        evidence.errors,
        evidence.limits,
        digests,
        evidence.run,
        evidence.judged.figures if evidence.judged is not None and problem.backward else {},
    )


@dataclass(frozen=True)
class Sample:
    """The bundle that the tests take apart, and its parts."""

    written: WrittenBundle
    built: Build
    verdicts: tuple[Verdict, ...]


def make_sample(out: Path) -> Sample:
    """Two attempts on the same inputs: an honest kernel that passes, and one with a 2 % wrong scale that does not.

    The former writes the log-sum-exp, too.
    """
    built = build(MODULE)
    used = resources(built, Launch((1, 1, 1), (64, 1, 1), ("x", 2.0)))
    module_record = built_module(MODULE, built, used, check(used, MISSION_LIMITS))

    def wrong(problem: Problem, inputs: Inputs) -> Array:
        return honest(problem, replace(inputs, q=(inputs.q.astype(np.float32) * 1.02).astype(inputs.q.dtype)))

    verdicts = []
    with BundleWriter(out, command=["sdpalab", "repro"]) as bundle:
        for name, compute in (("honest", honest), ("wrong-scale", wrong)):
            cases = tuple(
                judged(problem, seed, bundle.arrays, compute, built.ptx_sha256, lse=compute is honest)
                for seed, problem in enumerate(PROBLEMS)
            )
            code = (EntryCode("scale", 1, 3, 2, (UNJUDGED,)),) if compute is honest else ()
            verdict = Verdict(name, "BLOCK_M=64", "simulator sm_89", "quick", 0, cases, code=code)
            mine = {"mine.py": b"KERNEL = 1\n", "scale.cu": SOURCE.encode()} if compute is honest else None
            bundle.add(name, config="BLOCK_M=64", idea="a test", builds=[module_record], verdict=verdict, sources=mine)
            verdicts.append(verdict)
        bundle.add("never", config="", verdict=None, failure="it does not compile")
        return Sample(bundle.write(), built, tuple(verdicts))


def seal(folder: Path) -> None:
    """Recompute every digest of the manifest, as an expert attacker would."""
    manifest = json.loads((folder / "manifest.yaml").read_text())
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    contents = {name: (folder / name).read_bytes() for name in names if name != "manifest.yaml"}
    manifest["files"] = {n: {"sha256": hashlib.sha256(c).hexdigest(), "size": len(c)} for n, c in contents.items()}
    manifest["digest"] = verify.manifest_digest(manifest)
    (folder / "manifest.yaml").write_bytes(verify.canonical(manifest))


def forge(folder: Path, edit: Callable[[dict[str, Any]], None], record: str = "records/00-honest.json") -> None:
    """Edit a record and make every digest fit again."""
    value = json.loads((folder / record).read_text())
    edit(value)
    (folder / record).write_bytes(verify.canonical(value))
    seal(folder)
