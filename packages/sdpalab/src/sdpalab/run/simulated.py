"""Runs a launch plan on the simulator: the same plan and the same PTX, byte for byte, as on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sdpalab.compile import DEFAULT_ARCH, Build, Cache, build, completed
from sdpalab.errors import UserError
from sdpalab.kernels.plan import Gemm, Launch, LaunchPlan, TiledMap
from sdpalab.run.buffers import multiply, same_bytes, starting_array, tensor_map, unreleased
from sdpalab.run.plan_executor import Array, RunResult
from warpsan import DEFAULT_NUMERICS, Report, TensorMap, Unwritten, launch, prepare
from warpsan.build import Workshop, workshop_of
from warpsan.numerics import has_eight_bits, is_ring, ring_of

__all__ = ["SimulatedExecutor"]


_UNWRITTEN = ("out", "workspace")
"""Roles of buffers that, without a fill, are uninitialised before the plan."""


class SimulatedExecutor:
    """Executes launch plans with :func:`warpsan.launch`.

    Parameters
    ----------
    arch : str
        Architecture to build for, such as ``sm_89``.
    cache : Cache, optional
        Build cache. Default: the user's.
    on_launch : callable, optional
        Called after each step with its build and the simulator's report, for callers that need more than messages.
    **options
        Passed to every :func:`warpsan.launch`: ``checks``, ``async_mode``, ``numerics``, ``seed``, ``max_steps``...
    """

    def __init__(
        self,
        arch: str = DEFAULT_ARCH,
        cache: Cache | None = None,
        *,
        on_launch: Callable[[Build, Report], None] | None = None,
        **options: Any,
    ) -> None:
        self.arch = arch
        self.cache = cache or Cache()
        self.on_launch = on_launch
        self.options = options
        prepare()

    @property
    def device(self) -> str:
        """The name of this executor in records, such as ``simulator sm_89``, with the numerics if not the default."""
        sums = self.options.get("numerics", DEFAULT_NUMERICS)
        return f"simulator {self.arch}" + ("" if sums == DEFAULT_NUMERICS else f", numerics {sums}")

    def run(
        self,
        plan: LaunchPlan,
        inputs: Mapping[str, Array],
        *,
        poison: int = 0xFF,
        builds: Sequence[Build] | None = None,
    ) -> RunResult:
        """Build and run all steps in order, on copies of the inputs.

        Parameters
        ----------
        plan : LaunchPlan
        inputs : mapping of str to ndarray
            One array for each ``in`` buffer, in its shape and dtype (bfloat16: ``ml_dtypes.bfloat16``).
        poison : int
            Byte that fills ``out`` and ``workspace`` buffers without a fill; 0xFF gives NaN in every float type.
        builds : sequence of Build, optional
            One build for each launch, already built or with an edited PTX. Default: each launch's module is built here.

        Raises
        ------
        UserError
            If an input is missing or has another shape or dtype, a step has an unknown buffer or no module, or (as
            BuildError) a module does not compile.
        MachineError
            If there is no compiler.
        warpsan.SimError
            If the simulator does not model an instruction, or the run cannot continue.
        """
        workshop = next(filter(None, (workshop_of(step.module) for step in plan.launches)), None)
        if workshop is not None:
            return self._run_in(workshop, plan, inputs, poison, builds)
        buffers = {buffer.name: starting_array(buffer, inputs, poison) for buffer in plan.buffers}
        unwritten = {
            each.name: Unwritten(buffers[each.name])
            for each in plan.buffers
            if each.role in _UNWRITTEN and each.fill is None
        }
        digests: list[str] = []
        hazards: list[str] = []
        options, ring = dict(self.options), None
        if is_ring(options.get("numerics", "")):  # one for all steps, because they share buffers
            builds = builds or self.builds_of(plan)
            ring = ring_of(options["numerics"], eight_bits=any(has_eight_bits(each.ptx.decode()) for each in builds))
            options |= {"numerics": ring.name} if ring is not None else {}
        ready = iter(builds or ())
        for number, step in enumerate(plan.steps, 1):
            if isinstance(step, Gemm):
                multiply(step, buffers, ring)
                unwritten.pop(step.c, None)
                continue
            built = next(ready) if builds else self._build(step, number)
            step = completed(step, built)
            report = launch(
                built.ptx,
                built.entry,
                step.grid,
                step.block,
                _arguments(step, buffers, number),
                dynamic_smem=step.dynamic_smem,
                cluster=step.cluster,
                programmatic=step.programmatic,
                names=[_buffer_name(argument) for argument in step.args],
                unwritten=list(unwritten.values()),
                **options,
            )
            if self.on_launch is not None:
                self.on_launch(built, report)
            digests.append(built.ptx_sha256)
            where = f"step {number}: " if len(plan.steps) > 1 else ""
            hazards += [f"{where}{hazard.message}" for hazard in report.hazards]
        hazards += unreleased(plan.buffers, buffers)
        return RunResult(
            outputs={buffer.name: buffers[buffer.name] for buffer in plan.buffers if buffer.role == "out"},
            device=self.device,
            ptx_sha256=tuple(digests),
            hazards=tuple(hazards),
            changed_inputs=tuple(
                buffer.name
                for buffer in plan.buffers
                if buffer.role == "in" and not same_bytes(buffers[buffer.name], inputs[buffer.name])
            ),
        )

    def _run_in(
        self,
        workshop: Workshop,
        plan: LaunchPlan,
        inputs: Mapping[str, Array],
        poison: int,
        builds: Sequence[Build] | None,
    ) -> RunResult:
        """:meth:`run` of an untrusted plan, whose launches a confined process simulates."""
        builds = builds or self.builds_of(plan)
        reports, result = workshop.simulate(plan, builds, inputs, self.arch, poison, self.options)
        for built, report in zip(builds, reports, strict=False):  # fewer, if a launch was stopped
            if self.on_launch is not None:
                self.on_launch(built, report)
        ended: RunResult = result()
        return ended

    def builds_of(self, plan: LaunchPlan) -> list[Build]:
        """The builds of a plan's launches, in order; raises as :meth:`run` does."""
        return [self._build(step, number) for number, step in enumerate(plan.steps, 1) if isinstance(step, Launch)]

    def _build(self, step: Launch, number: int) -> Build:
        if step.module is None:
            raise UserError(f"step {number} of the plan has no module: make the plan with launch_plan of a kernel")
        return build(step.module, self.arch, cache=self.cache)


def _buffer_name(argument: str | TiledMap | int | float) -> str:
    """The buffer that an argument points to, or empty."""
    if isinstance(argument, TiledMap):
        return argument.buffer
    return argument if isinstance(argument, str) else ""


def _arguments(step: Launch, buffers: Mapping[str, Array], number: int) -> list[Array | TensorMap | int | float]:
    """Arguments of the launch: arrays in place of buffer names, and tensor maps on them."""
    where = f"step {number} of the plan"
    values: list[Array | TensorMap | int | float] = []
    for argument in step.args:
        if isinstance(argument, (int, float)):
            values.append(argument)
            continue
        name = argument.buffer if isinstance(argument, TiledMap) else argument
        if name not in buffers:
            raise UserError(f"{where} names buffer {name!r}; the plan has: {', '.join(buffers)}")
        values.append(tensor_map(argument, buffers[name], where) if isinstance(argument, TiledMap) else buffers[name])
    return values
