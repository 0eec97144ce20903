"""Words computed by real GPUs, published with MATLAB-tensor-core: the simulator computes the same.

The sample (``published_words.py``) has eight sums of each GPU and format; ``python -m lab words`` compares all of
them.
"""

import os
import subprocess
import sys
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from lab.words import TARGETS, WordSet, computed, instructions_of, run, word_sets
from published_words import needs_words, published
from warpsan.errors import UserError
from warpsan.numerics.tensor_cores import rule_of

DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
needs_sample = needs_words("sample.json")


def values(text, dtype):
    return np.array([int(word, 16) for word in text.split()], f"u{dtype.itemsize}").view(dtype)


def sample():
    for each in (published("sample.json") or {"sets": []})["sets"]:
        factors = [values(each[name], DTYPES[each["kind"]]).reshape(8, -1) for name in "ab"]
        sums = [values(each[name], np.dtype(np.float32)) for name in "cd"]
        yield WordSet(each["gpu"], each["kind"], each["result"], *factors, *sums)


SAMPLE = list(sample())


@needs_sample
@pytest.mark.parametrize("gpu", TARGETS)
def test_the_simulator_computes_what_the_gpu_did(gpu):
    sets = [words for words in SAMPLE if words.gpu == gpu]
    assert sets
    for words in sets:
        for unit in instructions_of(words):
            np.testing.assert_array_equal(computed(words, unit), words.d, err_msg=f"{unit} {words.kind} {words.result}")


@needs_sample
def test_the_words_tell_architectures_apart():
    """A V100 and an H100 differ from an A100 on the same inputs: the sample can fail."""
    a100 = next(words for words in SAMPLE if (words.gpu, words.kind, words.result) == ("A100", "f16", "f32"))
    h100 = next(words for words in SAMPLE if (words.gpu, words.kind, words.result) == ("H100", "f16", "f32"))
    assert (computed(replace(h100, gpu="A100"), "mma") != h100.d).any()
    assert (computed(replace(a100, gpu="V100"), "wmma") != a100.d).any()


@needs_sample
def test_every_form_that_counts_as_exact_on_words_is_in_the_sample():
    for words in SAMPLE:
        for unit in instructions_of(words):
            depth = {4: 8, 2: 16, 1: 32}[words.a.dtype.itemsize]
            assert rule_of(TARGETS[words.gpu], unit, words.kind, depth, words.result).evidence == "words"


def write_checkout(folder, words):
    """A set in the authors' file format."""
    root = folder / "model_validation" / words.gpu / "fp16"
    root.mkdir(parents=True)
    for name, array in (("a", words.a), ("b", words.b)):
        text = "\n".join(f"{word:08x}" for word in array.astype(np.float32).view(np.uint32).reshape(-1))
        (root / f"{name}_{words.gpu}_fp16.txt").write_text(text)
    for name, array in (("c", words.c), ("d", words.d)):
        text = "\n".join(f"{word:032b}" for word in array.view(np.uint32))
        (root / f"{name}_{words.gpu}_fp32.txt").write_text(text)


@pytest.mark.parametrize("changed", [0, 3])
def test_the_campaign_counts_the_words_that_agree(tmp_path, changed):
    rng = np.random.default_rng(2)
    a, b = (rng.normal(size=(8, 8)).astype(np.float16) for _ in "ab")
    c = rng.normal(size=8).astype(np.float32)
    words = WordSet("A100", "f16", "f32", a, b, c, np.zeros(8, np.float32))
    d = computed(words, "mma")
    d[:changed] += 1
    write_checkout(tmp_path, replace(words, d=d))
    (read,) = word_sets(tmp_path)
    np.testing.assert_array_equal(read.a, words.a)
    lines = []
    result = run(tmp_path, lines.append)
    assert result.good == (changed == 0)
    assert [row["agree"] for row in result.content["sets"]] == [8 - changed] * 2
    assert len(lines) == 2


def test_a_folder_without_words_is_refused(tmp_path):
    with pytest.raises(UserError, match="must be a checkout of MATLAB-tensor-core"):
        run(tmp_path, print)


def test_without_the_words_their_tests_are_skipped_and_name_the_folder(tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "gpu_did or apart"]
    done = subprocess.run(
        command, env={**os.environ, "SDPALAB_WORDS": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"sample.json is not in {tmp_path}" in done.stdout
    assert f"{len(TARGETS) + 1} skipped" in done.stdout
