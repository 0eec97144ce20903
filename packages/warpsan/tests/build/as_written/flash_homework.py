"""Homework attention kernel; its launcher zeroes the output and the sums, and starts the maxima at -inf."""

import math
from pathlib import Path

from sdpalab import Buffer, CudaKernel, Launch, LaunchPlan


def plan(problem, config):
    rows, dim = problem.seq_q, problem.head_dim
    step = Launch(
        grid=(problem.heads, problem.batch, 1),
        block=(32, 1, 1),
        args=("q", "k", "v", "o", "denominator", "peak", rows, dim, problem.scale),
        dynamic_smem=4 * (2 * 32 * dim + 32 * 32),
    )
    sums = (problem.batch, problem.heads, rows)
    buffers = (
        Buffer("o", problem.q_shape, "float32", "out", fill=0),
        Buffer("denominator", sums, "float32", "workspace", fill=0),
        Buffer("peak", sums, "float32", "workspace", fill=-math.inf),
    )
    return LaunchPlan(buffers, (step,))


def supports(problem):
    whole = problem.seq_q == problem.seq_kv and problem.seq_q % 32 == 0 and problem.group == 1
    return whole and problem.dtype == "float32" and not problem.causal and problem.head_dim <= 64


HOMEWORK = CudaKernel("homework", Path("flash_homework.cu"), "attend_in_strips", plan, supports=supports)
