"""Kernels whose arrays lie in another order than [B, H, S, D]: copies before and after their launch.

:func:`laid_out` turns the launch of such a kernel into a plan on the lab's buffers. The copies are launches of a small
kernel, so a plan with them runs on the simulator and on a GPU, and its time contains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, Module, Step
from sdpalab.problem import Problem

__all__ = ["LAYOUTS", "laid_out"]

LAYOUTS = {
    "bhsd": "[B, H, S, D], which is also [B*H, S, D], and [S, D] for one head",
    "bshd": "[B, S, H, D]",
    "sbhd": "[S, B, H, D]",
    "qkv_bs3hd": "Q, K and V in one array [B, S, 3, H, D], and O as [B, S, H, D]",
    "qkv_3bhsd": "Q, K and V in one array [3, B, H, S, D], and O as [B, H, S, D]",
    "bhds_k": "K as [B, H, D, S]; Q, V and O as [B, H, S, D]",
}
"""Orders of the arrays of a kernel, by name."""
_THREADS = 128
_SOURCE = """\
typedef unsigned short u16;
typedef unsigned int u32;
// out[base + b * sb + h * sh + s * ss + d * sd] = in[b][h][s][d], or the other way.
template <typename T>
__global__ void reorder(const T *in, T *out, int heads, int rows, int dim, long long count, long long base,
                        long long sb, long long sh, long long ss, long long sd, int back) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const long long d = i % dim, s = i / dim % rows, h = i / dim / rows % heads, b = i / dim / rows / heads;
  const long long other = base + b * sb + h * sh + s * ss + d * sd;
  if (back) out[i] = in[other];
  else out[other] = in[i];
}
"""


def laid_out(problem: Problem, launch: Launch, layout: str, workspaces: Sequence[Buffer] = ()) -> LaunchPlan:
    """A plan of one launch on arrays in another order.

    Parameters
    ----------
    problem : Problem
    launch : Launch
        Launch of the kernel, with the arguments ``q``, ``k``, ``v`` and ``o``; ``qkv`` for one array of all three.
    layout : str
        Key of :data:`LAYOUTS`.
    workspaces : sequence of Buffer
        Further buffers of the launch.

    Raises
    ------
    ValueError
        If the layout is unknown, or has one array for Q, K and V of different shapes.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"a layout is one of {', '.join(LAYOUTS)}, not {layout!r}")
    if layout == "bhsd":
        return LaunchPlan(tuple(workspaces), (launch,))
    if layout.startswith("qkv") and problem.q_shape != problem.kv_shape:
        raise ValueError("one array of Q, K and V needs as many heads and rows in all three")
    shapes = {"q": problem.q_shape, "k": problem.kv_shape, "v": problem.v_shape, "o": problem.o_shape}
    buffers: dict[str, Buffer] = {}
    before, after, renamed = list[Step](), list[Step](), dict[str, str]()
    for number, (name, shape) in enumerate(shapes.items()):
        strides, base, count, target = _places(layout, name, number, shape)
        if strides is None:
            continue
        renamed[name] = target
        buffers.setdefault(target, Buffer(target, (count,), problem.dtype, "workspace"))
        back = name == "o"
        step = _copy(problem, shape, (target, name) if back else (name, target), base, strides, back)
        (after if back else before).append(step)
    args = tuple(renamed.get(each, each) if isinstance(each, str) else each for each in launch.args)
    return LaunchPlan((*workspaces, *buffers.values()), (*before, replace(launch, args=args), *after))


def _places(
    layout: str, name: str, number: int, shape: tuple[int, ...]
) -> tuple[tuple[int, int, int, int] | None, int, int, str]:
    """Strides of [B, H, S, D] in a layout, first element, number of elements, and the array; no strides for an array
    that stays."""
    batch, heads, rows, dim = shape
    size = batch * heads * rows * dim
    if layout == "bhds_k":
        return ((heads * dim * rows, dim * rows, 1, rows), 0, size, "k_in_order") if name == "k" else (None, 0, 0, "")
    if layout == "qkv_3bhsd":
        return (
            (None, 0, 0, "")
            if name == "o"
            else ((heads * rows * dim, rows * dim, dim, 1), number * size, 3 * size, "qkv")
        )
    if layout == "qkv_bs3hd" and name != "o":
        return (3 * rows * heads * dim, dim, 3 * heads * dim, 1), number * heads * dim, 3 * size, "qkv"
    if layout == "sbhd":
        return (heads * dim, dim, batch * heads * dim, 1), 0, size, f"{name}_in_order"
    return (rows * heads * dim, dim, heads * dim, 1), 0, size, f"{name}_in_order"


def _copy(
    problem: Problem,
    shape: tuple[int, ...],
    arrays: tuple[str, str],
    base: int,
    strides: tuple[int, int, int, int],
    back: bool,
) -> Launch:
    batch, heads, rows, dim = shape
    count = batch * heads * rows * dim
    word = "u32" if problem.dtype == "float32" else "u16"
    return Launch(
        grid=(-(-count // _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        args=(*arrays, heads, rows, dim, count, base, *strides, int(back)),
        module=Module("reorder.cu", _SOURCE, f"reorder<{word}>"),
    )
