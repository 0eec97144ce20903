"""The text of the sources that line information names: a kernel's modules, its folder and the headers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from warpsan.build.source import Module, Source

__all__ = ["Sources", "split_place"]


def split_place(place: str) -> tuple[str, int]:
    """``("flash.cu", 42)`` of ``flash.cu:42``; the line is 0 if there is none."""
    name, colon, line = place.rpartition(":")
    return (name, int(line)) if colon and line.isdigit() else (place, 0)


class Sources:
    """Source text by file name, as PTX gives it: without its folder.

    Parameters
    ----------
    texts : mapping of str to str
        Those at hand, such as a kernel's source given as text.
    folders : iterable of Path
        Folders of other files, in this order.
    wrappers : collection of str
        Files of one wrapper an instruction: the line of the call says more than the wrapper's own.
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
        """The sources of modules, whose own folders come first."""
        modules = list(modules)
        own = [folder for module in modules if isinstance(module, Module) for folder in module.include_dirs]
        return cls({module.name: module.source for module in modules}, [*own, *folders], wrappers)

    def text(self, name: str) -> str | None:
        """The text of the file of that name; None if there is no such file at hand."""
        if name not in self._texts:
            self._texts[name] = None
            for folder in self._folders if name and "/" not in name else ():
                path = folder / name
                if path.is_file():
                    self._texts[name] = path.read_text(errors="replace")
                    break
        return self._texts[name]

    def line(self, place: str) -> str:
        """The source line of ``flash.cu:42``; empty if it is not known."""
        name, number = split_place(place)
        lines = (self.text(name) or "").splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def known(self) -> Mapping[str, str]:
        """The texts that are at hand or were read."""
        return {name: text for name, text in self._texts.items() if text is not None}

    def speaks(self, name: str) -> bool:
        """Whether a line of that file says something to the author of a kernel: it is at hand, and not a wrapper."""
        return name not in self._wrappers and self.text(name) is not None

    def innermost(self, frames: Sequence[str]) -> str:
        """Of ``file:line:column``, innermost first, the first whose line says something; else the first of all."""
        return next((frame for frame in frames if self.speaks(frame.rsplit(":", 2)[0])), frames[0] if frames else "")
