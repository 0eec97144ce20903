"""Launch values for native code: rows of constants and special registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warpsan.checks.provenance import home_buffers
from warpsan.engine import layout
from warpsan.engine.arrays import Array
from warpsan.engine.assembler import Constant
from warpsan.engine.decoded import Decoded
from warpsan.engine.layout import WARP
from warpsan.host.memory import Extent, Space
from warpsan.host.setup import Setup

__all__ = ["register_template", "special_rows"]

_BY_WARP = {
    **{f"%tid.{axis}": layout.TID_X + k for k, axis in enumerate("xyz")},
    **{f"%ctaid.{axis}": layout.CTAID_X + k for k, axis in enumerate("xyz")},
    **{f"%clusterid.{axis}": layout.CLUSTERID_X + k for k, axis in enumerate("xyz")},
    **{f"%cluster_ctaid.{axis}": layout.CLUSTER_CTAID_X + k for k, axis in enumerate("xyz")},
    "%warpid": layout.WARPID,
    "%cluster_ctarank": layout.CTARANK,
}
"""The special registers that depend on the warp or its CTA."""
_ANYWHERE = Extent("any buffer", 0, 1 << 62)


def register_template(setup: Setup, space: Space, decoded: Decoded) -> Array:
    """The initial registers of a warp: poison, predicates that are false, and the constants."""
    homes = home_buffers(decoded.origins, setup.params, space.extents)
    template = np.full(decoded.register_bytes, 0xFF, dtype=np.uint8)
    template[: decoded.predicates] = 0
    for row in decoded.ones:
        template[row : row + 4] = 0xFF
    for constant, row in decoded.constants.items():
        raw = _bytes(setup, constant, homes)
        if constant.bits == 1:
            template[row : row + 4] = 0xFF if raw[0] else 0
        else:
            template[row : row + WARP * len(raw)] = np.frombuffer(WARP * raw, np.uint8)
    for name, row in decoded.specials.items():
        values = _uniform_special(setup, name)
        if values is not None:
            lanes = np.broadcast_to(values.astype(np.uint32), WARP)
            template[row : row + 4 * WARP] = np.ascontiguousarray(lanes).view(np.uint8)
    return template


def _bytes(setup: Setup, constant: Constant, homes: Mapping[int, Extent]) -> bytes:
    """A constant's value."""
    size = max(1, constant.bits // 8)
    if constant.kind == "parameter":
        return bytes(setup.params[int(constant.value) : int(constant.value) + size])
    if constant.kind == "symbol":
        name = str(constant.value)
        return (setup.symbols.addresses[name][1] & (1 << 8 * size) - 1).to_bytes(size, "little")
    if constant.kind.startswith("home"):
        home = homes.get(int(constant.value), _ANYWHERE)
        return (home.begin if constant.kind == "home begins" else home.end).to_bytes(size, "little")
    if constant.kind == "cluster":
        return bytes([setup.geometry.explicit_cluster])
    return int(constant.value if constant.kind == "literal" else 0).to_bytes(size, "little")


def special_rows(setup: Setup, decoded: Decoded) -> Array:
    """(kind, row) of the special registers that depend on the warp, int32."""
    rows = [(_BY_WARP[name], row) for name, row in decoded.specials.items() if _uniform_special(setup, name) is None]
    return np.array(rows, dtype=np.int32).reshape(-1, 2)


def _uniform_special(setup: Setup, name: str) -> Array | None:
    """The values of a special register that all warps share; None if its values differ."""
    if name in _BY_WARP:
        return None
    geometry = setup.geometry
    lane = np.arange(WARP, dtype=np.uint32)
    bit = np.uint32(1) << lane
    clusters = [-(-many // size) for many, size in zip(geometry.grid, geometry.cluster, strict=True)]
    dims: dict[str, Sequence[int]] = {
        "%ntid": geometry.block,
        "%nctaid": geometry.grid,
        "%cluster_nctaid": geometry.cluster,
        "%nclusterid": clusters,
    }
    base, _, axis = name.partition(".")
    if base in dims and axis in ("x", "y", "z"):
        return np.array(dims[base]["xyz".index(axis)])
    values: dict[str, Any] = {
        "%laneid": lane,
        "%nwarpid": geometry.warps,
        "%lanemask_eq": bit,
        "%lanemask_lt": bit - 1,
        "%lanemask_le": bit | (bit - 1),
        "%lanemask_ge": ~(bit - 1),
        "%lanemask_gt": ~(bit | (bit - 1)),
        "%dynamic_smem_size": geometry.dynamic_smem,
        "%cluster_nctarank": geometry.cluster_size,
        "%total_smem_size": setup.symbols.shared_bytes,
        # The driver's interface for cooperative groups: the upper and the lower half of an address.
        "%envreg1": setup.workspace >> 32,
        "%envreg2": setup.workspace & 0xFFFFFFFF,
    }
    return np.asarray(values[name])
