"""A small real kernel whose knob BUG plants one bug: for searches through the real gates. See ``BUGS``.

Blocks have two warps at least: a race within one warp is reported by the strict check alone, which is no gate.
"""

from __future__ import annotations

from pathlib import Path

from sdpalab import Config, CudaKernel, Launch, Numerics, Problem, StaticLimits

_TEXT = (Path(__file__).resolve().parents[4] / "examples" / "my_kernel.cu").read_text()
_TILE = "for (int key0 = 0; key0 < last; key0 += TILE) {"
_STORE = "__float2half_rn(o_row[d] * normaliser)"

BUGS = {
    "none": (),
    "skipped_tile": ((_TILE, "for (int key0 = 0; key0 < min(last, TILE); key0 += TILE) {"),),
    "nan": ((_TILE, "for (int key0 = 0; key0 < 0; key0 += TILE) {"),),
    "race": (("        __syncthreads();\n\n", "\n"),),
    "hang": ((_TILE, "while (seq_kv > 0) { __syncthreads(); }\n    " + _TILE),),
    "out_of_bounds": ((_STORE, "__float2half_rn(o_row[d] * normaliser); o[q_offset + d + 100000000] = __half(0)"),),
    "does_not_compile": ((_STORE, "__float2half_rn(o_row[d] * normaliser;"),),
}


def _edited(bug: str) -> str:
    text = _TEXT
    for old, new in BUGS[bug]:
        assert old in text, f"{bug}: {old!r} is no longer in the example"
        text = text.replace(old, new)
    return text


SOURCE = "".join(f"#{'el' * (n > 0)}if BUG == {n}\n{_edited(bug)}\n" for n, bug in enumerate(BUGS)) + "#endif\n"


def _plan(problem: Problem, config: Config) -> Launch:
    threads = config.int("THREADS")
    return Launch(
        grid=(-(-problem.seq_q // threads), problem.heads, problem.batch),
        block=(threads, 1, 1),
        args=("q", "k", "v", "o", problem.seq_q, problem.seq_kv, problem.group, problem.scale),
    )


def _supports(problem: Problem) -> str | None:
    return None if problem.dtype == "float16" and problem.head_dim <= 64 else "float16, head_dim at most 64"


TUNABLE = CudaKernel(
    name="tunable",
    source=SOURCE,
    entry="one_thread_a_row",
    plan=_plan,
    configs=({"THREADS": 64, "BUG": "none"},),
    supports=_supports,
    numerics=Numerics(accumulate="float32", probabilities="float32"),
    limits=StaticLimits(registers=255, reason="a row of Q and of O in registers"),
    macros=lambda problem, config: {"THREADS": config["THREADS"], "BUG": list(BUGS).index(str(config["BUG"]))},
    reject=lambda problem, config: "one size a bug" if config["BUG"] != "none" and config["THREADS"] != 64 else None,
    knobs={"THREADS": (64, 128), "BUG": tuple(BUGS)},
)
