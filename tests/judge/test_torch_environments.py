"""Environments of the matrix of torch versions, from an index of stub wheels, and the whole from command to conclusion.

A stub wheel's ``torch`` is this environment's own under another version, changed where a test says so. No network.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import pytest

from sdpalab.cli import main
from sdpalab.commands.torch_matrix import versions_for
from sdpalab.errors import UserError
from sdpalab.torch_matrix import environments, run
from sdpalab.torch_matrix.environments import CannotInstall, check_version, lab_packages, make_environment
from sdpalab.torch_matrix.matrix import Conclusion

HERE = metadata.version("torch")


# Versions


@pytest.mark.parametrize("text", ["2.5.1", "2.5", "2.5.1+cpu", "2.6.0rc1", "2.10.0.dev20261001+cu130", "3.0"])
def test_versions(text: str) -> None:
    assert check_version(text) == text


@pytest.mark.parametrize("text", ["", "latest", "2.x", ">=2.5", "2.5.1 ", "2.5.1+", "v2.5", "-2", "2.5;rm"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(UserError, match="takes a version such as"):
        check_version(text)


def test_a_torch_without_attention() -> None:
    with pytest.raises(UserError, match=r"since 2\.0"):
        check_version("1.13.1")


def test_only_torch_differs_but_where_it_is_older_than_numpy_2() -> None:
    assert f"numpy=={metadata.version('numpy')}" in lab_packages("2.3.0")
    assert f"pydantic=={metadata.version('pydantic')}" in lab_packages("2.2.2")
    assert {"numpy>=1.26,<2", "ml_dtypes>=0.4"} <= set(lab_packages("2.2.2"))


def test_this_environment_is_known_by_its_version() -> None:
    public = HERE.partition("+")[0]
    for version in (public, HERE):
        environment = environments.this_environment(version)
        assert environment is not None
        assert environment.here
    assert environments.this_environment("2.0.0") is None
    assert environments.this_environment(f"{public}+other") is None


# Environments, from a folder of stub wheels

Wheels = Callable[..., None]

AS_HERE = """
import os, sys
sys.path.remove(os.path.dirname(os.path.dirname(__file__)))
del sys.modules["torch"]
import torch
torch.__version__ = {version!r}
"""
"""A ``torch`` that is this environment's own, but for its version."""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheels:
    """An empty package index, the only one that pip has, and what puts a wheel of one ``__init__.py`` into it."""
    index = tmp_path / "index"
    index.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))

    def add(version: str, source: str | None = None, *, name: str = "torch", requires: tuple[str, ...] = ()) -> None:
        info = f"{name}-{version}.dist-info"
        fields = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        files = {
            f"{name}/__init__.py": f"__version__ = {version!r}\n" if source is None else source,
            f"{info}/METADATA": "\n".join([*fields, *(f"Requires-Dist: {one}" for one in requires), ""]),
            # The other packages of this environment can be imported there too.
            "here.pth": "\n".join(entry for entry in sys.path if entry.endswith("site-packages")),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        with zipfile.ZipFile(index / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)
            wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD")))

    return add


class Maker:
    """Makes environments in one folder and remembers what was told."""

    def __init__(self, root: Path) -> None:
        self.root, self.messages = root, list[str]()

    def __call__(self, version: str, *packages: str, max_bytes: int = 1 << 20) -> environments.TorchEnvironment:
        self.messages.clear()
        return make_environment(version, packages, max_bytes=max_bytes, tell=self.messages.append, root=self.root)

    @property
    def folders(self) -> list[Path]:
        """Folders of environments that are there."""
        return [path for path in self.root.iterdir() if path.name != "locks"]


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "environments")


@pytest.mark.slow
def test_an_environment_is_made_once_and_again_if_it_is_not_whole(wheels: Wheels, make: Maker) -> None:
    wheels("2.90.0")
    environment = make("2.90.0")
    assert environment.torch == "2.90.0"
    assert not environment.here
    assert Path(environment.python).parent.parent == make.folders[0]
    assert "installing" in make.messages[-1]

    assert make("2.90.0") == environment
    assert make.messages == []

    (make.folders[0] / "complete.json").unlink()  # as a kill during the installation leaves it
    (make.folders[0] / "half").touch()
    assert make("2.90.0") == environment
    assert "installing" in make.messages[-1]
    assert not (make.folders[0] / "half").exists()

    (torch,) = make.folders[0].glob("lib/python*/site-packages/torch/__init__.py")
    torch.unlink()
    torch.parent.joinpath("__init__.py").write_text("raise ImportError('a library is gone')")
    assert make("2.90.0") == environment
    assert "installing" in make.messages[-1]


@pytest.mark.slow
def test_a_label_is_taken_as_pip_takes_it(wheels: Wheels, make: Maker) -> None:
    wheels("2.90.0")
    wheels("2.90.0+cpu")
    assert make("2.90.0").torch == "2.90.0+cpu"


@pytest.mark.slow
def test_a_version_that_is_not_in_the_index(wheels: Wheels, make: Maker) -> None:
    wheels("2.90.0")
    with pytest.raises(CannotInstall, match=r"No matching distribution found for torch==2\.91\.0"):
        make("2.91.0")
    assert make.folders == []


def test_packages_that_do_not_go_together(wheels: Wheels, make: Maker) -> None:
    wheels("2.90.0", requires=("helper==1",))
    wheels("1", name="helper")
    wheels("2", name="helper")
    with pytest.raises(CannotInstall, match=r"do not go together: .*helper==2; torch 2\.90\.0 depends on helper==1"):
        make("2.90.0", "helper==2")
    assert make.folders == []


def test_more_than_may_be_downloaded(wheels: Wheels, make: Maker) -> None:
    wheels("2.90.0", source="#" * (3 << 20))
    with pytest.raises(CannotInstall, match="3 MiB to download, more than the 1 MiB that --max-download allows"):
        make("2.90.0")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "raise ImportError('libcudart.so.13 is not there')",
            "import torch: ImportError: libcudart.so.13 is not there",
        ),
        ("__version__ = '2.80.0'", "installed as torch 2.90.0 says that it is 2.80.0"),
    ],
)
def test_what_was_installed_and_is_no_such_torch(wheels: Wheels, make: Maker, source: str, reason: str) -> None:
    wheels("2.90.0", source=source)
    with pytest.raises(CannotInstall, match=reason):
        make("2.90.0")
    assert make.folders == []


# The whole

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
    ("kernel", "more", "conclusion", "code"),
    [("float32", DRIFTED, Conclusion.REFERENCE_CHANGED, 0), ("zeros", "", Conclusion.NEITHER_CHANGED, 1)],
)
def test_from_the_command_to_the_conclusion(
    wheels: Wheels,
    candidate: Path,
    fresh_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kernel: str,
    more: str,
    conclusion: Conclusion,
    code: int,
) -> None:
    wheels("2.90.0", source=AS_HERE.format(version="2.90.0") + more)
    monkeypatch.setattr(run, "lab_packages", lambda version: ())
    target = candidate.parent / "matrix.json"
    asked = ("--torch", HERE, "--torch", "2.90.0", "--torch", "2.91.0", "--json", str(target))
    assert main(["torch-matrix", f"{candidate}:{kernel}", *SMALL, *asked]) == code
    record = json.loads(target.read_text())
    assert record["conclusion"] == conclusion.value
    *ran, missing = record["rows"]
    assert [row["torch"] for row in ran] == [HERE, "2.90.0"]
    assert [row["this_environment"] for row in ran] == [True, False]
    outputs: list[Mapping[str, str]] = [
        {case["name"]: case["digests"]["o"] for case in row["verdict"]["cases"]} for row in ran
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) >= 4
    assert missing["torch"] is None
    assert "No matching distribution" in missing["reason"]
    printed = capsys.readouterr().out
    assert record["sentence"] in printed
    assert "not installed" in printed
    assert f"torch 2.91.0: {missing['reason']}" in printed


def test_one_version_is_compared_with_the_one_that_is_here() -> None:
    assert versions_for(["2.90.0"]) == ["2.90.0", HERE]
    assert versions_for([HERE]) == [HERE]
    assert versions_for(["2.90.0", "2.91.0"]) == ["2.90.0", "2.91.0"]


@pytest.mark.slow
def test_nothing_that_can_be_installed_is_exit_3(
    wheels: Wheels, candidate: Path, fresh_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--torch", "2.90.0", "--torch", "2.91.0")
    assert main(["torch-matrix", f"{candidate}:float32", *asked, *SMALL]) == 3
    (line,) = capsys.readouterr().err.strip().splitlines()
    for version in ("2.90.0", "2.91.0"):
        assert f"torch {version}: pip: No matching distribution" in line


BAD_INPUT = {
    "no version": (("scalar",), "name at least one"),
    "not a version": (("scalar", "--torch", "latest"), "latest"),
    "a torch without attention": (("scalar", "--torch", "1.13.1"), "since 2.0"),
    "unknown kernel": (("flahs", "--torch", "2.90.0"), "flash"),
    "no such file": (("nowhere.py", "--torch", "2.90.0"), "does not exist"),
    "a shape that the kernel has not": (("scalar", "--torch", "2.90.0", "--shape", "1,1,16,48"), "head_dim"),
    "not a shape": (("scalar", "--torch", "2.90.0", "--shape", "1,8,512"), "four integers"),
    "dtype": (("scalar", "--torch", "2.90.0", "--dtype", "float8"), "bfloat16"),
    "seed": (("scalar", "--torch", "2.90.0", *SMALL, "--seed", "-1"), "from 0 up"),
    "a negative size": (("scalar", "--torch", "2.90.0", "--max-download", "-1"), "--max-download"),
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
