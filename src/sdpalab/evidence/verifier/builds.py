"""A build in a bundle: its files are those that were compiled, its resources those of the cubin, its gate follows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sdpalab.evidence.verifier.cubin import cubin_resources
from sdpalab.evidence.verifier.findings import Findings

__all__ = ["check_build"]


def check_build(bundle: Findings, where: str, build: Mapping[str, Any]) -> bool:
    """Checks one build; True if its gate is kept, or it has none."""
    bundle.same_keys(where, "build", build)
    for name, digest in build["files"].items():
        path = f"{build['directory']}/{name}"
        bundle.used.add(path)
        if hashlib.sha256(bundle.members.get(path, b"")).hexdigest() != digest:
            bundle.find(where, f"{path} is missing or is not the file that was built")
    kept = {name.removeprefix("include/"): digest for name, digest in build["files"].items()}
    for name, digest in build["sources"].items():
        if kept.get(name, digest) != digest or (name == build["module"] and name not in kept):
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
        if rule["value"] != value or rule["ok"] is not (value >= limit if least else value <= limit):
            bundle.find(where, f"gate rule {rule['name']}: {value} against {limit} is not what the record says")
    ok = all(rule["ok"] for rule in gate["rules"])
    if gate["ok"] is not ok:
        bundle.find(where, "the gate's outcome is not that of its rules")
    return ok
