"""The sources of the gallery's programs: archives of the package index.

An archive comes from the index that pip is configured for, is compared with its SHA-256, and is unpacked: the folders
that ``gallery.json`` names, and no path outside of the place. Nothing of it is installed or executed.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urldefrag, urljoin

Source = dict[str, Any]


class SourceError(Exception):
    """A source that cannot be had: one sentence."""


def place(source: Source, root: Path) -> Path:
    """Folder of a source: the value of ``{name}`` in the options of a build."""
    return root / f"{source['package']}-{source['version']}" / source["root"]


def fetch(source: Source, root: Path) -> None:
    """Bring a source that is not there yet.

    Raises
    ------
    SourceError
        If the index has no such archive, its digest is another one, or a path in it leads out of the folder.
    """
    root.mkdir(parents=True, exist_ok=True)
    if place(source, root).is_dir():
        return
    archive = root / source["archive"]
    if not archive.is_file() or _digest(archive.read_bytes()) != source["sha256"]:
        archive.write_bytes(_downloaded(source))
    _unpack(archive, source, root)


def index_url() -> str:
    """The package index that pip would ask: of its environment or configuration files, else its own default."""
    configured = dict(re.findall(r"^(\S+)\.index-url='(.*)'$", _pip("config", "list"), re.MULTILINE))
    for section in (":env:", "download", "global"):
        if section in configured:
            return str(configured[section])
    default = re.search(r"Package Index \(default\s+(\S+)\)", _pip("download", "--help"))
    if default is None:
        raise SourceError("pip names no package index: set PIP_INDEX_URL")
    return default[1]


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class _Links(HTMLParser):
    """The links of an index page (PEP 503), by the names of the files."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if tag == "a" and address:
            self.links[PurePosixPath(urldefrag(address).url).name] = address


def _downloaded(source: Source) -> bytes:
    """The bytes of an archive, as it should be."""
    page = f"{index_url().rstrip('/')}/{source['package']}/"
    links = _Links()
    try:
        with urllib.request.urlopen(urllib.request.Request(page, headers={"Accept": "text/html"})) as reply:
            page = reply.url
            links.feed(reply.read().decode())
        if source["archive"] not in links.links:
            raise SourceError(f"the package index has no {source['archive']}")
        with urllib.request.urlopen(urljoin(page, links.links[source["archive"]])) as reply:
            archive: bytes = reply.read()
    except OSError as error:
        raise SourceError(f"{source['archive']} could not be downloaded: {error}") from None
    if _digest(archive) != source["sha256"]:
        raise SourceError(f"{source['archive']} has the SHA-256 {_digest(archive)}, not {source['sha256']}")
    return archive


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _unpack(archive: Path, source: Source, root: Path) -> None:
    """Unpack the folders that are needed, beside their place, and move them there when all are complete."""
    wanted = [PurePosixPath(source["root"], folder) for folder in source.get("folders", [""])]

    def needed(path: str) -> bool:
        return any(PurePosixPath(path).is_relative_to(folder) for folder in wanted)

    with tempfile.TemporaryDirectory(dir=root) as beside:
        folder = Path(beside, "unpacked")
        # Both refuse, or strip of its roots and "..", a path that leads out of the folder.
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(folder, [path for path in wheel.namelist() if needed(path)])
        else:
            with tarfile.open(archive) as tar:
                try:
                    tar.extractall(folder, [member for member in tar if needed(member.name)], filter="data")
                except tarfile.FilterError as error:
                    raise SourceError(f"{archive.name} is refused: {error}") from None
        if not (folder / source["root"]).is_dir():
            raise SourceError(f"{archive.name} has none of the folders that gallery.json names")
        folder.rename(root / f"{source['package']}-{source['version']}")
