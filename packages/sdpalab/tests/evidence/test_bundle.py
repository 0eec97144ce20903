"""Contents of a bundle: every attempt, each array once, no path and no name of this machine."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from evidence_sample import MODULE, PROBLEMS, Sample, honest, judged
from standalone import verify

from sdpalab.compile import build
from sdpalab.errors import MachineError, UserError
from sdpalab.evidence import ArrayStore, BundleWriter, built_module, environment, verify_bundle
from sdpalab.evidence.bundle import mission_floors, without_paths
from sdpalab.evidence.verifier.archive import HEADER, pack
from sdpalab.judge.verdict import Status, Verdict
from sdpalab.kernels.plan import Module


def test_name_and_files(sample: Sample, unpacked: Path) -> None:
    assert re.fullmatch(r"sdpalab-([0-9a-f]{12}(-dirty)?|nogit)-\d{8}T\d{6}Z", sample.written.name)
    names = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    expected = {"manifest.yaml", "environment.json", "floors.json", "report.html", "verify.py"}
    expected |= {f"records/{n}.json" for n in ("00-honest", "01-wrong-scale", "02-never")}
    expected |= {
        f"build/{n}/{f}"
        for n in ("00-honest", "01-wrong-scale")
        for f in ("scale.cu", "kernel.ptx", "kernel.cubin", "log.txt")
    }
    expected |= {f"source/00-honest/{name}" for name in ("mine.py", "scale.cu")}
    assert expected <= names
    rest = names - expected - {"harness.diff"}
    assert all(re.fullmatch(r"arrays/[0-9a-f]{64}\.raw", name) for name in rest)
    # q, k, v, yardstick and a log-sum-exp for each of the cases; of the outputs, an honest one may equal the yardstick
    assert 6 * len(PROBLEMS) <= len(rest) <= 7 * len(PROBLEMS)
    ptx = unpacked / "build/00-honest/kernel.ptx"
    assert ptx.read_bytes() == sample.built.ptx


def test_the_manifest_says_what_was_run(sample: Sample, unpacked: Path) -> None:
    import yaml

    manifest = yaml.safe_load((unpacked / "manifest.yaml").read_text())
    assert manifest["command"] == ["sdpalab", "repro"]
    assert manifest["name"] == sample.written.name
    assert manifest["digest"] == verify.manifest_digest(manifest)
    words = sample.written.side_car.read_text().split()
    assert words == [hashlib.sha256(sample.written.tarball.read_bytes()).hexdigest(), sample.written.tarball.name]
    assert sample.written.report.read_bytes() == (unpacked / "report.html").read_bytes()


def test_nothing_names_this_machine(sample: Sample, unpacked: Path) -> None:
    root = Path(__file__).resolve().parents[4]
    private = {str(root), str(Path.home()), str(unpacked.parent), str(sample.written.tarball.parent)}
    host = socket.gethostname()
    for path in (p for p in unpacked.rglob("*") if p.is_file() and p.suffix != ".raw"):
        content = path.read_bytes().decode("utf-8", "replace")
        for text in private - {"/"}:
            assert text not in content, f"{path.name} holds {text}"
        if path.name != "harness.diff":
            assert not re.search(r"(?<![\w.])/(home|work|tmp|root|Users|var)/", content), path.name
            assert len(host) < 6 or host not in content, path.name


def test_packing_is_deterministic_and_opens_with_other_tools(sample: Sample, tmp_path: Path) -> None:
    blob = sample.written.tarball.read_bytes()
    top, members, findings = verify.unpack(blob)
    assert findings == []
    assert pack(top, dict(reversed(members.items()))) == blob
    assert shutil.which("tar")
    listed = subprocess.run(["tar", "tzf", str(sample.written.tarball)], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == [f"{top}/{name}" for name in sorted(members)]


def test_a_packed_bundle_depends_on_its_members_alone() -> None:
    """Neither on their order nor on the time; long names and empty files are kept, and arrays hardly grow."""
    rng = np.random.default_rng(0)
    members = {f"arrays/{n}.raw": rng.standard_normal(9000).astype(np.float16).tobytes() for n in range(5)}
    members |= {"arrays/b.raw": b"", "build/" + 30 * "include/long/" + "é.cuh": b"x", "manifest.yaml": b"{}"}
    blob = pack("top", members)
    assert pack("top", dict(reversed(members.items()))) == blob
    assert blob.startswith(HEADER)
    assert len(blob) < 1.02 * sum(map(len, members.values()))
    assert verify.unpack(blob) == ("top", members, [])


def test_a_stopped_job_leaves_nothing(tmp_path: Path) -> None:
    def stopped() -> None:
        with BundleWriter(tmp_path / "out", command=["x"]) as bundle:
            bundle.arrays.put(np.zeros(4, np.float16))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert list((tmp_path / "out").iterdir()) == []
    with BundleWriter(tmp_path / "out", command=["x"]) as bundle, pytest.raises(ValueError, match="at least one"):
        bundle.write()


def test_a_full_disk_is_the_machines_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sdpalab.evidence import bundle as module

    def full(path: Path, content: bytes, *, lasting: bool = True) -> None:
        raise OSError(28, "No space left on device")

    with BundleWriter(tmp_path, command=["x"]) as bundle:
        bundle.add("k", config="", verdict=None, failure="not built")
        monkeypatch.setattr(module, "write_atomically", full)
        with pytest.raises(MachineError, match="No space left"):
            bundle.write()
    assert list(tmp_path.iterdir()) == []


def test_where_it_cannot_write_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write a bundle to .*file"):
        BundleWriter(tmp_path / "file", command=["x"])


def test_arrays_are_kept_once_and_as_they_are(tmp_path: Path) -> None:
    store = ArrayStore(tmp_path / "arrays")
    array = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    digest = store.put(array)
    assert store.put(array.copy()) == digest == hashlib.sha256(array.tobytes()).hexdigest()
    assert store.put(array.transpose(2, 1, 0).transpose(2, 1, 0)) == digest
    assert [path.name for path in store.folder.iterdir()] == [f"{digest}.raw"]
    wide = np.arange(6).astype(ml_dtypes.bfloat16)
    raw = (store.folder / f"{store.put(wide)}.raw").read_bytes()
    assert raw == wide.tobytes()


def test_ptx_of_no_build_is_refused(sample: Sample, tmp_path: Path) -> None:
    other = build(Module("other.cu", 'extern "C" __global__ void other() {}', "other"))
    with BundleWriter(tmp_path, command=["x"]) as bundle:
        case = judged(PROBLEMS[0], 0, bundle.arrays, honest, other.ptx_sha256)
        verdict = Verdict("k", "", "simulator sm_89", "quick", 0, (case,))
        with pytest.raises(ValueError, match="none of the attempt's builds"):
            bundle.add("k", config="", builds=[built_module(MODULE, sample.built)], verdict=verdict)


def test_a_kernels_name_and_reason_cannot_leave_the_bundle(tmp_path: Path) -> None:
    with BundleWriter(tmp_path, command=["sdpalab", "--kernel", "/home/someone/k.py"]) as bundle:
        case = judged(PROBLEMS[0], 0, bundle.arrays, honest, "")
        run: dict[str, Any] = {key: value for key, value in case.run.items() if key != "ptx_sha256"}
        bad = replace(case, status=Status.CRASHED, reason="File /home/someone/k.py, line 3: oops", run=run)
        bundle.add("../../evil/k", config="", verdict=Verdict("k", "", "cpu", "quick", 0, (bad,)))
        written = bundle.write()
    assert verify_bundle(written.tarball).accepted
    _, members, _ = verify.unpack(written.tarball.read_bytes())
    assert "records/00-.._.._evil_k.json" in members
    assert b"someone" not in members["manifest.yaml"] + members["records/00-.._.._evil_k.json"]
    assert b"File k.py, line 3: oops" in members["records/00-.._.._evil_k.json"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot read /home/a/b.cu: gone", "cannot read b.cu: gone"),
        ("~/x/y.py:3", "y.py:3"),
        ("1/2/3 and/or a/b", "1/2/3 and/or a/b"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("flash.cu(3): error", "flash.cu(3): error"),
    ],
)
def test_paths_are_cut_down_to_their_last_part(text: str, expected: str) -> None:
    assert without_paths(text) == expected


def test_headers_of_the_kernel_are_kept_and_cudas_are_digests(tmp_path: Path) -> None:
    (tmp_path / "mine.cuh").write_text("#define TWO 2.0f\n")
    source = '#include "mine.cuh"\n#include <cuda_fp16.h>\nextern "C" __global__ void k(__half* x) { *x *= TWO; }\n'
    module = Module("k.cu", source, "k", {}, (tmp_path,))
    module_record = built_module(module, build(module))
    assert set(module_record.files) == {"k.cu", "kernel.ptx", "kernel.cubin", "log.txt", "include/mine.cuh"}
    record = module_record.record("build/00-k")
    assert {"k.cu", "mine.cuh", "cuda_fp16.h"} <= set(record.sources)
    assert record.sources["mine.cuh"] == record.files["include/mine.cuh"]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def including(folder: Path, *spellings: str, name: str = "k.cu") -> Module:
    """A kernel in ``folder/kernels`` that includes headers by these spellings; each header stands beside the folder,
    below it, or in it."""
    kernels = folder / "kernels"
    for place in ("outer.cuh", "kernels/inner/outer.cuh", "kernels/inner/below.cuh", "kernels/own.cuh"):
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// {place}\n")
    includes = "".join(f'#include "{spelling}"\n' for spelling in spellings)
    return Module(name, f'{includes}extern "C" __global__ void k(float* x) {{ *x *= 2.0f; }}\n', "k", {}, (kernels,))


def test_headers_keep_paths_below_their_folder_and_digests_elsewhere(tmp_path: Path) -> None:
    spellings = ("../outer.cuh", "inner/outer.cuh", "inner/../own.cuh", "./inner/below.cuh", "../kernels/own.cuh")
    module = including(tmp_path, *spellings)
    (tmp_path / "outer.cuh").write_text('#include "kernels/inner/below.cuh"\n')
    compiled = build(module)
    module_record = built_module(module, compiled)
    record = module_record.record("build/00-k")
    headers = {name.removeprefix("include/") for name in record.files if name.startswith("include/")}
    assert {"inner/outer.cuh", "own.cuh", "inner/below.cuh", "kernels/inner/below.cuh"} < headers
    outside = sorted(name.partition("/")[2] for name in headers - {"inner/outer.cuh", "own.cuh", "inner/below.cuh"})
    assert outside == ["inner/below.cuh", "outer.cuh", "own.cuh"]
    assert all(record.sources[name] == record.files[f"include/{name}"] for name in headers)
    assert sorted(record.sources.values()) == sorted(compiled.sources.values())


def test_two_spellings_of_a_path_keep_two_files(tmp_path: Path) -> None:
    module = including(tmp_path, "own.cuh", "inner/../own.cuh")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "own.cuh").write_text("// another file\n")
    module = replace(module, include_dirs=(tmp_path / "first", *module.include_dirs))
    record = built_module(module, build(module)).record("build/00-k")
    kept = [name for name in record.files if name.endswith("own.cuh")]
    assert len(kept) == len({record.files[name] for name in kept}) == 2


@pytest.mark.parametrize(
    "name", ["..", "../../k.cu", "kernel.ptx", "include", ".k.cu", "/tmp/k.cu", "a b.cu", "k" * 300]
)
def test_the_name_of_a_source_is_a_file_name(name: str, tmp_path: Path) -> None:
    module = including(tmp_path, name=name)
    compiled = build(module)
    record = built_module(module, compiled).record("build/00-k")
    assert record.module in record.files
    assert record.module == ("k.cu" if name in ("../../k.cu", "/tmp/k.cu") else "source.cu")
    assert record.files["kernel.ptx"] == compiled.ptx_sha256
    assert record.sources[record.module] == record.files[record.module]


def test_a_hostile_include_writes_nothing_outside_and_the_bundle_verifies(tmp_path: Path) -> None:
    module = including(tmp_path / "a" / "b", "../outer.cuh", "../../../planted.cuh", "own.cuh")
    (tmp_path / "planted.cuh").write_text("// planted\n")
    before = files_below(tmp_path)
    compiled = build(module)
    with BundleWriter(tmp_path / "out", command=["x"]) as bundle:
        case = judged(PROBLEMS[0], 0, bundle.arrays, honest, compiled.ptx_sha256)
        verdict = Verdict("k", "", "simulator sm_89", "quick", 0, (case,))
        bundle.add("k", config="", builds=[built_module(module, compiled)], verdict=verdict)
        written = bundle.write()
    assert {name for name in files_below(tmp_path).keys() - before.keys() if not name.startswith("out/")} == set()
    assert {name: files_below(tmp_path)[name] for name in before} == before
    assert verify_bundle(written.tarball).accepted


def test_a_file_that_is_no_device_code_is_a_digest(tmp_path: Path) -> None:
    for name in ("id_key", ".netrc", "passwords.json", "own.cuh", "tile.inl"):
        (tmp_path / name).write_text(f"// {name}\n")
    names = ("id_key", ".netrc", "passwords.json", "own.cuh", "tile.inl")
    includes = "".join(f'#include "{name}"\n' for name in names)
    module = Module("k.cu", f'#if 0\n{includes}#endif\nextern "C" __global__ void k() {{}}\n', "k", {}, (tmp_path,))
    module_record = built_module(module, build(module))
    record = module_record.record("build/00-k")
    assert set(names) <= set(record.sources)
    assert {name for name in record.files if "include" in name} == {"include/own.cuh", "include/tile.inl"}
    assert not any(b"// id_key" in content for name, content in module_record.files.items() if name != "k.cu")


@pytest.mark.parametrize("where", ["build", "source"])
def test_a_name_that_leaves_the_bundle_is_refused_before_anything_is_written(where: str, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with BundleWriter(out, command=["x"]) as bundle:
        before = files_below(tmp_path)
        honest_build = built_module(MODULE, build(MODULE))
        evil = replace(honest_build, files={**honest_build.files, "include/../../../../../../evil.cuh": b"evil"})
        given: dict[str, Any] = {"builds": [evil]} if where == "build" else {"sources": {"../../../../evil": b"evil"}}
        with pytest.raises(ValueError, match=r"leaves the bundle|is not below source/"):
            bundle.add("k", config="", verdict=None, failure="not judged", **given)
        assert files_below(tmp_path) == before


def test_floors_of_the_mission_are_those_of_the_speed_of_light() -> None:
    records = {record.gpu: record for record in mission_floors()}
    floors = {figure.name: round(figure.value, 2) for figure in records["L4"].floors}
    assert floors["tensor"] == 4.43
    assert floors["dram"] == 6.99
    assert {figure.value for figure in records["L4"].peers} == {40.9, 24.5}
    assert records["L4"].target_us == 5.0
    assert all(figure.kind.value in ("modelled", "published") for r in records.values() for figure in r.floors)


def test_the_diff_of_a_dirty_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *names, *arguments], check=True, capture_output=True)

    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "a.py").write_text("x = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    monkeypatch.setattr(environment, "repository", lambda: tmp_path)
    assert environment.harness_diff() == ""
    assert not environment.current_environment("").harness.dirty
    (tmp_path / "packages" / "a.py").write_text("x = 2\n")
    (tmp_path / "packages" / "new.py").write_text("y = 3\n")
    (tmp_path / "notes.txt").write_text("private\n")
    diff = environment.harness_diff()
    assert "+x = 2" in diff
    assert "+y = 3" in diff
    assert "private" not in diff
    assert str(tmp_path) not in diff
    harness = environment.current_environment(diff).harness
    assert harness.dirty
    assert re.fullmatch(r"[0-9a-f]{40}", harness.commit or "")
    monkeypatch.setattr(environment, "repository", lambda: None)
    monkeypatch.delenv(environment.COMMIT_VARIABLE, raising=False)
    assert environment.current_environment(environment.harness_diff()).harness.commit is None


def test_the_commit_of_a_tree_without_git_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setattr(environment, "repository", lambda: None)
    for text, dirty in ((commit, False), (f"{commit}-dirty", True)):
        monkeypatch.setenv(environment.COMMIT_VARIABLE, text)
        harness = environment.current_environment("").harness
        assert (harness.commit, harness.dirty) == (commit, dirty)
    for text in ("v0.1", commit[:7], f"{commit} ", f"{commit}-clean"):
        monkeypatch.setenv(environment.COMMIT_VARIABLE, text)
        with pytest.raises(UserError, match="SDPALAB_COMMIT takes a commit's 40 hex digits"):
            environment.current_environment("")
    monkeypatch.setenv(environment.COMMIT_VARIABLE, "")
    assert environment.current_environment("").harness.commit is None


def test_git_counts_before_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "repository", lambda: tmp_path)  # no commit in it
    monkeypatch.setenv(environment.COMMIT_VARIABLE, "0" * 40)
    assert environment.current_environment("").harness.commit is None


def test_the_environment_is_anonymous() -> None:
    recorded = environment.current_environment("").to_dict()
    assert recorded["packages"]["numpy"] == np.__version__
    assert "node" not in recorded
    assert socket.gethostname() not in json.dumps(recorded) or len(socket.gethostname()) < 6
