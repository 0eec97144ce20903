"""A candidate, from the judge's side: the processes that load it and run it on request, and that can always be ended.

A callable runs in the process that loaded it. A kernel that the lab builds only computes its launch plan there; the
plan is returned as data, checked here, and executed in a second process in which no Python of the candidate ever runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sdpalab.compile import Cache
from sdpalab.errors import MachineError, UserError
from sdpalab.inputs import loud_padding
from sdpalab.judge.algebra.stage import reordered
from sdpalab.judge.options import JudgeOptions
from sdpalab.judge.sandbox.candidate import CandidateSpec
from sdpalab.judge.sandbox.candidate_server import SERVER
from sdpalab.judge.sandbox.executed import CodeReply, Executed, ExecutedBuild, SentEntry, SentRegion
from sdpalab.judge.sandbox.guarded import START_SECONDS, GuardedProcess, Quota, simulating_process
from sdpalab.judge.sandbox.messages import About, CandidateReply, PlanReply, Reply, hazard_reason, plain
from sdpalab.judge.sandbox.new_builds import MOST_BUILDS, keep_builds
from sdpalab.judge.sandbox.plans import MOST_PLAN, PlanError, SentPlan, read_plan
from sdpalab.judge.sandbox.wire import WireClosed, WireError, WireTimeout
from sdpalab.judge.strides import Strides
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.plan import problem_buffers
from sdpalab.packing import Packing
from sdpalab.problem import Problem
from warpsan import DEFAULT_NUMERICS
from warpsan.folders import NATIVE, SHARED_CACHE
from warpsan.gpus import default_sms

__all__ = ["POISONS", "CandidateBuildError", "CandidateDied", "CandidateProcesses", "room_for"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Answer = tuple[dict[str, Any], dict[str, Array]]

POISONS = (0xFF, 0x3C)
"""Bytes that fill every output before the first and the second run: NaN, then about 1 (float16) or 0.01 (bfloat16)."""

PLAN_SERVER = "sdpalab.judge.sandbox.plan_server"
"""Module that executes plans in a separate process."""

_BUILD_SECONDS = 120.0
"""Wall-clock seconds for the plan and the builds of a case on a GPU, before the time of its runs begins."""


class CandidateDied(Exception):
    """A process ended or had to be killed: the status of the case, and the reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class CandidateProcesses:
    """One loaded candidate; :meth:`close` ends its processes and their children.

    Parameters
    ----------
    candidate_spec : CandidateSpec
        The candidate.
    problems : tuple of Problem
        Problems to run; the candidate reports at load time which of them it does not support.
    options : JudgeOptions
        The build, the device and the limits; ``timeout`` is that of one :meth:`run` or :meth:`attempt`.

    Attributes
    ----------
    about : dict
        The candidate's description of itself (:class:`~sdpalab.judge.sandbox.messages.About`), and ``device``, on which
        it runs.
    alone : bool
        Whether these processes have all cores: one launch on the simulator may then use all of them.
    executed : Executed, optional
        Receives the code that each simulated launch of :meth:`run` executed.

    Raises
    ------
    UserError
        If the candidate does not load, with its message; or the GPU does not run code for ``arch``.
    MachineError
        If the process does not start, or there is no GPU.
    """

    def __init__(self, candidate_spec: CandidateSpec, problems: tuple[Problem, ...], options: JudgeOptions) -> None:
        self._options, self.alone = options, False
        self.executed: Executed | None = None
        self._seconds = options.case_seconds
        cpu_seconds = int(START_SECONDS + 2 * self._seconds * max(1, len(problems)))
        self._quota = Quota(cpu_seconds).with_memory(options.memory_bytes)
        self._deadline = 0.0
        self._plan_process: GuardedProcess | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._reads = (*candidate_spec.files, *options.include_dirs)
        shared = Cache().root  # compiled parts of the simulator, for functions with Triton kernels
        self._candidate = GuardedProcess(
            SERVER,
            self._quota,
            untrusted=True,
            read=(*self._reads, shared / NATIVE),
            environment={SHARED_CACHE: str(shared)},
        ).await_ready()
        try:
            # Without confinement another candidate may have put a build of another kernel into a cache.
            confined = self._candidate.confinement == "namespaces"
            self._cache = Cache(candidate_spec.cache(options.include_dirs) if confined else self._own_cache())
            device, arch, sms = "", options.arch, options.sms
            if options.gpu:
                self._plan_process = self._start_plan_process(gpu=True)
                device, arch, gpu_sms = self._open_gpu(self._plan_process, arch)
                sms = sms or gpu_sms
            about = self._load(candidate_spec, arch, problems)
            self._arch, is_kernel = arch or about.arch, about.kind == "cuda"
            self._config = Config(about.config)
            self._algebraic = Config({**self._config, **about.algebraic})
            changed = Config(dict(self._algebraic.items() - self._config.items()))
            self.about = {
                **about.model_dump(),
                "config": plain(str(self._config)),
                "algebraic": plain(str(changed)),
                "device": device or (self._simulator(about.arch) if is_kernel else f"cpu (torch {version('torch')})"),
                **({"sms": sms or default_sms(self._arch)} if is_kernel else {}),
            }
            self._build = {"arch": self._arch, "cache": str(self._cache.root), "max_steps": options.max_steps}
            if is_kernel and self._plan_process is None:
                self._plan_process = self._start_plan_process(gpu=False)
        except BaseException:
            self.close()
            raise

    def run(
        self, problem: Problem, inputs: Arrays, other: Arrays | None = None, *, strides: Strides = Strides.CONTIGUOUS
    ) -> Answer:
        """Run the candidate twice on ``inputs`` (q, k, v), with differently poisoned memory.

        A kernel's second run also has other padding (:func:`sdpalab.inputs.loud_padding`) and, on the simulator, blocks
        in reverse order; the output must depend on neither.

        Between the two a callable is run on ``other``, if given, in the memory of the first run: results stored by
        address, by object or by problem are then wrong. A simulated launch has no state from earlier launches, so a
        kernel is not run on ``other``. All arrays here are contiguous; ``strides`` are those in the memory of a
        callable (a kernel's buffers are contiguous by contract). A kernel that writes the log-sum-exp computes it in
        the first run, and gets a null pointer in the second.

        Returns
        -------
        reply, outputs
            As :class:`~sdpalab.judge.sandbox.messages.Reply`, with ``confinement`` (that of the candidate's process,
            see :mod:`sdpalab.judge.sandbox.guard`); and the outputs by run and name, such as ``first.o``,
            ``second.o``, and optionally ``other.o`` and ``first.lse``.

        Raises
        ------
        CandidateDied
            If a process ends, hangs beyond the timeout or breaks the protocol. The worker is then unusable.
        """
        runs = [("first", inputs, False)]
        if other is not None and self._plan_process is None:
            runs.append(("other", other, True))
        # Callables need no other padding: torch's maximum keeps NaN.
        second = inputs if self._plan_process is None else loud_padding(inputs)
        runs.append(("second", second, False))
        self._begin()
        outputs: dict[str, Array] = {}
        notes: dict[str, Any] = {}
        changed: set[str] = set()
        try:
            packing = Packing(problem)
            plans = self._plans(packing)
            for name, arrays, reuse in runs:
                first = name == "first"
                plan = plans and (plans.full if first else plans.bare)
                # Runs with checks reuse the code that the simulator has already translated.
                watched = not notes.get("hazards")
                loud = name == "second" and self._plan_process is not None
                reply, results = self._once(
                    *(packing, arrays, plan, POISONS[not first]),
                    loud=loud,
                    reuse=reuse,
                    watched=watched,
                    strides=strides,
                )
                if self.executed is not None and plans is not None and reply.get("unexecuted"):
                    self.executed.add(packing, plans.plan, reply)
                wanted = (*problem.outputs, *(["lse"] if first and self.about["lse"] else []))
                logical = packing.unpack({each: results[each] for each in wanted if each in results})
                outputs |= {f"{name}.{output}": array for output, array in logical.items()}
                if not notes:
                    notes = reply
                elif reply.get("hazards") and not notes.get("hazards"):  # without the log-sum-exp it may have its own
                    notes |= {field: reply[field] for field in ("hazards", "hazard_count", "groups")}
                changed |= set(reply.get("changed", ()))
            if plans is None:
                self._look_again(results)
        except _Failed as failure:
            if notes.get("hazards"):  # hazards of an earlier run explain this end
                hazards = {"reason": hazard_reason(notes), "groups": notes["groups"]}
                return {**failure.reply, "status": Status.HAZARD.value, **hazards}, {}
            return failure.reply, {}
        return {**notes, "changed": sorted(changed)}, outputs

    def attempt(self, problem: Problem, inputs: Arrays) -> Answer:
        """Run the candidate once, without the log-sum-exp.

        Raises
        ------
        CandidateDied
            As :meth:`run`.
        """
        self._begin()
        try:
            packing = Packing(problem)
            plans = self._plans(packing)
            reply, results = self._once(packing, inputs, plans and plans.bare, POISONS[0])
        except _Failed as failure:
            return failure.reply, {}
        return reply, packing.unpack({name: results[name] for name in problem.outputs if name in results})

    def run_in_ring(self, problem: Problem, draws: Arrays) -> Answer:
        """Run a kernel's plan once on the simulator in exact arithmetic (:mod:`sdpalab.judge.algebra`).

        Without requested knobs it runs with the kernel's ``algebraic`` knobs. ``draws`` are the result of
        :func:`sdpalab.judge.algebra.stage.drawn`. The reply has ``ring`` and ``ptx_sha256``, or ``not_algebraic``, or a
        ``status`` with its ``reason``; outputs are ``o`` and, if the kernel writes it, ``lse``. A kernel that is not
        algebraic with its log-sum-exp is run again without; ``lse_refusal`` is then the reason.

        Raises
        ------
        CandidateDied
            As :meth:`run`.
        """
        self._begin()
        try:
            plans = self._plans(Packing(problem), ring=True)
            assert plans is not None  # a callable has none
            assert self._plan_process is not None
            order = {"do": "ring", **self._build, "poison": POISONS[0], "reordered": reordered(problem)}
            room = room_for(draws)
            sent = {  # the wire has no uint16
                name: array.view(np.float16) if array.dtype == np.uint16 else array for name, array in draws.items()
            }
            reply, outputs = self._ask(self._plan_process, order, {"plan": plans.full, **sent}, room)
            refusal = str(reply.get("not_algebraic", ""))
            if not refusal or not self.about["lse"]:
                return reply, outputs
            reply, outputs = self._ask(self._plan_process, order, {"plan": plans.bare, **sent}, room)
            return {**reply, "lse_refusal": refusal}, outputs
        except _Failed as failure:
            return failure.reply, {}

    def build(self, problem: Problem) -> tuple[Status, str]:
        """Build the launch plan for a problem: PASSED, or the status and the reason; a callable has nothing to build.

        Raises
        ------
        CandidateDied
            As :meth:`run`.
        """
        self._begin()
        try:
            plans = self._plans(Packing(problem))
            if plans is not None and self._plan_process is not None:
                self._ask(self._plan_process, {"do": "build", **self._build}, {"plan": plans.full}, 0)
        except _Failed as failure:
            return Status(failure.reply["status"]), str(failure.reply["reason"])
        return Status.PASSED, ""

    def plan(self, problem: Problem) -> SentPlan | None:
        """The candidate's launch plan for a problem; None if it has none, or does not support the problem.

        Raises
        ------
        CandidateDied
            As :meth:`run`.
        """
        self._begin()
        try:
            plans = self._plans(Packing(problem), noted=False)
        except _Failed:
            return None
        return plans and plans.plan

    def code(self, builds: Sequence[ExecutedBuild]) -> list[SentEntry]:
        """The unexecuted code of builds."""
        plans = list({id(build.plan): build.plan for build in builds}.values())
        number = {id(plan): n for n, plan in enumerate(plans)}
        orders = [{**build.order(), "plan": number[id(build.plan)]} for build in builds]
        arrays = {f"plan {n}": _as_bytes(plan) for n, plan in enumerate(plans)}
        return self._about_code({"do": "code", "builds": orders, "plans": len(plans)}, arrays).entries

    def reached(
        self, plan: SentPlan, wanted: Sequence[tuple[ExecutedBuild, Sequence[SentRegion]]]
    ) -> list[list[bool | None]]:
        """Whether the launches of a plan, which has the same code as the builds, reach regions; None where that depends
        on more than integer arguments and the grid."""
        orders = [
            {**build.order(), "regions": [(region.pcs, region.outcome) for region in regions]}
            for build, regions in wanted
        ]
        return self._about_code({"do": "reach", "builds": orders}, {"plan": _as_bytes(plan)}).reached

    def _about_code(self, order: Mapping[str, Any], arrays: Arrays) -> CodeReply:
        assert self._plan_process is not None
        self._begin()
        try:
            reply, results = self._plan_process.ask(
                CodeReply, {**order, **self._build}, arrays, MOST_BUILDS, self._deadline
            )
            keep_builds(self._cache, reply.builds, results)
        except WireError as error:
            raise self._died(self._plan_process, error) from None
        if reply.status is not None:
            raise MachineError(reply.reason)
        return reply

    def close(self) -> None:
        """End the processes and their children."""
        for process in self._processes():
            process.close()
        if self._folder is not None:
            self._folder.cleanup()

    def kill(self) -> None:
        """End the processes; safe from another thread, whose :meth:`run` then fails."""
        for process in self._processes():
            process.kill()

    def _own_cache(self) -> Path:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="sdpalab-cache-", ignore_cleanup_errors=True)
        except OSError as error:
            raise MachineError(f"there is no room for a temporary folder: {error.strerror}") from None
        return Path(self._folder.name)

    def _processes(self) -> tuple[GuardedProcess, ...]:
        return (self._candidate, self._plan_process) if self._plan_process else (self._candidate,)

    def _start_plan_process(self, *, gpu: bool) -> GuardedProcess:
        return simulating_process(PLAN_SERVER, self._quota, self._cache.root, self._reads, gpu=gpu).await_ready()

    def _open_gpu(self, process: GuardedProcess, arch: str | None) -> tuple[str, str, int]:
        """Open the GPU in the plan server; return its name, its architecture, and its multiprocessors."""
        deadline = time.monotonic() + START_SECONDS
        try:
            reply, _ = process.ask(PlanReply, {"do": "open", "arch": arch}, {}, 0, deadline)
        except WireError as error:
            raise MachineError(f"the GPU cannot be opened: {error}{process.quote()}") from None
        if reply.status is not None:
            raise (UserError if reply.status == Status.BUILD_FAILED else MachineError)(reply.reason)
        return reply.device, reply.arch, reply.sms

    def _load(self, spec: CandidateSpec, arch: str | None, problems: Sequence[Problem]) -> About:
        """Load the candidate, and return its description of itself."""
        load = {"do": "load", "kind": spec.kind, "spec": spec.spec}
        wanted = [problem.to_dict() for problem in problems]
        describe = {"do": "about", "settings": self._options.config, "arch": arch, "problems": wanted}
        describe["signature"] = self._options.signature
        process, deadline = self._candidate, time.monotonic() + START_SECONDS
        for order, arrays in ((load, {"pickle": spec.pickle}), (describe, {})):
            try:
                reply, _ = process.ask(CandidateReply, order, arrays, 0, deadline)
            except WireError as error:
                raise process.no_answer(error, "the candidate does not load", START_SECONDS) from None
            if reply.status is not None:
                if reply.status == Status.INFRA_ERROR:
                    raise MachineError(reply.reason)
                if reply.status == Status.BUILD_FAILED:
                    raise CandidateBuildError(reply.reason)
                raise UserError(
                    f"the candidate does not load: it {reply.reason}"
                    if reply.status == Status.CRASHED
                    else reply.reason
                )
        if reply.about is None:
            raise UserError("the candidate does not load: its process did not describe it")
        return reply.about

    def _simulator(self, arch: str) -> str:
        """Name of the simulator as a device."""
        numerics = self._options.numerics
        return f"simulator {arch}" + ("" if numerics == DEFAULT_NUMERICS else f", numerics {numerics}")

    def _begin(self) -> None:
        """Start the time limit of a case."""
        self._limit(_BUILD_SECONDS if self._options.gpu else self._options.case_seconds)
        self._candidate.forget_output()

    def _limit(self, seconds: float) -> None:
        """Set the time limit, in seconds from now."""
        self._deadline, self._seconds = time.monotonic() + seconds, seconds

    def _plans(self, packing: Packing, *, ring: bool = False, noted: bool = True) -> _Plans | None:
        """The candidate's launch plan for a problem, as data; None for a callable. ``noted``: for an execution."""
        if self._plan_process is None:
            return None
        lse, config = bool(self.about["lse"]), self._algebraic if ring else self._config
        order = {"do": "plan", "problem": packing.problem.to_dict(), "config": config, "lse": lse, "arch": self._arch}
        order["sms"] = self.about["sms"]
        _, results = self._ask(self._candidate, order, {}, MOST_PLAN)
        try:
            data = results["plan"].tobytes() if "plan" in results else b""
            plan = read_plan(data, problem_buffers(packing.problem, lse=lse), self._options.include_dirs)
        except PlanError as error:
            raise _Failed(Status.BUILD_FAILED, str(error)) from None
        if self._options.on_plan is not None and noted:
            self._options.on_plan(packing.problem, plan, self._arch)
        plans = _Plans(plan, _as_bytes(plan), _as_bytes(plan.without("lse")) if lse else _as_bytes(plan))
        if self._options.gpu:
            # Builds come first, so that the short time limit on a GPU applies to the runs alone.
            self._ask(self._plan_process, {"do": "build", **self._build}, {"plan": plans.full}, 0)
            self._limit(self._options.case_seconds)
        return plans

    def _once(
        self,
        packing: Packing,
        inputs: Arrays,
        plan: Array | None,
        poison: int,
        *,
        loud: bool = False,
        reuse: bool = False,
        watched: bool = True,
        strides: Strides = Strides.CONTIGUOUS,
    ) -> Answer:
        room, inputs = room_for(inputs), packing.pack(inputs, loud=loud)
        if plan is None or self._plan_process is None:
            process, order = self._candidate, {"do": "call", "reuse": reuse, "strides": strides}
            order["problem"] = packing.problem.to_dict()
        else:
            process, inputs = self._plan_process, {"plan": plan, **inputs}
            order = {"do": "run", **self._build, "watched": watched, "alone": self.alone}
            order |= {"numerics": self._options.numerics, "schedule": "reverse" if loud else "lockstep"}
        reply, results = self._ask(process, {**order, "poison": poison}, inputs, room)
        if not results:
            raise self._died(process, WireError("message without an output"))
        held = {"confinement": self._candidate.confinement, "confined_by": self._candidate.confined_by}
        return {**reply, **held}, results

    def _look_again(self, sent: Arrays) -> None:
        """Fail if an output of the last call has changed since the call returned."""
        _, results = self._ask(self._candidate, {"do": "again"}, {}, sum(array.nbytes for array in sent.values()))
        if any(name not in results or results[name].tobytes() != array.tobytes() for name, array in sent.items()):
            raise _Failed(Status.NONDETERMINISTIC, "the output changed after the call had returned it")

    def _ask(self, process: GuardedProcess, order: Mapping[str, Any], arrays: Arrays, room: int) -> Answer:
        """Send an order and wait for its answer; raises _Failed for a failure, CandidateDied if there is no answer."""
        try:
            if process is self._candidate:
                answer, results = process.ask(Reply, order, arrays, room, self._deadline)
                reply = answer.model_dump(exclude_unset=True)
                if answer.status == Status.CRASHED:
                    reply["reason"] = f"the candidate {answer.reason}"
            else:
                checked, results = process.ask(PlanReply, order, arrays, room + MOST_BUILDS, self._deadline)
                reply = checked.model_dump(exclude_unset=True, exclude={"builds"})
                keep_builds(self._cache, checked.builds, results)
        except WireError as error:
            raise self._died(process, error) from None
        if reply["status"] is not None:
            # A GPU that a kernel has made unusable cannot run other cases.
            if reply.get("lost"):
                raise CandidateDied(Status(reply["status"]), reply["reason"])
            raise _Failed(Status(reply["status"]), reply["reason"], reply.get("groups", ()))
        return reply, results

    def _died(self, process: GuardedProcess, error: WireError) -> CandidateDied:
        """The failure behind a missing or malformed answer."""
        if isinstance(error, WireTimeout):
            return CandidateDied(Status.TIMED_OUT, f"no answer within {self._seconds:g} s{process.quote()}")
        closed = isinstance(error, WireClosed)
        ending = process.ending() if closed else None
        why = f"{ending}{process.quote()}" if closed else f"the process answered with a {error}{process.quote()}"
        if process is not self._candidate:
            # Only the candidate's PTX runs there: the lab or the machine failed.
            return CandidateDied(Status.INFRA_ERROR, f"building or running it failed: {why}")
        if ending is not None and ending.killed:
            return CandidateDied(Status.INFRA_ERROR, f"{why}; judge it again, if the candidate did not cause it")
        timed_out = ending is not None and ending.how == "SIGXCPU"
        return CandidateDied(Status.TIMED_OUT if timed_out else Status.CRASHED, why)


class _Plans(NamedTuple):
    """A kernel's plan; and as sent: with the log-sum-exp, if it writes one, and without."""

    plan: SentPlan
    full: Array
    bare: Array


def room_for(inputs: Arrays) -> int:
    """Most bytes of the outputs of a run."""
    return 4 * sum(array.nbytes for array in inputs.values()) + (1 << 20)


def _as_bytes(plan: SentPlan) -> Array:
    return np.frombuffer(plan.model_dump_json().encode(), np.uint8)


class CandidateBuildError(UserError):
    """The candidate does not compile, or is no candidate."""


class _Failed(Exception):
    """A process answered with a failure, or with a message that implies one."""

    def __init__(self, status: Status, reason: str, groups: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(reason)
        self.reply = {"status": status.value, "reason": reason, "groups": groups}
