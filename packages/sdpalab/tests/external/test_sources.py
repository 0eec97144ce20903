"""Sources from a package index: the digest is compared, only named folders are unpacked, and no path leads outside."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sources


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is served as a package index, and that pip is configured for."""
    folder = tmp_path / "index"
    (folder / "pack").mkdir(parents=True)
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *arguments: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setattr(sources, "index_url", lambda: f"http://127.0.0.1:{server.server_port}/")
        yield folder
        server.shutdown()
        thread.join()


def publish(index: Path, archive: str, files: dict[str, str]) -> dict[str, Any]:
    """Put an archive into the index; its source as ``gallery.json`` has it."""
    packed = io.BytesIO()
    if archive.endswith(".whl"):
        with zipfile.ZipFile(packed, "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for path, text in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
    (index / archive).write_bytes(packed.getvalue())
    (index / "pack/index.html").write_text(f'<a href="../{archive}#sha256=0">{archive}</a>')
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    return {"package": "pack", "version": "1", "archive": archive, "sha256": digest, "root": "top"}


@pytest.mark.parametrize("archive", ["pack-1.tar.gz", "pack-1-py3-none-any.whl"])
def test_the_named_folders_of_an_archive_are_unpacked(index: Path, tmp_path: Path, archive: str) -> None:
    files = {"top/src/a.cu": "kernel", "top/srcs/b.cu": "", "top/setup.py": "raise SystemExit", "else/src/c": ""}
    source = publish(index, archive, files) | {"folders": ["src"]}
    sources.fetch(source, tmp_path / "root")
    place = sources.place(source, tmp_path / "root")
    unpacked = {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}
    assert unpacked == {"src/a.cu": "kernel"}
    (index / archive).unlink()
    sources.fetch(source, tmp_path / "root")  # is there: nothing is downloaded


def test_another_archive_than_the_named_one_is_refused(index: Path, tmp_path: Path) -> None:
    source = publish(index, "pack-1.tar.gz", {"top/a": "1"})
    with pytest.raises(sources.SourceError, match="has the SHA-256"):
        sources.fetch(source | {"sha256": "0" * 64}, tmp_path / "root")
    with pytest.raises(sources.SourceError, match=r"has no pack-2\.tar\.gz"):
        sources.fetch(source | {"archive": "pack-2.tar.gz"}, tmp_path / "root")
    with pytest.raises(sources.SourceError, match="none of the folders"):
        sources.fetch(source | {"root": "else"}, tmp_path / "root")
    assert not sources.place(source, tmp_path / "root").exists()


def test_a_path_that_leads_out_is_refused(index: Path, tmp_path: Path) -> None:
    source = publish(index, "pack-1.tar.gz", {"top/a": "1", "top/../../../outside": "2"})
    with pytest.raises(sources.SourceError, match="refused"):
        sources.fetch(source, tmp_path / "root")
    assert not list(tmp_path.rglob("outside"))


def test_the_index_is_that_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://packages.example/simple")
    assert sources.index_url() == "https://packages.example/simple"
