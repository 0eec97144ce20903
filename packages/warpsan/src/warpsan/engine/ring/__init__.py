"""``numerics="ring"``: floating-point instructions as operations of a ring of integers (:mod:`warpsan.numerics.ring`).

All other instructions are the native engine's. :class:`~.assembler.RingAssembler` first looks an instruction up in the
ring's table (:mod:`.arithmetic`, :mod:`.products`), whose operations are those of :mod:`.words`; integer, memory and
control instructions are decoded as always. An instruction without a meaning in a ring ends the run if a lane executes
it, with the instruction (:mod:`.flow`): a square root of a code, a rounding to an integer, integer arithmetic on the
bits of a code.
"""

from warpsan.engine.ring import arithmetic, products  # register every handler
from warpsan.engine.ring.assembler import RingAssembler

__all__ = ["RingAssembler", "arithmetic", "products"]
