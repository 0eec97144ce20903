"""Text of the sources in line information: a kernel's modules, its folder and the headers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from warpsan.build.source import Module, Source

__all__ = ["Sources", "split_place"]


def split_place(place: str) -> tuple[str, int]:
    """Split ``flash.cu:42`` into ``("flash.cu", 42)``; the line is 0 without a number."""
    name, colon, line = place.rpartition(":")
    return (name, int(line)) if colon and line.isdigit() else (place, 0)


class Sources:
    """Source text by file name without folder, as in PTX.

    Parameters
    ----------
    texts : mapping of str to str
        Texts in memory, such as a kernel's source given as text.
    folders : iterable of Path
        Folders of other files, in search order.
    wrappers : collection of str
        Files with instruction wrappers: a call's line is more informative than a wrapper's line.
    """

    def __init__(
        self,
        texts: Mapping[str, str] | None = None,
        folders: Iterable[Path] = (),
        wrappers: Collection[str] = frozenset(),
    ) -> None:
        self._texts: dict[str, str | None] = dict(texts or {})
        self._folders = tuple(dict.fromkeys(folders))
        self._wrappers = wrappers

    @classmethod
    def of(
        cls, modules: Iterable[Source], folders: Iterable[Path] = (), wrappers: Collection[str] = frozenset()
    ) -> Sources:
        """Sources of modules; their own folders come first."""
        modules = list(modules)
        own = [folder for module in modules if isinstance(module, Module) for folder in module.include_dirs]
        return cls({module.name: module.source for module in modules}, [*own, *folders], wrappers)

    def text(self, name: str) -> str | None:
        """Text of a file by name; None if it is not found."""
        if name not in self._texts:
            self._texts[name] = None
            for folder in self._folders if name and "/" not in name else ():
                path = folder / name
                if path.is_file():
                    self._texts[name] = path.read_text(errors="replace")
                    break
        return self._texts[name]

    def line(self, place: str) -> str:
        """Source line of ``flash.cu:42``; empty if unknown."""
        name, number = split_place(place)
        lines = (self.text(name) or "").splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def known(self) -> Mapping[str, str]:
        """Texts in memory, given or read."""
        return {name: text for name, text in self._texts.items() if text is not None}

    def speaks(self, name: str) -> bool:
        """Whether a line of the file is informative to the kernel's author: the file is found, and not a wrapper."""
        return name not in self._wrappers and self.text(name) is not None

    def innermost(self, frames: Sequence[str]) -> str:
        """First informative one of ``file:line:column`` frames, innermost first; else the first of all."""
        return next((frame for frame in frames if self.speaks(frame.rsplit(":", 2)[0])), frames[0] if frames else "")
