"""``numerics="ring"``: floating-point instructions as operations of a ring of integers (:mod:`warpsan.numerics.ring`).

Everything but floating point is the native engine's own. :class:`~.assembler.RingAssembler` looks for an instruction in
the ring's table first (:mod:`.arithmetic`, :mod:`.products`), whose operations are those of :mod:`.words`; what is not
there is integers, memory or control, and is decoded as always. What has no meaning in a ring ends the run if a lane
executes it, with the instruction (:mod:`.flow`): a square root of a code, a rounding to an integer, integer arithmetic
on the bits of a code.
"""

from warpsan.engine.ring import arithmetic, products  # register every handler
from warpsan.engine.ring.assembler import RingAssembler

__all__ = ["RingAssembler", "arithmetic", "products"]
