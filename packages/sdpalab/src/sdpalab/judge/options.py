"""Options of a judgement, one object from the caller to the candidate's processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.judge.interrupt import Interrupt
from sdpalab.judge.sandbox.plans import SentPlan
from sdpalab.judge.verdict import Case
from sdpalab.problem import Problem
from sdpalab.run import gpu_problem
from warpsan import DEFAULT_NUMERICS

__all__ = ["CASE_SECONDS", "DEVICES", "GPU_CASE_SECONDS", "JudgeOptions", "Store"]

DEVICES = ("auto", "sim", "cpu", "gpu")
CASE_SECONDS = 120.0
"""Most wall-clock seconds of one case, both runs together."""
GPU_CASE_SECONDS = 10.0
"""Most seconds of one case on a GPU, without builds; a kernel that runs longer hangs, and only the end of its process
stops it."""


class Store(Protocol):
    """Keeps the arrays of a verdict, so that others can derive it again."""

    def put(self, array: npt.NDArray[Any]) -> str:
        """Keep ``array`` and return the sha256 of its bytes, in hex."""
        ...


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """Options of :func:`sdpalab.judge.session.judge_candidate`.

    Attributes
    ----------
    device : {"auto", "sim", "cpu", "gpu"}
        As for :func:`sdpalab.judge.judge`.
    arch : str, optional
        Target architecture of the build and of the simulator, such as ``sm_89``. Default: that of the GPU, or the
        kernel's default architecture (:attr:`sdpalab.kernels.kernel.Kernel.default_arch`).
    sms : int, optional
        Multiprocessors of the GPU that the kernel's plans are for. Default: those of the GPU, or on the simulator those
        of the default GPU of the architecture (:func:`warpsan.gpus.default_gpu`).
    config : mapping of str to str, optional
        Knobs that differ from the kernel's default configuration.
    level, seed
        As for :func:`sdpalab.judge.judge`, which are only recorded.
    store : Store, optional
        Receives each case's q, k, v, o (and o_second, if it differs) and yardstick.
    progress : callable, optional
        Called with each finished Case, one at a time, in the order in which they finish.
    on_start : callable, optional
        Called at the start of each case, one at a time, with its name and the number of all cases for the candidate.
    on_plan : callable, optional
        Called before each execution, one at a time, with a problem, its launch plan, and the architecture.
    workers : int, optional
        Concurrent sets of the candidate's processes. Default: 1, and a second set on several CPUs if the first cases
        show that the others take long (:mod:`sdpalab.judge.pace`).
    timeout : float, optional
        Most seconds of one case. Default: 120, and 10 on a GPU without builds. A kernel that hangs twice is judged no
        further.
    max_steps : int, optional
        Most steps of one warp on the simulator; a warp with more counts as an endless loop (:func:`warpsan.launch`).
    numerics : str
        Numerics of the simulator's tensor-core sums (:func:`warpsan.launch`).
    until_failure : bool
        Stop at the first case that fails; the verdict has the cases finished by then.
    algebra : bool
        Whether a kernel on the simulator is also run in exact arithmetic (:mod:`sdpalab.judge.algebra`), on small
        versions of the first problem.
    coverage : bool
        Whether the unexecuted code of a kernel on the simulator is listed, and reached by further cases where a branch
        depends on sizes (:mod:`sdpalab.judge.reaching`).
    signature : str
        A name of :data:`sdpalab.judge.signatures.SIGNATURES` by which a function is called; empty for the lab's form.
    include_dirs : sequence of Path
        Folders for ``#include`` beside those of the kernel.
    memory_bytes : int, optional
        Most resident memory of a candidate's process and its children. Default: 16 GiB.
    interrupt : Interrupt, optional
        Ends this judgement early; the caller installs it. Default: a new one, installed while cases run.
    secret : bytes, optional
        Source of the hidden seeds. Default: random bytes of the operating system.
    """

    device: str = "auto"
    arch: str | None = None
    sms: int | None = None
    config: Mapping[str, str] | None = None
    level: str = "quick"
    seed: int = 0
    store: Store | None = None
    progress: Callable[[Case], None] | None = None
    on_start: Callable[[str, int], None] | None = None
    on_plan: Callable[[Problem, SentPlan, str], None] | None = None
    workers: int | None = None
    timeout: float | None = None
    max_steps: int | None = None
    numerics: str = DEFAULT_NUMERICS
    until_failure: bool = False
    algebra: bool = True
    coverage: bool = False
    signature: str = ""
    include_dirs: Sequence[Path] = ()
    memory_bytes: int | None = None
    interrupt: Interrupt | None = None
    secret: bytes | None = None

    @property
    def gpu(self) -> bool:
        """Whether the kernel runs on the GPU instead of the simulator."""
        return self.device == "gpu"

    @property
    def case_seconds(self) -> float:
        """Most wall-clock seconds of one case; on a GPU without builds."""
        return self.timeout or (GPU_CASE_SECONDS if self.gpu else CASE_SECONDS)

    def check_device(self) -> None:
        """Raise UserError if the device is unknown, or this machine has none."""
        if self.device not in DEVICES:
            raise UserError(f"device must be one of {', '.join(DEVICES)}, not {self.device!r}")
        if self.gpu and (reason := gpu_problem()):
            raise UserError(f"{reason}; device sim runs the PTX on the simulator")
