"""Finding kernels: shipped ones by name, a user's own in a file, and one clear sentence when there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sdpalab.cli import main
from sdpalab.errors import UserError
from sdpalab.kernels import registry
from sdpalab.kernels.kernel import CudaKernel, Launch
from sdpalab.kernels.triton_kernel import TritonKernel
from sdpalab.kernels.userfile import is_user_file, load_user_kernel
from sdpalab.problem import Problem

KERNEL = 'CudaKernel("k", "", "k", lambda problem, config: None)'


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text)
    return path


def refusal(spec: str | Path) -> str:
    with pytest.raises(UserError) as refused:
        registry.load_kernel(str(spec))
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_the_former_name_of_features_still_works() -> None:
    written = CudaKernel("k", "", "k", lambda problem, config: Launch((1, 1, 1), (32, 1, 1), ()), takes=("softcap",))
    assert written.features == ("softcap",)
    assert written.why_not(Problem(1, 1, 8, 32, softcap=3.0)) is None
    assert "does not take sinks" in str(written.why_not(Problem(1, 1, 8, 32, sinks=True)))


SEQUENCES = ("flash_varlen", "flash_decode", "flash_decode_e4m3")
GRADIENTS = ("flash_backward_two_pass", "flash_backward", "hopper_backward")
ORDER = (
    *("scalar", "cublas", "wmma", "cp_async", "warp_specialized", "flash"),
    *("fp8_simulated", "fp8", "hopper", "hopper_fp8", "blackwell", "triton_flash"),
)


def test_the_ladder_is_in_order() -> None:
    names = list(registry.KERNELS)
    assert names == [name for name in ORDER if name in registry.KERNELS]
    assert set(names) <= set(ORDER)
    assert len(registry.KERNELS) == len(names)
    assert tuple(registry.SEQUENCE_KERNELS) == SEQUENCES
    assert tuple(registry.GRADIENT_KERNELS) == GRADIENTS
    assert list(registry.SHIPPED) == [*names, *SEQUENCES, *GRADIENTS]
    others = {**registry.SEQUENCE_KERNELS, **registry.GRADIENT_KERNELS}
    for name, kernel in {**registry.CUDA_KERNELS, **others}.items():
        assert kernel.task == ("backward" if name in GRADIENTS else "forward")
        assert kernel.name == name
        assert kernel.idea
        assert isinstance(kernel.source, Path)
        assert kernel.source.is_file()
        assert registry.get(name) is kernel is registry.load_kernel(name)
        assert registry.needs(name) is None


def test_a_kernel_in_triton_is_one_of_them() -> None:
    pytest.importorskip("triton", reason="needs the extra: pip install 'sdpalab[triton]'")
    kernel = registry.get("triton_flash")
    assert isinstance(kernel, TritonKernel)
    assert kernel is registry.KERNELS["triton_flash"]
    assert kernel.name == "triton_flash"
    assert kernel.idea
    assert registry.needs("triton_flash") is None


def test_names_are_listed_without_triton() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from sdpalab.kernels.registry import KERNELS, get\n"
            "assert 'triton_flash' in KERNELS and list(KERNELS)[-1] == 'triton_flash'\n"
            "get('flash'); assert 'triton' not in sys.modules",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra is not installed."""
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "sdpalab.kernels.triton_flash", raising=False)


@pytest.mark.usefixtures("no_triton")
def test_without_triton_the_kernel_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert "kernel triton_flash needs Triton: pip install 'sdpalab[triton]'" in refusal("triton_flash")
    assert "pip install" in str(registry.needs("triton_flash"))
    assert registry.needs("flash") is None
    assert main(["kernels", "--json", "-"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["kernels"]}
    assert list(rows) == list(registry.SHIPPED)
    assert rows["triton_flash"] == {"name": "triton_flash", "needs": registry.needs("triton_flash")}
    assert "needs" not in rows["flash"]


@pytest.mark.parametrize("wrong", ["flsh", "Flash", "flash2"])
def test_an_unknown_name_gets_the_nearest_and_the_list(wrong: str) -> None:
    message = refusal(wrong)
    assert repr(wrong) in message
    assert "did you mean 'flash'?" in message
    assert ", ".join(registry.SHIPPED) in message


def test_a_name_like_no_other_gets_the_list_only() -> None:
    message = refusal("zzz")
    assert "did you mean" not in message
    assert ", ".join(registry.SHIPPED) in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a.py", True), ("b/a.py:K", True), ("flash", False), ("a.pyc", False), ("py", False), ("", False)],
)
def test_what_is_taken_for_a_file(text: str, expected: bool) -> None:
    assert is_user_file(text) is expected


def test_the_only_kernel_of_a_file_needs_no_name(tmp_path: Path) -> None:
    path = written(tmp_path, f"from sdpalab import CudaKernel\ndef plan(): ...\nMINE = {KERNEL}\nALIAS = MINE\n")
    kernel = load_user_kernel(str(path))
    assert isinstance(kernel, CudaKernel)
    assert kernel is not load_user_kernel(str(path))  # run anew, not remembered
    assert registry.load_kernel(f"{path}:MINE").name == "k"


def test_the_only_function_that_the_file_defines(tmp_path: Path) -> None:
    path = written(tmp_path, "from math import exp\nfrom textwrap import dedent\ndef _helper(): ...\ndef mine(): ...\n")
    assert load_user_kernel(str(path)).__name__ == "mine"


def test_a_named_function_or_callable_object(tmp_path: Path) -> None:
    path = written(tmp_path, "from functools import partial\ndef one(): ...\ndef two(): ...\nthree = partial(one)\n")
    assert load_user_kernel(f"{path}:two").__name__ == "two"
    assert callable(load_user_kernel(f"{path}:three"))


def test_an_edit_counts_at_once(tmp_path: Path) -> None:
    assert load_user_kernel(str(written(tmp_path, "def one(): ...\n"))).__name__ == "one"
    assert load_user_kernel(str(written(tmp_path, "def two(): ...\n"))).__name__ == "two"
    assert not (tmp_path / "__pycache__").exists()


def test_a_file_may_import_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("def helper(): ...\n")
    path = written(tmp_path, "from neighbour_of_mine import helper\ndef mine(): return helper()\n")
    assert load_user_kernel(str(path))() is None


def test_the_source_lies_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'from pathlib import Path\nfrom sdpalab import CudaKernel\nMINE = CudaKernel("k", Path("k.cu"), "k", None)\n'
    path = written(tmp_path, text)
    monkeypatch.chdir(tmp_path.parent)
    kernel = load_user_kernel(f"{tmp_path.name}/{path.name}")
    assert isinstance(kernel, CudaKernel)
    assert kernel.source == tmp_path.resolve() / "k.cu"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.py")
    assert "does not exist" in refusal(f"{tmp_path / 'none.py'}:NAME")


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("x = 1\nimport nonexistent_module\n", ["ModuleNotFoundError", "nonexistent", "(line 2)"]),
        ("def f(:\n", ["SyntaxError", "(line 1)"]),
        ("def f():\n    raise ValueError('of mine')\n\nf()\n", ["ValueError: of mine", "(line 2)"]),
        ("raise SystemExit(3)\n", ["SystemExit: 3", "(line 1)"]),
        ("from sdpalab import Problem\nProblem(1, 2, 3, 0)\n", ["head_dim must be a positive", "(line 2)"]),
    ],
    ids=["import", "syntax", "raises", "exits", "user error"],
)
def test_a_file_that_does_not_import(tmp_path: Path, text: str, fragments: list[str]) -> None:
    message = refusal(written(tmp_path, text))
    for fragment in ["mine.py does not import", *fragments]:
        assert fragment in message


def test_a_name_that_is_not_there(tmp_path: Path) -> None:
    path = written(tmp_path, "def one(): ...\n")
    assert "has no 'two'; its kernels are: one" in refusal(f"{path}:two")


def test_several_kernels_and_no_name(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, "def one(): ...\ndef two(): ...\n"))
    assert "several kernels (one, two)" in message
    assert "mine.py:NAME" in message


def test_no_kernel_at_all(tmp_path: Path) -> None:
    assert "neither a CudaKernel nor a function" in refusal(written(tmp_path, "x = 1\n"))


@pytest.mark.parametrize(("name", "kind"), [("x", "of type int"), ("C", "a class")])
def test_a_name_that_is_no_kernel(tmp_path: Path, name: str, kind: str) -> None:
    path = written(tmp_path, "x = 1\nclass C: ...\n")
    assert f":{name} is {kind}, and neither a CudaKernel nor a function" in refusal(f"{path}:{name}")
