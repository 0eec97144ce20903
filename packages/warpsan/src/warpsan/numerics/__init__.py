"""Arithmetic of a launch: sums of tensor cores by architecture, and the ring for exact arithmetic."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpsan.engine.ring.flow import computes_floats as computes_floats
    from warpsan.numerics.choices import is_ring as is_ring
    from warpsan.numerics.ring import LOG2_E as LOG2_E
    from warpsan.numerics.ring import RINGS as RINGS
    from warpsan.numerics.ring import Ring as Ring
    from warpsan.numerics.ring import has_eight_bits as has_eight_bits
    from warpsan.numerics.ring import ring_of as ring_of
    from warpsan.numerics.tensor_cores import EMIN as EMIN
    from warpsan.numerics.tensor_cores import SumRule as SumRule
    from warpsan.numerics.tensor_cores import rule_of as rule_of
else:
    from warpsan.exports import exports

    __getattr__, __all__ = exports(
        {
            "warpsan.engine.ring.flow": ["computes_floats"],
            "warpsan.numerics.choices": ["is_ring"],
            "warpsan.numerics.ring": ["LOG2_E", "RINGS", "Ring", "has_eight_bits", "ring_of"],
            "warpsan.numerics.tensor_cores": ["EMIN", "SumRule", "rule_of"],
        }
    )
