"""The bundle: one directory of records, builds and raw arrays, closed by a manifest and packed into a tarball."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.built import BuiltModule
from sdpalab.evidence.environment import current_environment, harness_diff
from sdpalab.evidence.records import SOURCES, AttemptRecord, Figure, FigureKind, FloorRecord, leaves_folder
from sdpalab.evidence.store.files import ArrayStore, write_atomically
from sdpalab.evidence.verifier.archive import FORMAT, NotABundleError, canonical, manifest_digest, pack, read
from sdpalab.evidence.verifier.assemble import assembled
from sdpalab.evidence.verifier.findings import MALFORMED, Outcome
from sdpalab.evidence.verifier.main import verify_members
from sdpalab.judge.verdict import Verdict
from sdpalab.measure import PUBLISHED_MISSION_US, feasibility, floors, gpu_named
from sdpalab.problem import MISSION
from sdpalab.record import JsonRecord

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["BundleWriter", "WrittenBundle", "mission_floors", "verify_bundle"]

TARGETS_US = {"L4": 5.0, "H200": 4.0}
"""Targets in microseconds on the mission shape: "< 5 us" on L4 is the mission's own, 4.0 us per graph node on H200 the
lab's."""

_PATH = re.compile(r"(?<![\w./<:~-])~?(?:/[\w.@+~-]+)+/([\w.@+~-]+)")


@dataclass(frozen=True)
class WrittenBundle:
    """A written bundle: its name, the tarball, the tarball's digest file, a copy of the report, and, if signed, the
    signature's envelope and the key's fingerprint."""

    name: str
    tarball: Path
    side_car: Path
    report: Path
    envelope: Path | None = None
    fingerprint: str = ""


class BundleWriter:
    """Collects evidence in a hidden folder under ``out``, and turns it into a bundle atomically.

    Parameters
    ----------
    out : Path
        Output folder; created if missing.
    command : sequence of str
        The running command line, for the manifest.

    Attributes
    ----------
    arrays : ArrayStore
        Store for the judge: keeps the raw arrays of every case.

    Raises
    ------
    UserError
        If ``out`` cannot be written to.
    """

    def __init__(self, out: Path | str, *, command: Sequence[str]) -> None:
        self._out = Path(out)
        self._command = [without_paths(word) for word in command]
        try:
            self._out.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=self._out, prefix=".partial-"))
        except OSError as error:
            raise UserError(f"cannot write a bundle to {out}: {error.strerror}") from None
        self._attempts: list[AttemptRecord] = []
        # Taken at the start: the source may be committed or edited while the job runs.
        self._diff = harness_diff()
        self.environment = current_environment(self._diff)
        self.arrays = ArrayStore(self._folder / "arrays")

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(
        self,
        kernel: str,
        *,
        config: str,
        idea: str = "",
        builds: Sequence[BuiltModule] = (),
        verdict: Verdict | None,
        failure: str = "",
        figures: Sequence[Figure] = (),
        sources: Mapping[str, bytes] | None = None,
    ) -> AttemptRecord:
        """Add one attempt, passed or failed.

        Parameters
        ----------
        builds : sequence of BuiltModule
            Every module that the verdict's cases ran.
        verdict : Verdict or None
            None if it was not judged; ``failure`` is then the reason.
        sources : mapping of str to bytes, optional
            The files of a user's kernel, by their paths from its folder
            (:func:`~sdpalab.evidence.user_source.user_files`).

        Raises
        ------
        ValueError
            If the record would be invalid, for example a case that ran PTX of no build.
        """
        label = f"{len(self._attempts):02d}-{re.sub(r'[^A-Za-z0-9_.-]', '_', kernel)}"
        directories = [f"build/{label}" + (f"-{step}" if step else "") for step in range(len(builds))]
        members = {f"{SOURCES}/{label}/{name}": content for name, content in (sources or {}).items()}
        record = AttemptRecord(
            kernel=kernel,
            config=config,
            idea=idea,
            builds=tuple(built.record(place) for built, place in zip(builds, directories, strict=True)),
            verdict=None if verdict is None else Verdict.from_dict(_clean(verdict.to_dict())),
            failure=without_paths(failure),
            figures=tuple(figures),
            sources={path: hashlib.sha256(content).hexdigest() for path, content in members.items()},
        )
        # Nothing is written before the record and all names are validated.
        for built, place in zip(builds, directories, strict=True):
            members |= {f"{place}/{name}": content for name, content in built.files.items()}
        for path, content in (*members.items(), (f"records/{label}.json", _json(record))):
            self._put(path, content)
        self._attempts.append(record)
        return record

    def write(self) -> WrittenBundle:
        """Render the report, close the manifest, pack, and move the result into place.

        Raises
        ------
        ValueError
            If no attempt was added.
        MachineError
            If the disk is full or fails.
        """
        if not self._attempts:
            raise ValueError("a bundle needs at least one attempt")
        from sdpalab.evidence.report.data import ReportData
        from sdpalab.evidence.report.page import render_report

        try:
            self._drop_arrays_of_no_case()
            self._put("environment.json", _json(self.environment))
            self._put("floors.json", canonical({"gpus": [f.to_dict() for f in mission_floors()]}))
            self._put("verify.py", assembled().encode())
            if self._diff:
                self._put("harness.diff", self._diff.encode())
            name, created = self._free_name()
            members = self._members()
            members["report.html"] = render_report(ReportData.from_members(name, members, self._command)).encode()
            members["manifest.yaml"] = self._manifest(name, created, members)
            return self._put_in_place(name, pack(name, members), members["report.html"])
        except OSError as error:
            raise MachineError(f"cannot write the bundle: {error.strerror}") from None

    def write_verified(self, key: Ed25519PrivateKey | None = None) -> WrittenBundle:
        """:meth:`write`, then verify the written bundle, and sign it if there is a key.

        Raises
        ------
        MachineError
            If the bundle cannot be written, or does not verify.
        """
        written = self.write()
        outcome = verify_bundle(written.tarball, report=False)
        if not outcome.accepted:
            raise MachineError(f"the bundle just written does not verify: {outcome.findings[0]}")
        if key is None:
            return written
        from sdpalab.evidence.signing import fingerprint, sign

        return replace(written, envelope=sign(written.tarball, key), fingerprint=fingerprint(key.public_key()))

    def _drop_arrays_of_no_case(self) -> None:
        """Remove the arrays of a case that was interrupted before its result."""
        verdicts = [attempt.verdict for attempt in self._attempts if attempt.verdict]
        digests = [case.digests for verdict in verdicts for case in verdict.cases]
        digests += [each.digests for verdict in verdicts for each in verdict.algebra]
        named = {digest for each in digests for digest in each.values()}
        for path in self.arrays.folder.glob("*.raw"):
            if path.stem not in named:
                path.unlink()

    def _manifest(self, name: str, created: str, members: Mapping[str, bytes]) -> bytes:
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "name": name,
            "tool": f"sdpalab {self.environment.harness.version}",
            "created_utc": created,
            "command": self._command,
            "files": {
                path: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
                for path, content in members.items()
            },
        }
        manifest["digest"] = manifest_digest(manifest)
        return canonical(manifest)

    def _put_in_place(self, name: str, blob: bytes, page: bytes) -> WrittenBundle:
        tarball = self._out / f"{name}.tar.gz"
        side_car = self._out / f"{name}.tar.gz.sha256"
        report = self._out / f"{name}.html"
        write_atomically(report, page)
        write_atomically(tarball, blob)
        write_atomically(side_car, f"{hashlib.sha256(blob).hexdigest()}  {tarball.name}\n".encode())
        return WrittenBundle(name, tarball, side_car, report)

    def _free_name(self) -> tuple[str, str]:
        harness = self.environment.harness
        start = f"sdpalab-{(harness.commit or 'nogit')[:12]}{'-dirty' if harness.dirty else ''}"
        while True:
            now = datetime.now(timezone.utc)
            name = f"{start}-{now:%Y%m%dT%H%M%SZ}"
            if not (self._out / f"{name}.tar.gz").exists():
                return name, f"{now:%Y-%m-%dT%H:%M:%SZ}"
            time.sleep(0.1)

    def _put(self, name: str, content: bytes) -> None:
        if leaves_folder(name):
            raise ValueError(f"{name!r} leaves the bundle")
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, lasting=False)

    def _members(self) -> dict[str, bytes]:
        files = sorted(path for path in self._folder.rglob("*") if path.is_file())
        return {path.relative_to(self._folder).as_posix(): path.read_bytes() for path in files}


def mission_floors() -> tuple[FloorRecord, ...]:
    """Speed of light of the mission shape on L4 and H200 from cold DRAM, with targets and published times."""
    records = []
    for name, target in TARGETS_US.items():
        gpu = gpu_named(name)
        figures = tuple(
            Figure(
                name=floor.resource,
                value=floor.microseconds,
                unit="us",
                kind=FigureKind(floor.kind),
                gpu=name,
                source=f"{floor.how}. {gpu.source}",
            )
            for floor in floors(MISSION, gpu)
        )
        peers = tuple(
            Figure(
                name=peer,
                value=value,
                unit="us",
                kind=FigureKind.PUBLISHED,
                gpu=name,
                source=f"reported for the mission shape on {name}",
            )
            for peer, value in PUBLISHED_MISSION_US.get(name, {}).items()
        )
        records.append(
            FloorRecord(
                gpu=name,
                problem=MISSION,
                floors=figures,
                peers=peers,
                target_us=target,
                target_sentence=feasibility(target, MISSION, gpu).sentence,
            )
        )
    return tuple(records)


def verify_bundle(path: Path | str, *, report: bool = True, signer: Ed25519PublicKey | None = None) -> Outcome:
    """Verify a bundle, packed or unpacked, with the verifier that every bundle contains.

    Parameters
    ----------
    path : Path or str
    report : bool
        Whether its report is compared with the report rendered from its records.
    signer : Ed25519PublicKey, optional
        The key that must have signed it (:func:`sdpalab.evidence.signing.public_key`).

    Raises
    ------
    UserError
        If the file or directory does not exist, or is not a bundle.
    """
    try:
        members, findings = read(Path(path))
    except NotABundleError as error:
        raise UserError(f"{path}: {error}") from None
    outcome = verify_members(members, findings)
    if outcome.accepted and report and (finding := _report_finding(members)):
        outcome.findings.append(finding)
    if outcome.accepted and signer is not None:
        from sdpalab.evidence.signing import signature_finding

        if finding := signature_finding(Path(path), members, signer):
            outcome.findings.append(finding)
    return outcome


def _report_finding(members: Mapping[str, bytes]) -> str:
    """The finding that a bundle's report differs from the report of its records; empty if they agree.

    The report depends on the records, this source, and the packages that render it.
    """
    from sdpalab.evidence.report.data import ReportData
    from sdpalab.evidence.report.page import render_report

    manifest = json.loads(members["manifest.yaml"])
    try:
        data = ReportData.from_members(manifest["name"], members, manifest["command"])
        page = render_report(data).encode()
    except MALFORMED as error:
        return f"report.html: no report can be made of the records ({type(error).__name__})"
    if page == members["report.html"]:
        return ""
    recorded, here = data.environment, current_environment("")
    versions = [
        (f"{name} {recorded.packages.get(name, 'unknown')}", f"{name} {here.packages.get(name, 'unknown')}")
        for name in ("jinja2", "matplotlib", "numpy")
    ]
    versions.append((f"sdpalab {recorded.harness.package_sha256[:12]}", f"sdpalab {here.harness.package_sha256[:12]}"))
    differ = [f"{theirs}, and here is {ours}" for theirs, ours in versions if theirs != ours]
    why = f"; it names {'; '.join(differ)}, which may be why: --no-report leaves it unchecked" if differ else ""
    return f"report.html: it is not the report of these records{why}"


def without_paths(text: str) -> str:
    """``text`` with each absolute path, or path from a home directory, shortened to its last part."""
    return _PATH.sub(r"\1", text)


def _clean(value: Any) -> Any:
    """Plain JSON values with :func:`without_paths` applied to every text."""
    if isinstance(value, str):
        return without_paths(value)
    if isinstance(value, Mapping):
        return {key: _clean(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(inner) for inner in value]
    return value


def _json(record: JsonRecord) -> bytes:
    return canonical(record.to_dict())
