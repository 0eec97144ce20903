"""Check of a build in a bundle: its files are the compiled ones, its resources those of the cubin, its gate follows
from them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

from sdpalab.evidence.verifier.facts import ADVISED
from sdpalab.evidence.verifier.findings import Findings

__all__ = [
    "check_build",
    "cubin_resources",
]


def check_build(bundle: Findings, where: str, build: Mapping[str, Any]) -> bool:
    """Check one build; True if its gate is kept, or it has none."""
    bundle.same_keys(where, "build", build)
    for name, digest in build["files"].items():
        path = f"{build['directory']}/{name}"
        bundle.used.add(path)
        if hashlib.sha256(bundle.members.get(path, b"")).hexdigest() != digest:
            bundle.find(where, f"{path} is missing or is not the file that was built")
    files = {name.removeprefix("include/"): digest for name, digest in build["files"].items()}
    for name, digest in build["sources"].items():
        if files.get(name, digest) != digest or (name == build["module"] and name not in files):
            bundle.find(where, f"{name} is not the source that was compiled")
    resources, gate = build["resources"], build["gate"]
    if resources is not None:
        bundle.same_keys(where, "resources", resources)
        read_off = cubin_resources(bundle.members.get(f"{build['directory']}/kernel.cubin", b""), build["entry"])
        for name, value in read_off.items():
            if resources[name] != value:
                bundle.find(where, f"{name} is {resources[name]} in the record and {value} in the cubin")
    if gate is None:
        return True
    if resources is None:
        bundle.find(where, "a gate without resources")
        return False
    bundle.same_keys(where, "gate", gate)
    values = dict(resources, shared_bytes=resources["static_shared_bytes"] + resources["dynamic_shared_bytes"])
    for name in {"registers", "shared_bytes", "spill_bytes", "stack_bytes", "blocks_per_sm"} - {
        rule["name"] for rule in gate["rules"]
    }:
        bundle.find(where, f"the gate has no rule for {name}")
    for rule in gate["rules"]:
        bundle.same_keys(where, "rule", rule)
        value, limit, least = values[rule["name"]], rule["limit"], rule["kind"] == "at least"
        if least is not (rule["name"] == "blocks_per_sm"):
            bundle.find(where, f"gate rule {rule['name']} is on the wrong side of its limit")
        if "advisory" in rule and (rule["advisory"] is not True or ADVISED.get(rule["name"]) != limit):
            bundle.find(where, f"gate rule {rule['name']} is advisory, and {limit} is not the limit of one that is")
        if rule["value"] != value or rule["ok"] is not (value >= limit if least else value <= limit):
            bundle.find(where, f"gate rule {rule['name']}: {value} against {limit} does not match the record")
    ok = all(rule["ok"] or "advisory" in rule for rule in gate["rules"])
    if gate["ok"] is not ok:
        bundle.find(where, "the gate's outcome is not that of its rules")
    return ok


def cubin_resources(cubin: bytes, entry: str) -> dict[str, int]:
    """Registers, stack and static shared memory of ``entry``, read from the ELF file that the compiler wrote.

    Registers and frame are the attributes 0x2f (REGCOUNT) and 0x11 (FRAME_SIZE) of section ``.nv.info``; static shared
    memory is the size of ``.nv.shared.<entry>``, less the system's 1 KiB from sm_90 on.

    Raises
    ------
    ValueError
        If the file is not such an ELF file, or has no such entry.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("the cubin is not a 64-bit ELF file")
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
    resources = {"static_shared_bytes": shared - (1024 if shared and ".nv.shared.reserved.0" in named else 0)}
    info, at = body(named[".nv.info"]), 0
    while at < len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        if form == 4 and attribute in (0x2F, 0x11):
            symbol, value = struct.unpack_from("<II", info, at + 4)
            if names[symbol] == entry:
                resources["registers" if attribute == 0x2F else "stack_bytes"] = value
        at += 4 + (length if form == 4 else 0)
    if set(resources) != {"static_shared_bytes", "registers", "stack_bytes"}:
        raise ValueError(f"the cubin has no entry {entry}")
    return resources
