"""The build store: verified on read, atomic, and correct on a failing disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from warpsan.build.builder import build
from warpsan.build.cache import Cache, key_of
from warpsan.build.source import Module

FILES = {"a.txt": b"alpha", "b.bin": bytes(range(256))}


def _never() -> dict[str, bytes]:
    raise AssertionError("made although it is stored")


def test_key_separates_its_parts() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("ab", "c", ""), key_of(b"c", b"ab")}) == 5


def test_miss_then_hit(cache: Cache) -> None:
    assert cache.load("x", "k") is None
    miss = cache.get_or_make("x", "k", lambda: FILES)
    hit = cache.get_or_make("x", "k", _never)
    assert (miss.hit, hit.hit) == (False, True)
    assert miss.files == hit.files == FILES


def test_directory_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPSAN_CACHE_DIR", str(tmp_path / "from-environment"))
    assert Cache().root == tmp_path / "from-environment"
    monkeypatch.delenv("WARPSAN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Cache().root == tmp_path / "xdg" / "warpsan"


def test_pruning_removes_what_was_stored_longest_ago_and_no_more(cache: Cache) -> None:
    names = ("c", "a", "b")
    for age, name in enumerate(names):
        cache.get_or_make(name, "k", lambda: FILES)
        os.utime(cache.root / name / "SHA256SUMS", ns=(age, age))
    (cache.root / "torch").mkdir()  # no entry: packages of torch-matrix
    (cache.root / "torch" / "wheel").write_bytes(bytes(5000))
    size = sum(path.stat().st_size for path in (cache.root / "a").iterdir())
    assert cache.prune(3 * size) == 0
    assert cache.prune(2 * size) == size
    assert [cache.load(name, "k") for name in names] == [None, FILES, FILES]
    assert cache.prune(0) == 2 * size
    assert (cache.root / "torch" / "wheel").exists()
    assert list((cache.root / "tmp").iterdir()) == []
    assert not cache.get_or_make("a", "k", lambda: FILES).hit
    assert Cache(cache.root / "nowhere").prune(0) == 0


def test_nothing_is_stored_when_making_fails(cache: Cache) -> None:
    def fail() -> dict[str, bytes]:
        raise OSError(errno.ENOENT, "the maker's own trouble")

    with pytest.raises(OSError, match="the maker's own trouble"):
        cache.get_or_make("x", "k", fail)
    assert cache.load("x", "k") is None
    assert cache.get_or_make("x", "k", lambda: FILES).files == FILES


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x01
    path.write_bytes(bytes(data))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda entry: _flip(entry / "a.txt", 0),
    "a flipped bit of a binary": lambda entry: _flip(entry / "b.bin", -1),
    "a flipped bit of a digest": lambda entry: _flip(entry / "SHA256SUMS", -20),
    "a flipped bit of the key": lambda entry: _flip(entry / "SHA256SUMS", 4),
    "a truncated file": lambda entry: (entry / "b.bin").write_bytes(b""),
    "a missing file": lambda entry: (entry / "a.txt").unlink(),
    "a missing list": lambda entry: (entry / "SHA256SUMS").unlink(),
    "an added file": lambda entry: (entry / "c.txt").write_text("more"),
    "a renamed file": lambda entry: (entry / "a.txt").rename(entry / "A.txt"),
    "two files swapped": lambda entry: (entry / "a.txt").write_bytes(FILES["b.bin"]),
    "an empty folder": lambda entry: [path.unlink() for path in entry.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_quarantined_and_made_again(cache: Cache, damage: str) -> None:
    cache.get_or_make("x", "k", lambda: FILES)
    DAMAGE[damage](cache.root / "x")
    damaged = {path.name: path.read_bytes() for path in (cache.root / "x").iterdir()}
    assert cache.load("x", "k") is None
    again = cache.get_or_make("x", "k", lambda: FILES)
    assert not again.hit
    assert again.files == FILES
    assert cache.get_or_make("x", "k", _never).hit
    (quarantined,) = (cache.root / "quarantine").glob("x.*/x")
    assert {path.name: path.read_bytes() for path in quarantined.iterdir()} == damaged


def test_another_key_under_the_same_name_is_no_hit(cache: Cache) -> None:
    cache.get_or_make("x", "k", lambda: FILES)
    assert cache.get_or_make("x", "other", lambda: {"new": b""}).files == {"new": b""}


@pytest.mark.parametrize("file", ["kernel.ptx", "kernel.cubin", "build.json"])
def test_a_flipped_byte_of_a_build_is_never_returned(scale: Module, cache: Cache, file: str) -> None:
    good = build(scale, cache=cache)
    _flip(cache.root / good.name / file, 100)
    again = build(scale, cache=cache)
    assert not again.cache_hit
    assert (again.ptx, again.cubin, again.entry) == (good.ptx, good.cubin, good.entry)
    assert len(list((cache.root / "quarantine").iterdir())) == 1
    assert build(scale, cache=cache).cache_hit


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "lock", "mkdir"])
def test_no_space_still_builds_and_never_hits_wrong(
    scale: Module, cache: Cache, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    good = build(scale, cache=Cache(cache.root.parent / "good"))

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if call == "write":
            patch.setattr("warpsan.build.cache.open", _full_after_ten_bytes, raising=False)
        elif call == "lock":
            patch.setattr("warpsan.locks.fcntl.flock", full)
        elif call == "mkdir":
            patch.setattr("warpsan.build.cache.tempfile.mkdtemp", full)
        else:
            patch.setattr(f"warpsan.build.cache.os.{call}", full)
        compiled = build(scale, cache=cache)
    assert (compiled.ptx, compiled.cubin) == (good.ptx, good.cubin)
    assert compiled.cache_problem == os.strerror(errno.ENOSPC)
    assert not compiled.cache_hit
    assert not list(cache.root.glob("tmp/*"))
    later = build(scale, cache=cache)
    assert (later.ptx, later.cubin, later.cache_hit, later.cache_problem) == (good.ptx, good.cubin, False, "")
    assert build(scale, cache=cache).cache_hit


def _full_after_ten_bytes(path: Path, mode: str) -> _FullFile:
    return _FullFile(path)


class _FullFile:
    """A file on a disk with ten free bytes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def __enter__(self) -> _FullFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        self._file.write(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_still_builds(scale: Module, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    compiled = build(scale, cache=Cache(tmp_path / "locked"))
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.cache_problem


def test_a_file_where_the_folder_should_be_still_builds(scale: Module, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    compiled = build(scale, cache=Cache(tmp_path / "file"))
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.cache_problem
    assert (tmp_path / "file").read_text() == "in the way"
