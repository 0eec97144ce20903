"""The stage ``algebraic``: a kernel's data flow in exact arithmetic, with no tolerance (``docs/algebra.md``).

The kernel's own PTX runs with ``numerics="ring"`` (:mod:`warpsan.numerics.ring`) on one small problem, with and without
the causal mask. A right data flow gives attention in the ring, in any order of summation and any tiling; each element
of a wrong one differs with probability 1 - 1 / p.
"""
