"""Messages of the worker processes: the schema of each answer. Any other message is rejected."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json, model_validator

from sdpalab.judge.verdict import Status

__all__ = [
    "MOST_TEXT",
    "About",
    "CandidateReply",
    "DeclaredNumerics",
    "KernelDescription",
    "Message",
    "PlanReply",
    "Reply",
    "hazard_reason",
    "plain",
]

MOST_TEXT = 4000
"""Most characters of a candidate's text that are shown."""

MOST_CODE = 500
"""Most characters of a source line."""

_FAILURES = {status.value for status in Status if status not in (Status.PASSED, Status.INTERRUPTED)}


def plain(text: str) -> str:
    """``text`` in one line, of at most :data:`MOST_TEXT` characters, without control characters."""
    shown = " ".join(text[: MOST_TEXT + 1].split())
    # Categories C*: control and format characters (escape sequences, reversed text), surrogates, private ones.
    shown = "".join("?" if unicodedata.category(char).startswith("C") else char for char in shown)
    return shown if len(text) <= MOST_TEXT else f"{shown[: MOST_TEXT - 4]} ..."


Text = Annotated[str, AfterValidator(plain)]


def _code(text: str) -> str:
    """A source line without control characters, shortened to :data:`MOST_CODE`."""
    return "".join(
        "?" if unicodedata.category(char).startswith("C") else char for char in text.expandtabs(1)[:MOST_CODE]
    )


Code = Annotated[str, AfterValidator(_code)]


class Message(BaseModel):
    """Base of the messages: strict types without conversion."""

    model_config = ConfigDict(frozen=True, strict=True)


class DeclaredQuantisation(Message):
    """See :class:`sdpalab.kernels.declarations.Quantisation`."""

    dtype: Text
    rows: int


class DeclaredNumerics(Message):
    """See :class:`sdpalab.kernels.declarations.Numerics`."""

    accumulate: Text
    probabilities: Text
    probability_scale: float
    quantised: DeclaredQuantisation | None
    normalise: Text
    products: Text = "problem"
    tanh: Text = "float32"
    accumulate_terms: int | None = None
    score_gradients: Text = "problem"
    value_gradients: Text = "float32"
    partial_rows: int = 0
    unordered: list[Text] = []


Knob = int | Text
Knobs = dict[Text, Knob]


class About(Message):
    """The description of a loaded candidate.

    A kernel that the lab builds declares its ``numerics``, and ``rejects`` has one entry for each problem: None, or the
    reason for no support; ``declares_support``: whether it declares ``supports`` itself. ``arch`` is the target
    architecture, the kernel's own choice if the judge has none, and ``refuses`` the reason why it cannot be built for
    that; ``lse``: whether it writes the log-sum-exp; ``algebraic``: the knobs that the algebraic stage changes. A
    callable declares only ``features`` (:data:`sdpalab.judge.parameters.PARAMETERS`), among them those that each call
    ``needs``, and is judged by the default numerics; ``signature``: the peer's signature by which it is called, if any.
    """

    kind: Literal["cuda", "callable"]
    name: Annotated[Text, Field(min_length=1, max_length=200)]
    config: Knobs = {}
    arch: Annotated[Text, Field(max_length=20)] = ""
    refuses: Text | None = None
    lse: bool = False
    algebraic: Knobs = {}
    numerics: DeclaredNumerics | None = None
    declares_support: bool = False
    rejects: list[Text | None] = []
    features: list[Text] = []
    needs: list[Text] = []
    signature: Text = ""

    @model_validator(mode="after")
    def _a_callable_declares_nothing(self) -> About:
        if (self.kind == "callable") != (self.numerics is None):
            raise ValueError(f"a {self.kind} candidate with numerics {self.numerics}")
        if (self.kind == "callable") != (not self.arch):
            raise ValueError(f"a {self.kind} candidate for {self.arch or 'no architecture'}")
        return self


class StatedProvenance(Message):
    """See :meth:`sdpalab.judge.sandbox.kernel_calls.KernelCalls.stated`."""

    functions: list[Text]
    launches: Annotated[int, Field(ge=0)]
    writers: dict[Text, Annotated[int, Field(ge=0)]]
    flops: dict[Text, Annotated[int, Field(ge=0)]]


class StatedRegion(Message):
    """See :class:`sdpalab.judge.unjudged.UnjudgedCode`."""

    places: list[Text]
    branch: Text
    condition: Code
    depends: list[Text]
    reached: Literal[""]
    fails: bool


class StatedCode(Message):
    """See :class:`sdpalab.judge.unjudged.EntryCode`."""

    entry: Text
    builds: int
    blocks: Annotated[int, Field(ge=0)]
    executed: Annotated[int, Field(ge=0)]
    unjudged: list[StatedRegion]
    identity: list[Text]

    @model_validator(mode="after")
    def _executed_blocks_exist(self) -> StatedCode:
        if self.executed > self.blocks:
            raise ValueError(f"{self.executed} of {self.blocks} blocks executed")
        return self


class Reply(Message):
    """Result of an order: a failure and its reason, or ``status`` None with the observations."""

    status: str | None
    reason: Text = ""
    memory_poisoned: bool | None = None
    changed: list[Text] = []
    provenance: StatedProvenance | None = None
    code: list[StatedCode] = []

    @model_validator(mode="after")
    def _a_failure_or_nothing(self) -> Reply:
        """A worker can report a failure with a reason, but not a pass."""
        if self.status is not None and (self.status not in _FAILURES or not self.reason):
            raise ValueError(f"status {self.status!r} with reason {self.reason!r}")
        return self


class SentParty(Message):
    """See :class:`warpsan.report.groups.Party`."""

    place: Text
    column: int
    line: Code
    text: Text
    who: Text
    frames: list[Text]


class SentGroup(Message):
    """See :class:`warpsan.report.groups.HazardGroup`."""

    kind: Text
    message: Text
    what: Text
    advice: Text
    here: SentParty
    other: SentParty | None
    instructions: list[Text]
    runs: list[Text]
    suppressed: Text


class NewBuild(Message):
    """An entry of the build cache that the plan server has made; its files are sent beside it as bytes."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]{1,200}$")]
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    files: list[Literal["kernel.ptx", "kernel.cubin", "build.json"]]


class PlanReply(Reply):
    """Fields that only the plan server may send, not a candidate's process.

    ``unexecuted`` has for each launch the pc of each basic block that it did not execute. ``groups`` are the hazards of
    the simulator by kind and pair of source lines, including those before a failure. ``ring`` is the ring in which a
    plan ran, and ``not_algebraic`` the reason why it did not. ``arch`` and ``sms`` are the architecture and the
    multiprocessors of an opened GPU; ``lost``: a kernel has made the GPU unusable for the process. ``builds`` are new
    builds, which the judge keeps. ``set_aside`` is the host code of a source, which is not compiled.
    """

    device: Text = ""
    arch: Text = ""
    sms: Annotated[int, Field(ge=0)] = 0
    lost: bool = False
    ptx_sha256: list[Text] = []
    unexecuted: list[list[int]] = []
    hazards: list[Text] = []
    hazard_count: int = 0
    groups: list[SentGroup] = []
    ring: Text = ""
    not_algebraic: Text = ""
    builds: list[NewBuild] = []
    set_aside: Text = ""


class KernelDescription(Message):
    """Description of a user's kernel: the fields of :class:`sdpalab.kernels.kernel.Kernel` that do not depend on a
    problem.

    A callable has only its name. ``source`` is text that is compiled or hashed, and never shown.
    """

    kind: Literal["kernel", "callable"]
    name: Annotated[Text, Field(min_length=1, max_length=200)]
    idea: Text = ""
    source: str = ""
    configs: list[Knobs] = [{}]
    knobs: dict[Text, list[Knob]] = {}
    min_arch: int = 0
    only_arch: Annotated[Text, Field(max_length=20)] = ""
    lse: bool = False

    @model_validator(mode="after")
    def _has_a_default(self) -> KernelDescription:
        if not self.configs:
            raise ValueError("a kernel without a configuration")
        return self


class LaunchNeeds(Message):
    """Needs of a launch from an SM before compilation: threads of a block, bytes of dynamic shared memory."""

    threads: int
    dynamic_smem: int


class CandidateReply(Reply):
    """Answer of a candidate's process to an order other than a call; a launch plan is sent beside it as bytes.

    Each field is the result of the order of that name (:mod:`sdpalab.judge.sandbox.candidate_server`).
    """

    about: About | None = None
    description: KernelDescription | None = None
    refusal: Text | None = None
    config: Knobs | None = None
    numerics: DeclaredNumerics | None = None
    limits: dict[Text, int | float | Text | None] | None = None
    survey: list[Text | list[LaunchNeeds]] | None = None
    facts: Json[dict[str, Any]] | None = None


def hazard_reason(reply: Mapping[str, Any]) -> str:
    """The first hazard of a reply, and the number of further ones."""
    more = f" (and {reply['hazard_count'] - 1} more)" if reply.get("hazard_count", 1) > 1 else ""
    return f"{reply['hazards'][0]}{more}"
