"""What a cubin says of the resources of its kernel."""

from __future__ import annotations

import struct

__all__ = ["cubin_resources"]


def cubin_resources(cubin: bytes, entry: str) -> dict[str, int]:
    """Registers, stack and static shared memory of ``entry``, read from the ELF file that the compiler wrote.

    Registers and frame are the attributes 0x2f (REGCOUNT) and 0x11 (FRAME_SIZE) of section ``.nv.info``; static shared
    memory is the size of ``.nv.shared.<entry>``, less the system's 1 KiB from sm_90 on.

    Raises
    ------
    ValueError
        If it is no such file, or has no such entry.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("the cubin is no 64-bit ELF file")
    offset, size, count, strings = (*struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<HHH", cubin, 58))
    sections = [struct.unpack_from("<IIQQQQII", cubin, offset + i * size) for i in range(count)]

    def text(table: int, at: int) -> str:
        begin = sections[table][4] + at
        return cubin[begin : cubin.index(b"\0", begin)].decode()

    def body(section: tuple[int, ...]) -> bytes:
        return cubin[section[4] : section[4] + section[5]]

    named = {text(strings, section[0]): section for section in sections}
    symbols = named[".symtab"]
    names = [text(symbols[6], name) for (name,) in struct.iter_unpack("<I20x", body(symbols))]
    shared = named[f".nv.shared.{entry}"][5] if f".nv.shared.{entry}" in named else 0
    found = {"static_shared_bytes": shared - (1024 if shared and ".nv.shared.reserved.0" in named else 0)}
    info, at = body(named[".nv.info"]), 0
    while at < len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        if form == 4 and attribute in (0x2F, 0x11):
            symbol, value = struct.unpack_from("<II", info, at + 4)
            if names[symbol] == entry:
                found["registers" if attribute == 0x2F else "stack_bytes"] = value
        at += 4 + (length if form == 4 else 0)
    if set(found) != {"static_shared_bytes", "registers", "stack_bytes"}:
        raise ValueError(f"the cubin has no entry {entry}")
    return found
