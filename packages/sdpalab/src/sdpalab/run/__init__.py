"""One launch plan, two executors: the simulator, and a GPU through the CUDA driver."""

from sdpalab.run.gpu import GpuExecutor
from sdpalab.run.gpu_driver import KernelFault, gpu_problem
from sdpalab.run.gpu_launch import Prepared
from sdpalab.run.plan_executor import PlanExecutor, RunResult
from sdpalab.run.simulated import SimulatedExecutor

__all__ = ["GpuExecutor", "KernelFault", "PlanExecutor", "Prepared", "RunResult", "SimulatedExecutor", "gpu_problem"]
