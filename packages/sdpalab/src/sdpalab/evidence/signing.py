"""Signatures of bundles: an in-toto statement in a DSSE envelope, signed with an ed25519 key.

The envelope is ``NAME.tar.gz.dsse.json`` beside the bundle. Its subjects are the archive and the manifest, which has
the digest of every file, so the signature is also valid for an unpacked bundle. The predicate is a test result: the
passed and the failed attempts.

Formats: DSSE 1.0 (https://github.com/secure-systems-lab/dsse), in-toto Statement v1 and the predicate
https://in-toto.io/attestation/test-result/v0.1.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.store.files import write_atomically
from sdpalab.evidence.verifier.archive import canonical, unpack

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["envelope_path", "fingerprint", "private_key", "public_key", "sign", "signature_finding", "statement_of"]

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
MOST_BYTES = 1 << 20
"""Largest size of a key file or an envelope."""


def private_key(path: Path | str) -> Ed25519PrivateKey:
    """The ed25519 key of a file in PEM (PKCS 8) or OpenSSH form, without a passphrase.

    Raises
    ------
    UserError
        If the file cannot be read, or has other content.
    MachineError
        If the package cryptography is not installed.
    """
    ed25519, loaders, errors = _library()
    data = _read(path)
    load = loaders.load_ssh_private_key if b"OPENSSH PRIVATE KEY" in data else loaders.load_pem_private_key
    key: Ed25519PrivateKey | None
    try:
        key = load(data, password=None)
    except errors:
        key = None
    if key is None or not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UserError(
            f"{path} is not an ed25519 private key without a passphrase, in PEM or OpenSSH form; "
            "'openssl genpkey -algorithm ed25519 -out KEY' makes one"
        )
    return key


def public_key(path: Path | str) -> Ed25519PublicKey:
    """The ed25519 public key of a file in PEM or OpenSSH form; raises as :func:`private_key`."""
    ed25519, loaders, errors = _library()
    data = _read(path)
    load = loaders.load_ssh_public_key if data.startswith(b"ssh-") else loaders.load_pem_public_key
    key: Ed25519PublicKey | None
    try:
        key = load(data)
    except errors:
        key = None
    if key is None or not isinstance(key, ed25519.Ed25519PublicKey):
        raise UserError(
            f"{path} is not an ed25519 public key in PEM or OpenSSH form; "
            "'openssl pkey -in KEY -pubout -out KEY.pub' writes that of a private key"
        )
    return key


def fingerprint(key: Ed25519PublicKey) -> str:
    """The key's fingerprint as printed by ``ssh-keygen -l``: ``SHA256:`` and the digest of its OpenSSH form in
    base64."""
    _, loaders, _ = _library()
    line = key.public_bytes(loaders.Encoding.OpenSSH, loaders.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def envelope_path(bundle: Path) -> Path:
    """Path of a bundle's envelope; a folder's envelope has the name of its archive."""
    return bundle.with_name(f"{bundle.name}.tar.gz.dsse.json" if bundle.is_dir() else f"{bundle.name}.dsse.json")


def statement_of(members: Mapping[str, bytes], blob: bytes | None) -> dict[str, Any]:
    """The in-toto statement about a verified bundle.

    Parameters
    ----------
    members : mapping of str to bytes
        Files of the bundle by name.
    blob : bytes, optional
        The archive. Without it the manifest is the only subject.
    """
    name = json.loads(members["manifest.yaml"])["name"]
    files = {f"{name}.tar.gz": blob, f"{name}/manifest.yaml": members["manifest.yaml"]}
    outcomes: dict[bool, list[str]] = {True: [], False: []}
    for path in sorted(path for path in members if path.startswith("records/")):
        record = json.loads(members[path])
        verdict = record["verdict"]
        status = f"{verdict['status']} on {verdict['device']}" if verdict else "not judged"
        label = " ".join(filter(None, (record["kernel"], record["config"])))
        outcomes[bool(verdict and verdict["passed"])].append(f"{label}: {status}")
    harness = json.loads(members["environment.json"])["harness"]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": each, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
            for each, content in files.items()
            if content is not None
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "result": "FAILED" if outcomes[False] else "PASSED",
            "configuration": [
                {"name": f"sdpalab {harness['version']}", "digest": {"sha256": harness["package_sha256"]}}
            ],
            "passedTests": outcomes[True],
            "failedTests": outcomes[False],
        },
    }


def sign(bundle: Path, key: Ed25519PrivateKey) -> Path:
    """Sign a verified archive; returns the path of the envelope.

    Raises
    ------
    MachineError
        If the envelope cannot be written.
    """
    blob = bundle.read_bytes()
    payload = canonical(statement_of(unpack(blob)[1], blob))
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {
                "keyid": fingerprint(key.public_key()),
                "sig": base64.b64encode(key.sign(_encoded(payload))).decode(),
            }
        ],
    }
    path = envelope_path(bundle)
    try:
        write_atomically(path, canonical(envelope))
    except OSError as error:
        raise MachineError(f"cannot write the signature {path.name}: {error.strerror}") from None
    return path


def signature_finding(bundle: Path, members: Mapping[str, bytes], key: Ed25519PublicKey) -> str:
    """Reason why the signature beside a verified bundle is not a valid signature of ``key``; empty if it is."""
    from cryptography.exceptions import InvalidSignature

    path = envelope_path(bundle)
    try:
        envelope = json.loads(_read(path))
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(each["sig"], validate=True) for each in envelope["signatures"]]
        right_type = envelope["payloadType"] == PAYLOAD_TYPE
    except UserError:
        return f"{path.name}: there is no such file, and so no signature"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{path.name}: it is not a DSSE envelope"
    if not right_type:
        return f"{path.name}: its payload is not an in-toto statement"
    for signature in signatures:
        try:
            key.verify(signature, _encoded(payload))
        except InvalidSignature:
            continue
        break
    else:
        return f"{path.name}: it has no signature of the key {fingerprint(key)}"
    try:
        signed = json.loads(payload)
        subjects = {each["digest"]["sha256"] for each in signed["subject"]}
        rest = {name: value for name, value in signed.items() if name != "subject"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{path.name}: its payload is not an in-toto statement"
    about = statement_of(members, None if bundle.is_dir() else bundle.read_bytes())
    if not {each["digest"]["sha256"] for each in about.pop("subject")} <= subjects:
        return f"{path.name}: it signs another bundle"
    return "" if rest == about else f"{path.name}: it signs other verdicts than those of the bundle"


def _encoded(payload: bytes) -> bytes:
    """Bytes that DSSE signs: the type and the payload with their lengths."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _read(path: Path | str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise UserError(f"{path} is larger than {MOST_BYTES} bytes, and no key or signature is")
    return data


def _library() -> tuple[Any, Any, tuple[type[Exception], ...]]:
    """Modules of the package cryptography that sign and read keys, and the exceptions of the readers."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MachineError("signatures need the package cryptography: pip install cryptography") from None
    return ed25519, serialization, (ValueError, TypeError, UnsupportedAlgorithm)
