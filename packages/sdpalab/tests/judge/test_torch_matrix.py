"""The matrix of torch versions: its conclusions on made-up rows, and real runs with stub wheels of torch. No network.

A stub wheel's ``torch`` is this environment's own under another version, changed where a test says so.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from sdpalab.cli import main
from sdpalab.errors import UserError
from sdpalab.torch_matrix import CHOICE, KERNEL, CannotInstall, conclude, install, versions_for

HERE = metadata.version("torch")
U = 2.0**-11
Output = tuple[str, float | None, float | None]
"""Bits, relative L2 error and that of the worst row; None where it is not finite."""

GOOD: Output = ("good", 0.3 * U, 0.4 * U)


def row(torch: str, choice: str = "flash", **outputs: Output) -> dict[str, Any]:
    """A version in which the kernel and torch's backends are good, or as given, in both of two cases."""
    given = {KERNEL: GOOD, "flash": ("flash", 0.5 * U, 0.6 * U), "math": GOOD} | outputs
    given[CHOICE] = given[choice]
    cases: dict[str, Any] = {}
    for name, (bits, rel_l2, worst) in given.items():
        errors = None if rel_l2 is None else {"rel_l2": rel_l2, "max_abs": 0.0, "worst_row_rel_l2": worst}
        cases[name] = {case: {"digest": bits + case, "dtype": "float16", "errors": errors} for case in ("a", "b")}
    verdict = {"cases": [{}, {}]}
    return {"asked": torch, "torch": torch, "reason": "", "verdict": verdict, "outputs": cases}


@pytest.mark.parametrize(
    ("changed", "conclusion", "says"),
    [
        ({}, "neither the kernel nor the reference changed", "same bits with every version; no attention of torch's"),
        ({"math": ("b", 0.7 * U, 1.9 * U)}, "neither the kernel nor the reference changed", "no attention of torch's"),
        ({"cudnn": GOOD}, "neither the kernel nor the reference changed", "no attention of torch's"),
        ({"math": ("more", 0.8 * U, U)}, "the reference changed", "torch's math differs"),
        ({"math": ("row", 0.4 * U, 2.1 * U)}, "the reference changed", "torch's math differs"),
        ({"math": ("nan", None, None)}, "the reference changed", "torch's math differs"),
        ({KERNEL: ("b", 0.4 * U, U)}, "the kernel changed", "in 2 of 2 cases, no more than rounding explains"),
        ({KERNEL: ("b", 9 * U, U)}, "the kernel changed", "in 2 of 2 cases, more than rounding explains"),
        ({KERNEL: ("b", U, U), "flash": ("b", 9 * U, U)}, "the kernel and the reference changed", "torch's flash"),
    ],
)
def test_a_change_is_the_kernels_or_the_references(changed: dict[str, Output], conclusion: str, says: str) -> None:
    """The order of the versions makes no difference: a smaller error is a change, too."""
    for rows in ([row("2.5"), row("2.6", **changed)], [row("2.5", **changed), row("2.6")]):
        matrix = conclude(rows)
        assert matrix["conclusion"] == conclusion
        assert matrix["sentence"].startswith(f"{conclusion}: ")
        assert says in matrix["sentence"]
        json.dumps([matrix, rows], allow_nan=False)


def test_each_output_has_the_kind_of_its_change() -> None:
    rows = [row("2.5"), row("2.6", math=("other", 0.7 * U, 1.9 * U), cudnn=GOOD)]
    conclude(rows)
    kinds = {name: change["change"] for name, change in rows[1]["changes"].items()}
    same = dict.fromkeys((KERNEL, "flash", CHOICE), "same bits")
    assert kinds == {**same, "math": "rounding", "cudnn": "not compared"}
    assert rows[1]["changes"]["cudnn"] == {"change": "not compared", "cases": 0, "rel_l2": 0.3 * U}


def test_a_kernel_that_gives_nothing_in_one_version_has_changed() -> None:
    rows = [row("2.5"), row("2.6")]
    del rows[1]["outputs"][KERNEL]
    assert conclude(rows)["conclusion"] == "the kernel changed"


def test_torchs_own_choice_of_another_backend_is_a_change_of_the_reference() -> None:
    worse = ("worse", 4 * U, 4 * U)
    rows = [row("2.5", flash=worse, choice="math"), row("2.6", flash=worse)]
    matrix = conclude(rows)
    assert [each["own_choice"] for each in rows] == ["math", "flash"]
    assert matrix["conclusion"] == "the reference changed"
    assert matrix["sentence"].endswith(", and its own choice from math to flash")


def test_one_version_alone_is_not_compared() -> None:
    missing = {"asked": "2.4", "torch": None, "reason": "no wheel"}
    assert conclude([missing, row("2.5")])["conclusion"] == "nothing was compared"


def test_versions() -> None:
    good = ["2.5.1", "2.5", "2.5.1+cpu", "2.6.0rc1", "2.10.0.dev20261001+cu130"]
    assert versions_for([*good, "2.5"]) == good
    assert versions_for(["2.90.0"]) == ["2.90.0", HERE]
    assert versions_for([HERE]) == [HERE]
    assert versions_for(["2.90.0", "2.91.0"]) == ["2.90.0", "2.91.0"]


@pytest.mark.parametrize("text", ["", "latest", ">=2.5", "2.5.1 ", "2.5.1+", "v2.5", "-2", "2.5;rm", "1.13.1"])
def test_no_version_with_attention(text: str) -> None:
    with pytest.raises(UserError, match=r"takes a version such as|since 2\.0"):
        versions_for([text])


AS_HERE = """
import os, sys
sys.path.remove(os.path.dirname(os.path.dirname(__file__)))
del sys.modules["torch"]
import torch
torch.__version__ = {version!r}
"""

Wheels = Callable[..., None]


@pytest.fixture
def wheels(tmp_path: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Wheels:
    """An empty package index, the only one that pip has, and what puts a wheel of one ``__init__.py`` into it."""
    index = tmp_path / "index"
    index.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))

    def add(version: str, source: str = "", *, name: str = "torch", requires: str = "") -> None:
        info, tag = f"{name}-{version}.dist-info", f"{name}-{version}-py3-none-any"
        fields = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        files = {
            f"{name}/__init__.py": source,
            f"{info}/METADATA": "\n".join([*fields, *([f"Requires-Dist: {requires}"] if requires else []), ""]),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": "",
        }
        with zipfile.ZipFile(index / f"{tag}.whl", "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)

    return add


@pytest.mark.slow
def test_a_version_is_installed_once(wheels: Wheels, fresh_cache: Path) -> None:
    wheels("2.90.0")
    messages: list[str] = []
    folder = install("2.90.0", progress=messages.append)
    assert (Path(folder) / "torch").is_dir()
    assert install("2.90.0", progress=messages.append) == folder
    assert len(messages) == 1
    assert [path.name for path in (fresh_cache / "torch").iterdir()] == [Path(folder).name]
    assert install(HERE) == install(HERE.partition("+")[0]) == ""


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        ("other==1", "No matching distribution found for other==1"),
        ("cuda-bindings==1", "Cannot install .*torch==2.90.0"),
    ],
)
def test_a_torch_that_cannot_be_installed_leaves_nothing(
    wheels: Wheels, fresh_cache: Path, requires: str, reason: str
) -> None:
    wheels("2.90.0", requires=requires)
    wheels("1", name="cuda_bindings")
    with pytest.raises(CannotInstall, match=reason):
        install("2.90.0")
    assert list((fresh_cache / "torch").iterdir()) == []


CANDIDATE = """
import torch

def float32(q, k, v, *, scale, causal):
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    return (torch.softmax(scores, -1) @ v.float()).to(q.dtype)

def zeros(q, k, v, *, scale, causal):
    return torch.zeros_like(q)
"""

DRIFTED = """
attention = torch.nn.functional.scaled_dot_product_attention
torch.nn.functional.scaled_dot_product_attention = lambda *args, **more: attention(*args, **more) * 1.002
"""

SMALL = ("--shape", "1,1,17,32")


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CANDIDATE)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "more", "conclusion", "code", "within_contract"),
    [
        ("float32", DRIFTED, "the reference changed", 0, [True, False]),
        ("zeros", "", "neither the kernel nor the reference changed", 1, [False, False]),
    ],
)
def test_torch_broke_and_the_kernel_did_not(
    wheels: Wheels,
    candidate: Path,
    capsys: pytest.CaptureFixture[str],
    kernel: str,
    more: str,
    conclusion: str,
    code: int,
    within_contract: list[bool],
) -> None:
    wheels("2.90.0", AS_HERE.format(version="2.90.0") + more)
    wheels("2.92.0", "raise ImportError('libcudart.so.13 is not there')")
    target = candidate.parent / "matrix.json"
    asked = ("--torch", HERE, "--torch", "2.90.0", "--torch", "2.91.0", "--torch", "2.92.0", "--json", str(target))
    assert main(["torch-matrix", f"{candidate}:{kernel}", *SMALL, *asked]) == code
    record = json.loads(target.read_text())
    assert record["conclusion"] == conclusion
    *ran, missing, broken = record["rows"]
    assert [each["torch"] for each in ran] == [HERE, "2.90.0"]
    assert ran[0]["outputs"][KERNEL] == ran[1]["outputs"][KERNEL]
    assert len(ran[0]["outputs"][KERNEL]) >= 4
    assert [each["verdict"]["passed"] for each in ran] == [code == 0] * 2
    # A kernel that is right and the same passes the original contract, then fails it.
    assert [each["contract_passed"] > 10 for each in ran] == within_contract
    assert missing["torch"] is broken["torch"] is None
    assert "ImportError: libcudart.so.13 is not there" in broken["reason"]
    printed = capsys.readouterr().out
    assert record["sentence"] in printed
    assert f"torch 2.91.0: {missing['reason']}" in printed
    assert "No matching distribution" in missing["reason"]


@pytest.mark.slow
def test_nothing_that_can_be_installed_is_exit_3(
    wheels: Wheels, candidate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--torch", "2.90.0", "--torch", "2.91.0")
    assert main(["torch-matrix", f"{candidate}:float32", *asked, *SMALL]) == 3
    (line,) = capsys.readouterr().err.strip().splitlines()
    for version in ("2.90.0", "2.91.0"):
        assert f"torch {version}: pip: No matching distribution" in line


BAD_INPUT = {
    "no version": (("scalar",), "name at least one"),
    "not a version": (("scalar", "--torch", "latest"), "latest"),
    "unknown kernel": (("flahs", "--torch", "2.90.0"), "flash"),
    "no such file": (("nowhere.py", "--torch", "2.90.0"), "does not exist"),
    "a shape that the kernel has not": (("scalar", "--torch", "2.90.0", "--shape", "1,1,16,48"), "head_dim"),
    "not a shape": (("scalar", "--torch", "2.90.0", "--shape", "1,8,512"), "four integers"),
    "seed": (("scalar", "--torch", "2.90.0", *SMALL, "--seed", "-1"), "from 0 up"),
    "a folder that is not there": (("scalar", "--torch", "2.90.0", "--json", "nowhere/m.json"), "nowhere"),
}


@pytest.mark.parametrize(("arguments", "says"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_sentence_and_exit_2(
    wheels: Wheels,
    fresh_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["torch-matrix", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    assert not (fresh_cache / "torch").exists()  # said before anything is installed
