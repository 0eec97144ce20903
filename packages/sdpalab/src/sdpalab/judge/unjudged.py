"""Record of the code of a kernel that no judged case executed."""

from __future__ import annotations

from sdpalab.record import RECORD, JsonRecord, dataclass

__all__ = ["EntryCode", "UnjudgedCode"]

_ORIGINS = {
    "arguments": "scalar arguments",
    "launch": "indices and sizes of the grid",
    "memory": "values in memory",
    "other lanes": "values of other lanes",
}


@dataclass(frozen=True, config=RECORD)
class UnjudgedCode(JsonRecord):
    """Code that no case executed.

    Attributes
    ----------
    places : tuple of str
        Source lines, such as ``flash.cu:88-131``; PTX lines where there is no line information.
    branch : str
        Place of the branch that leads there, or empty.
    condition : str
        Its source line, or empty.
    depends : tuple of str
        Origins of the condition: ``arguments``, ``launch``, ``memory``, ``other lanes``, or special registers.
    reached : str
        Label of the smallest problem that was found to reach it, and not simulated; or empty.
    fails : bool
        Whether each path through it ends in a trap or a failed assertion.
    """

    places: tuple[str, ...]
    branch: str
    condition: str
    depends: tuple[str, ...]
    reached: str = ""
    fails: bool = False

    def __str__(self) -> str:
        named = [name for name in self.depends if name not in _ORIGINS]
        origins = [_ORIGINS[name] for name in self.depends if name in _ORIGINS] + named
        condition = f", decided by `{self.condition}`" if self.condition else ""
        depends = f", from {', '.join(origins)}" if origins else ""
        reached = f" ({self.reached} reaches it)" if self.reached else ""
        return f"{_lines(self.places)}{condition}{depends}{reached}"


@dataclass(frozen=True, config=RECORD)
class EntryCode(JsonRecord):
    """Basic blocks of a kernel's entry that the judged cases executed, over all its builds.

    Attributes
    ----------
    entry : str
    builds : int
        PTX modules with the entry; another type or head dimension is another build.
    blocks, executed : int
        Reachable basic blocks of all builds, and those that a case executed.
    unjudged : tuple of UnjudgedCode
        Unexecuted code without an executed copy.
    identity : tuple of str
        Special registers that it reads and that tell the machine or the time, such as ``%smid`` and ``%clock64``.
    """

    entry: str
    builds: int
    blocks: int
    executed: int
    unjudged: tuple[UnjudgedCode, ...] = ()
    identity: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.executed <= self.blocks:
            raise ValueError(f"{self.entry}: {self.executed} of {self.blocks} blocks executed")

    @property
    def sentences(self) -> list[str]:
        """One sentence for each piece of code that no case judged; traps and assertions are left out."""
        unjudged = [f"{self.entry}: {each}" for each in self.unjudged if not each.fails]
        return unjudged + ([f"{self.entry} reads {', '.join(self.identity)}"] if self.identity else [])


def _lines(places: tuple[str, ...]) -> str:
    shown = [place.replace("PTX:", "PTX lines " if "-" in place else "PTX line ", 1) for place in places[:4]]
    more = f" and {len(places) - 4} further places" if len(places) > 4 else ""
    return ", ".join(shown) + more
