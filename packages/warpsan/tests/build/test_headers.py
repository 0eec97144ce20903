"""Include closure: exactly the files visible to the compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from warpsan.build import headers as rooms
from warpsan.build.headers import MOST_BYTES, resolve_headers
from warpsan.build.source import Module
from warpsan.errors import MachineError, UserError


def _module(source: str, *folders: Path) -> Module:
    return Module("k.cu", source, "k", {}, tuple(folders))


def _names(module: Module) -> list[str]:
    return [header.name for header in resolve_headers(module)]


def test_closure_is_transitive_and_sorted(tmp_path: Path) -> None:
    (tmp_path / "b.cuh").write_text('#include "deep/a.cuh"\n')
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.cuh").write_text('#include "beside.cuh"\n')
    (tmp_path / "deep" / "beside.cuh").write_text("// nothing\n")
    assert _names(_module('#include "b.cuh"', tmp_path)) == ["b.cuh", "beside.cuh", "deep/a.cuh"]


def test_cycles_and_repeats_end(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#pragma once\n#include "b.cuh"\n')
    (tmp_path / "b.cuh").write_text('#pragma once\n#include "a.cuh"\n#include "a.cuh"\n')
    assert _names(_module('#include "a.cuh"\n#include "b.cuh"', tmp_path)) == ["a.cuh", "b.cuh"]


def test_cudas_headers_are_found_to_the_bottom() -> None:
    names = _names(_module("#include <mma.h>"))
    assert {"mma.h", "crt/mma.h", "mma.hpp", "cuda_fp16.h", "cuda_fp16.hpp"} <= set(names)


def test_first_folder_wins(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.cuh").write_text(f"// {folder}\n")
    (header,) = resolve_headers(_module('#include "x.cuh"', tmp_path / "one", tmp_path / "two"))
    assert header.text.endswith(b"// one\n")


def test_header_text_names_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x.cuh").write_text("int y;\n")
    (header,) = resolve_headers(_module('#include "x.cuh"', tmp_path))
    assert header.text == b'#line 1 "/x.cuh"\nint y;\n'


def test_an_edit_is_seen_within_the_process(tmp_path: Path) -> None:
    module = _module('#include "x.cuh"', tmp_path)
    (tmp_path / "x.cuh").write_text("int a;\n")
    before = resolve_headers(module)[0].sha256
    (tmp_path / "x.cuh").write_text("int b;\n")
    assert resolve_headers(module)[0].sha256 != before


@pytest.mark.parametrize(
    "directive",
    [
        '#include "x.cuh"',
        "  #  include   <x.cuh>  // why",
        '#/**/include/* two */"x.cuh"',
        '/* one */ # include "x.cuh"',
        '#include \\\n "x.cuh"',
        '%:include "x.cuh"',
    ],
)
def test_every_spelling_of_the_directive_is_seen(tmp_path: Path, directive: str) -> None:
    (tmp_path / "x.cuh").write_text("")
    assert _names(_module(f"int before;\n{directive}\nint after;\n", tmp_path)) == ["x.cuh"]


def test_a_comment_is_no_directive(tmp_path: Path) -> None:
    assert _names(_module('// #include "x.cuh"\n// #include what you use\n', tmp_path)) == []


def test_absolute_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"k\.cu includes the absolute path .*include_dirs"):
        resolve_headers(_module(f'#include "{tmp_path}/x.cuh"'))


def test_computed_include_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.cuh").write_text("#include NAME\n")
    with pytest.raises(UserError, match=r"x\.cuh has #include NAME"):
        resolve_headers(_module('#include "x.cuh"', tmp_path))


def test_one_name_for_two_files_is_refused(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "main.cuh").write_text('#include "util.cuh"\n')
        (tmp_path / folder / "util.cuh").write_text(f"// {folder}\n")
    module = _module('#include "one/main.cuh"\n#include "two/main.cuh"\n', tmp_path)
    with pytest.raises(UserError, match=r"two different files are included as 'util\.cuh'.*rename one"):
        resolve_headers(module)
    (tmp_path / "two" / "util.cuh").write_text("// one\n")
    assert "util.cuh" in _names(module)


def test_without_cudas_headers_the_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(rooms.Path, "is_file", lambda path: False)
    monkeypatch.setattr(rooms, "cuda_include_dirs", rooms.cuda_include_dirs.__wrapped__)
    with pytest.raises(MachineError, match="pip install nvidia-cuda-runtime nvidia-cuda-crt"):
        resolve_headers(_module("#include <cuda_fp16.h>"))


def test_a_file_that_is_too_large_for_a_header_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x.cuh").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(UserError, match="has more than 16 MiB: it is no header"):
        resolve_headers(_module('#include "x.cuh"', tmp_path))
