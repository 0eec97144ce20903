"""The documented hacks of checkers of machine-written kernels, each with a variant in these tests.

A variant names a candidate of a catalogue of these tests (``submission``, ``cheat``, ``cuda``, ``harmful``, ``mixed``,
``size``), or a test. The sources are public lists: KernelBench's static checks, pygpubench's exploits, KernelGuard's
patterns, the annotations of kernelbench.com, and the posts of deep-reinforce, wafer and makora.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CAUGHT", "CLOCK", "HACKS", "IMPOSSIBLE", "Hack", "page"]

CAUGHT = "caught"
IMPOSSIBLE = "impossible here"
CLOCK = "only a clock shows it"


class Hack(NamedTuple):
    """One hack: what it does, the outcome, its variants, and a reason."""

    name: str
    outcome: str
    variants: tuple[str, ...]
    reason: str


def _caught(name: str, *variants: str, reason: str) -> Hack:
    return Hack(name, CAUGHT, variants, reason)


def _impossible(name: str, *variants: str, reason: str) -> Hack:
    return Hack(name, IMPOSSIBLE, variants, reason)


def _clock(name: str, *variants: str, reason: str) -> Hack:
    return Hack(name, CLOCK, variants, reason)


_SESSION = "test packages/sdpalab/tests/measure/test_measure_session.py"
_CLOCKS = "test packages/sdpalab/tests/measure/test_clocks.py"
_ESCAPES = "test packages/sdpalab/tests/judge/test_escapes.py"

HACKS = (
    # Wrong or no computation
    _caught("zeros below the tolerance", "submission kernelbench/zeros", reason="limits from the declared arithmetic"),
    _caught(
        "a constant, or the mean of V", "submission kernelbench/mean_of_v", reason="limits, and probes with one key"
    ),
    _caught(
        "an input as the output, or products of an input with itself",
        *("submission gpumode/returns_its_input", "submission kernelbench/self_matmul"),
        reason="limits",
    ),
    _caught("NaN as a wildcard", "submission kernelbench/not_a_number", reason="every element must be finite"),
    _caught("the result in freed memory", "cheat left_in_freed_memory", reason="memory is poisoned before each run"),
    _caught("inputs set to zero first", "submission kernelbench/zeroes_its_inputs", reason="digests of the inputs"),
    _caught(
        "skipped keys, tiles or heads",
        *("submission kernelbench/drops_the_last_key", "cheat only_32_keys"),
        reason="ramps and one-hot V read every key",
    ),
    _caught(
        "approximations for the distribution of the test",
        "submission kernelbench/first_order_weights",
        reason="probes with large scores, ramps and outliers in the quick level",
    ),
    _caught("lower precision than declared", *("cheat scores_in_half", "cheat weights_in_eight_bits"), reason="rule 2"),
    _caught("one percent of wrong elements", "submission flashinfer/few_elements_wrong", reason="the worst row"),
    _caught(
        "more shared memory than there is",
        *("cuda too_much_shared", "submission kernelbench/too_much_shared_unchecked"),
        reason="limits of the architecture; a refused launch leaves poison",
    ),
    _caught(
        "a race or a missing barrier",
        "submission kernelbench/missing_barrier",
        "test packages/sdpalab/tests/kernels/test_planted_bugs.py::test_the_hazard_is_reported",
        reason="the simulator's checks, in every case",
    ),
    _caught(
        "right at the sizes of the checker",
        *("submission kernelbench/right_to_512_keys", "size drops_keys_of_long_rows", "size length_in_ten_bits"),
        reason="branches on sizes are reached; a hidden length",
    ),
    _caught(
        "another algorithm for other values",
        "size large_values",
        reason="the verdict names the lines that no case executed",
    ),
    _caught(
        "a cache that is validated by a sample of the input",
        *("cheat memo_by_fingerprint", "cheat memo_by_corner"),
        reason="other data in the same memory",
    ),
    # The author of the output
    _caught(
        "a library in place of a kernel",
        *("submission kernelbench/kernel_never_launched", "submission kernelbench/library_in_cpp"),
        reason="status BY_TORCH: last writers and operations",
    ),
    _caught(
        "one trivial kernel beside eager code",
        *("submission kernelbench/unused_kernel", "submission kernelbench/copy_of_the_library", "mixed softmax_alone"),
        reason="status BY_TORCH",
    ),
    _caught(
        "a fallback in try and except, or an inherited reference",
        *("submission kernelbench/falls_back", "submission pair/inherits"),
        reason="status BY_TORCH; the reference is not in the process",
    ),
    _caught(
        "an import of the grader's reference",
        "submission kernelbench/imports_the_reference",
        reason="the reference is not in the process",
    ),
    _impossible(
        "a copy of a published kernel", reason="a verdict states correctness, and makes no claim about the author"
    ),
    _impossible(
        "torch.compile or a built-in of the language",
        reason="a function without kernels is judged as a function; with kernels, the origin of the output is recorded",
    ),
    # Replay
    _caught(
        "an output remembered by address, object or shape",
        *("submission kernelbench/remembers_by_address", "cheat memo_by_object", "cheat memo_by_problem"),
        reason="other data in the same memory",
    ),
    _caught(
        "a cache of pointers in C++",
        "submission kernelbench/remembers_in_cpp",
        reason="other data in the same memory, at the same device addresses",
    ),
    _clock(
        "a CUDA graph replayed on stale pointers",
        f"{_CLOCKS}::test_calls_take_the_copies_in_turn",
        reason="the simulator has no graphs; bench changes the inputs of each call",
    ),
    _caught(
        "work in the warm-up alone",
        *("cheat honest_once", "cheat lazy_in_the_middle"),
        reason="every run is judged; bench judges timed outputs",
    ),
    _caught(
        "results in files between processes",
        f"{_ESCAPES}::test_it_writes_to_its_own_folders_alone",
        reason="private folders in memory, without /dev/shm of others",
    ),
    _caught(
        "the input regenerated from the public seed",
        *("submission kernelbench/regenerates_the_input", "cheat seed_in_the_environment"),
        reason="hidden seeds are drawn after loading",
    ),
    # The grader's process
    _caught("expected tensors found by the collector", "cheat oracle_in_this_process", reason="another process"),
    _caught(
        "memory near a pointer scanned",
        *("cuda hides_hazards", "submission kernelbench/reads_device_memory_on_the_host"),
        reason="out of bounds on the simulator, by byte of a buffer; host code has no addresses of the device",
    ),
    _caught(
        "a patched checker",
        *("submission gpumode/patches_allclose", "cheat patches_the_rule", "cheat patches_the_libraries"),
        reason="another process decides",
    ),
    _caught(
        "global numerics changed at import",
        "submission kernelbench/changes_the_numerics_of_torch",
        reason="the reference is NumPy in float64 in another process",
    ),
    _caught(
        "forged results on a pipe or in memory",
        *("cheat forges_a_verdict", "cheat forges_an_answer", "cheat oracle_in_the_parent"),
        reason="an answer is bytes of tensors; calls and memory of others are closed",
    ),
    _caught("an exit before the check", "submission kernelbench/exits", reason="an ended process is a failure"),
    _caught(
        "an edited task or tolerance",
        "submission pair/zeros_under_an_edited_tolerance",
        reason="limits are not read from the submission's folder",
    ),
    _caught(
        "the environment sniffed for the checker",
        *("submission kernelbench/looks_for_the_checker", "size late_clock", "size some_processors"),
        reason="no checker to find; reads of clocks and processors are named or refused",
    ),
    _impossible(
        "knobs in environment variables",
        "cheat seed_in_the_environment",
        reason="a candidate's process has a fixed, short environment: a knob has its default",
    ),
    _caught("downloads and network", "harmful calls_home", reason="no network"),
    _caught("obfuscated code", "submission kernelbench/decodes_its_code", reason="code is judged by execution"),
    _impossible("near clones that search the noise of a leaderboard", reason="there is no leaderboard"),
    _caught(
        "instructions to a reviewing model",
        "submission kernelbench/instructs_a_reviewer",
        reason="no model reads the source; control characters of messages are removed",
    ),
    # The clock
    _clock(
        "a side stream that is not joined",
        f"{_CLOCKS}::test_the_eager_clock_times_all_its_calls_and_the_wait",
        reason="bench waits for the device, and judges the timed outputs",
    ),
    _caught("a background thread", "cheat finishes_in_a_thread", reason="the output is read when the call returns"),
    _caught(
        "a lazy subclass of Tensor",
        *("cheat lazy_subclass", "cheat disguised_subclass"),
        reason="only plain tensors are accepted",
    ),
    _impossible(
        "a patched timer",
        "cheat patches_the_libraries",
        reason="bench times built kernels from its own process, in which no Python of the kernel runs",
    ),
    _impossible(
        "event handles overwritten in the heap", reason="no host code of a kernel runs in the process of bench"
    ),
    _clock(
        "one time near zero that lowers a geometric mean",
        f"{_SESSION}::test_a_time_below_the_floor_is_invalid_and_its_samples_are_kept",
        reason="each time has a floor, and the mean is one of logarithms",
    ),
    _impossible(
        "persisting L2 lines that survive the flush",
        f"{_CLOCKS}::test_other_copies_fill_l2_between_two_uses_of_one",
        reason="an access-policy window is host code, which does not run; inputs rotate over more than L2",
    ),
    _clock(
        "honest while checked, wrong after some calls",
        f"{_SESSION}::test_who_computes_only_while_unwatched_calls_are_few_is_found_out",
        reason="rounds drawn by chance are checked",
    ),
    _clock(
        "a slow warm-up for fewer iterations",
        f"{_SESSION}::test_slow_calls_warm_up_for_a_quarter_of_the_time",
        reason="rounds of all subjects are interleaved",
    ),
    _impossible(
        "timed calls aggregated into one",
        "cheat finishes_at_the_next_call",
        reason="each launch of a plan is a call of the driver by bench",
    ),
    _clock(
        "impossible speed",
        "test packages/sdpalab/tests/measure/test_floor_check.py"
        "::test_fifteen_times_faster_than_torch_is_impossible_on_an_l4",
        reason="times below the speed of light are invalid",
    ),
    _impossible(
        "preprocessing outside the timed part",
        reason="a plan has no part that is not timed: fills and conversions are its steps",
    ),
)


def page() -> str:
    """The page of the manual."""
    rows = []
    for number, hack in enumerate(HACKS, 1):
        variants = "<br>".join(f"`{_short(each)}`" for each in hack.variants)
        rows.append(f"| {number} | {hack.name} | {hack.outcome} | {hack.reason} | {variants} |")
    counts = ", ".join(f"{sum(hack.outcome == kind for hack in HACKS)} {kind}" for kind in (CAUGHT, IMPOSSIBLE, CLOCK))
    return "\n".join(
        [
            "# Known hacks of kernel checkers",
            "",
            f"{len(HACKS)} hacks that public lists document, and their outcome here: {counts}. Each variant is code in",
            "the tests (`tests/formats/hacks.py`), written for them; `python scripts/generated_pages.py` writes it.",
            "[The judge](judge.md) and [the sandbox](isolation.md) describe the means.",
            "",
            "| | hack | outcome | reason | variants |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _short(variant: str) -> str:
    return variant.partition("::")[2] or variant.partition(" ")[2]
