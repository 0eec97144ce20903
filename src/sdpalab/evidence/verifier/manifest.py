"""The manifest of a bundle: its format, and a digest for every byte of every file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sdpalab.evidence.verifier.archive import Members, canonical, parse

__all__ = ["FORMAT", "READS", "check_manifest", "manifest_digest"]

FORMAT = 3
"""2: the limit on the rows' root mean square, exact elements, ignored rows, the original contract. 3: a log-sum-exp."""
READS = (2, FORMAT)
"""Format 2 is 3 without a log-sum-exp. Bundles of another format are verified by the verify.py that lies in them."""


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Digest over all: of the manifest without this very entry, and so of every file's digest."""
    return hashlib.sha256(canonical({k: v for k, v in manifest.items() if k != "digest"})).hexdigest()


def check_manifest(members: Members) -> list[str]:
    """Findings about missing, extra and changed files, and about the manifest's own form."""
    findings: list[str] = []
    manifest = parse(members, "manifest.yaml", findings)
    if findings:
        return findings
    if manifest.get("format") not in READS:
        known = " and ".join(map(str, READS))
        found = f"manifest.yaml: format {manifest.get('format')!r}, and this verifier knows {known}"
        return [f"{found}; the verify.py in the bundle, or of the commit in its name, is for it"]
    if manifest.get("digest") != manifest_digest(manifest):
        findings.append("manifest.yaml: its digest over all is not that of what it says")
    files: Mapping[str, Any] = manifest.get("files") or {}
    findings += [f"{name}: in the manifest, and missing" for name in sorted(set(files) - set(members))]
    findings += [
        f"{name}: not in the manifest" for name in sorted(set(members) - set(files)) if name != "manifest.yaml"
    ]
    for name in sorted(set(files) & set(members)):
        said = {"sha256": hashlib.sha256(members[name]).hexdigest(), "size": len(members[name])}
        if files[name] != said:
            findings.append(f"{name}: its bytes are not those of the manifest")
        if name.startswith("arrays/") and name != f"arrays/{said['sha256']}.raw":
            findings.append(f"{name}: an array's name is the digest of its bytes, and this one's is not")
    needed = {"report.html", "environment.json", "floors.json", "verify.py"} - set(files)
    findings += [f"{name}: every bundle has one, and this one has not" for name in sorted(needed)]
    return findings
