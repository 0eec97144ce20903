"""One launch plan, several executors. The simulator is here; a GPU's driver comes beside it."""

from sdpalab.run.executor import Executor, RunResult
from sdpalab.run.simulated import SimulatedExecutor

__all__ = ["Executor", "RunResult", "SimulatedExecutor"]
