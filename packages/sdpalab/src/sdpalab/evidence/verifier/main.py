"""Stand-alone verifier of an SDPA Lab bundle: ``python verify.py BUNDLE.tar.gz`` (or an unpacked directory).

It needs NumPy and ml_dtypes, and not the lab: the text of its modules is below, including the judge's rule. It
recomputes every derivable value:

- every byte of every file is covered by a digest, and the archive equals the archive of its files;
- for every case, from the raw arrays: the judged rows, the float64 reference, the intended numerics, the exact
  elements, the limits, the errors, those of a log-sum-exp if there is one, and the status; normal inputs are made again
  from their seed;
- the verdict from its cases, the gate from the resources, the resources (registers, stack, static shared memory) from
  the cubin; the PTX that ran is the PTX in the bundle.

It checks neither that ``report.html`` shows these records nor the signature of the bundle; the installed ``sdpalab
verify BUNDLE --signer KEY`` checks both.

Exit 0: accepted. 1: rejected, one line per finding. 2: the input is not a bundle.

Layout of arrays: ``arrays/<sha256>.raw`` holds little-endian elements in C order; shape and dtype are those of the
case's problem: q, o and yardstick (torch's own output) [B, H, Sq, D], k and v [B, Hkv, Skv, D]; lse is float32
[B, H, Sq].
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sdpalab.evidence.verifier.archive import Members, NotABundleError, check_manifest, read
from sdpalab.evidence.verifier.checker import Checker
from sdpalab.evidence.verifier.findings import MALFORMED, Outcome

__all__ = ["NOT_CHECKED", "main", "verify", "verify_members"]

NOT_CHECKED = "not checked here: report.html and signatures; the installed sdpalab verify checks them"


def verify(path: str | os.PathLike[str]) -> Outcome:
    """Verify a bundle; the outcome has the findings and a summary of the re-derived parts.

    Raises
    ------
    NotABundleError
        If the file or directory does not exist, or is not a bundle.
    """
    return verify_members(*read(Path(path)))


def verify_members(members: Members, findings: list[str]) -> Outcome:
    """:func:`verify` for the members of a bundle, with the findings about their container."""
    try:
        findings = findings or check_manifest(members)
    except MALFORMED as error:
        findings = [f"manifest.yaml: malformed ({type(error).__name__}: {error})"]
    # Files that differ from the manifest would only add further findings.
    return Outcome(findings) if findings else Checker(members).run()


def main(arguments: list[str]) -> int:
    """Run the command line: one argument, one output line per finding; returns the exit status."""
    if len(arguments) != 1:
        print("usage: python verify.py BUNDLE.tar.gz", file=sys.stderr)
        return 2
    try:
        outcome = verify(arguments[0])
    except NotABundleError as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 2
    for line in outcome.findings:
        print(f"REJECTED {line}")
    for line in [*outcome.summary, NOT_CHECKED] if outcome.accepted else []:
        print(line)
    print("accepted" if outcome.accepted else f"rejected: {len(outcome.findings)} findings")
    return 0 if outcome.accepted else 1
