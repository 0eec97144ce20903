"""PTX text to typed data: parser, linking, names, and one record for each opcode."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpsan.analysis.fusion import registers_read as registers_read
    from warpsan.analysis.fusion import registers_written as registers_written
    from warpsan.ptx.forms import CLOCKS as CLOCKS
    from warpsan.ptx.ir import Entry as Entry
    from warpsan.ptx.ir import Instruction as Instruction
    from warpsan.ptx.linking import link as link
    from warpsan.ptx.names import resolve as resolve
    from warpsan.ptx.names import short_name as short_name
    from warpsan.ptx.opcodes import OPCODES as OPCODES
    from warpsan.ptx.parser import parse as parse
    from warpsan.ptx.types import TYPES as TYPES
else:
    from warpsan.exports import exports

    __getattr__, __all__ = exports(
        {
            "warpsan.analysis.fusion": ["registers_read", "registers_written"],
            "warpsan.ptx.forms": ["CLOCKS"],
            "warpsan.ptx.ir": ["Entry", "Instruction"],
            "warpsan.ptx.linking": ["link"],
            "warpsan.ptx.names": ["resolve", "short_name"],
            "warpsan.ptx.opcodes": ["OPCODES"],
            "warpsan.ptx.parser": ["parse"],
            "warpsan.ptx.types": ["TYPES"],
        }
    )
