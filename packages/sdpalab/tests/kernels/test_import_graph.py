"""The digests of code: an edit of any module that decides a verdict changes the version of the judge."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sdpalab import Config, CudaKernel, Launch
from sdpalab.judge.sandbox.sandboxed import kernel_in_sandbox
from sdpalab.kernels import import_graph, source
from sdpalab.kernels.import_graph import digest_of, files_behind
from sdpalab.kernels.registry import KERNELS, get
from sdpalab.kernels.source import source_digest
from sdpalab.kernels.userfile import load_user_kernel
from sdpalab.search.log import Head

JUDGE, JOBS = "sdpalab.judge.session", "sdpalab.jobs.kinds"
DECIDES = (
    *("problem.py", "scoring.py", "record.py", "inputs/kinds.py", "inputs/__init__.py", "kernels/flash.py"),
    *("kernels/stream_k.py", "kernels/triton_flash.py", "kernels/declarations.py", "kernels/registry.py"),
    *(
        "judge/sandbox/plan_server.py",
        "judge/sandbox/candidate_server.py",
        "judge/rule/evaluate.py",
        "judge/__init__.py",
    ),
    "run/gpu.py",
)
DECIDES_BELOW = ("gpus.py", "gpus.json", "build/options.py", "semantics/wmma.py", "engine/__init__.py")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with copies of both packages, of which the graph is read."""
    copies = {name: tmp_path / name for name in import_graph._PACKAGES}
    for name, folder in import_graph._PACKAGES.items():
        shutil.copytree(folder, copies[name], ignore=shutil.ignore_patterns("*.cu", "*.cuh", "__pycache__"))
    monkeypatch.setattr(import_graph, "_PACKAGES", copies)
    import_graph._file.cache_clear()
    yield tmp_path
    import_graph._file.cache_clear()


def test_an_edit_of_each_module_that_decides_changes_the_digest(package: Path) -> None:
    seen = {digest_of(JUDGE)}
    files = [*(f"sdpalab/{name}" for name in DECIDES), *(f"warpsan/{name}" for name in DECIDES_BELOW)]
    for count, name in enumerate(files, 2):
        with (package / name).open("a") as file:
            file.write("\n")
        seen.add(digest_of(JUDGE))
        assert len(seen) == count, name
    for name in ("commands/judge.py", "torch_api/ops.py"):
        (package / "sdpalab" / name).write_text("# another\n")
    assert digest_of(JUDGE) in seen


def test_a_job_rests_on_the_model_and_the_gates_too(package: Path) -> None:
    before = digest_of(JOBS)
    for name in ("model/pipes.json", "search/gates.py", "campaigns/self_test.py", "judge/session.py", "problem.py"):
        with (package / "sdpalab" / name).open("a") as file:
            file.write("\n")
        assert before != (before := digest_of(JOBS)), name


PROCESSES = """
import json, sys
import sdpalab.judge.session
import sdpalab.judge.sandbox.plan_server, sdpalab.judge.sandbox.candidate_server
from sdpalab.kernels.registry import KERNELS
from sdpalab.judge import judge
list(KERNELS.items())
assert judge("scalar", [sdpalab.Problem(1, 1, 9, 32)], claims=False).passed
own = [module for name, module in sys.modules.items() if name.startswith(("sdpalab.", "warpsan."))]
print(json.dumps([module.__file__ for module in own]))
"""


def test_every_module_that_a_judgement_imports_is_behind_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROCESSES], capture_output=True, text=True, check=True)
    imported = {Path(name).resolve() for name in json.loads(done.stdout.splitlines()[-1])}
    assert len(imported) > 200
    assert imported <= set(files_behind(JUDGE))


def test_the_source_of_a_shipped_kernel_covers_the_python_that_plans_it(package: Path) -> None:
    for name in ("flash.py", "stream_k.py", "declarations.py", "kernel.py"):
        source._digest_of_python.cache_clear()
        before = source_digest(get("flash")), source_digest(get("scalar"))
        with (package / "sdpalab/kernels" / name).open("a") as file:
            file.write("\n")
        source._digest_of_python.cache_clear()
        assert source_digest(get("flash")) != before[0], name
        assert (source_digest(get("scalar")) == before[1]) is (name in ("flash.py", "stream_k.py"))
    source._digest_of_python.cache_clear()


def test_kernels_have_digests_of_their_own() -> None:
    assert len({source_digest(kernel) for kernel in KERNELS.values()}) == len(KERNELS)


USER = """
from pathlib import Path
from sdpalab import CudaKernel, Launch, Numerics

def plan(problem, config):
    return Launch((1, 1, 1), (32, 1, 1), ("q", "o"))

KERNEL = CudaKernel("mine", Path("mine.cu"), "mine", plan, variant=Path("variant.cu"), numerics=Numerics())
"""


def test_the_source_of_a_users_kernel_covers_its_python_and_its_variant(tmp_path: Path) -> None:
    files = {"mine.py": USER, "mine.cu": "// source", "variant.cu": "// variant"}
    seen = set()
    for edited in ("", *files):
        for name, text in files.items():
            (tmp_path / name).write_text(text + ("\n" if name == edited else ""))
        spec = str(tmp_path / "mine.py")
        digest = source_digest(load_user_kernel(spec))  # type: ignore[arg-type]
        with kernel_in_sandbox(spec, else_say="") as sandboxed:
            assert source_digest(sandboxed) == digest
        seen.add(digest)
    assert len(seen) == 4


def test_a_search_of_another_source_is_another_search() -> None:
    head = Head("k", (), ("L4",), "modelled", "elites", 0, {}, 1, "judge", "0.1.0", source="a" * 64)
    assert head.differs_from(replace(head, when="later")) == ""
    assert head.differs_from(replace(head, source="b" * 64)).startswith("it is of another source: bbb")
    older = {name: value for name, value in head.to_dict().items() if name != "source"}
    assert Head.from_dict(older).source == ""


def test_a_kernel_from_a_text_has_a_source() -> None:
    kernel = CudaKernel("k", "// one", "k", lambda problem, config: Launch((1, 1, 1), (32, 1, 1), ("q",)))
    assert source_digest(kernel) != source_digest(replace(kernel, source="// two"))
    assert kernel.default_config == Config()
