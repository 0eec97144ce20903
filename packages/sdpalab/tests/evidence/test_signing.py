"""Signatures: the key that signed a bundle is accepted, and no other key, bundle or verdict."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from evidence_sample import Sample

from sdpalab.cli import main
from sdpalab.errors import UserError
from sdpalab.evidence import verify_bundle
from sdpalab.evidence.signing import envelope_path, fingerprint, private_key, public_key, sign
from sdpalab.evidence.store.files import write_atomically

KEY, OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32)), Ed25519PrivateKey.from_private_bytes(bytes(31) + b"1")


def key_files(folder: Path, key: Any) -> dict[str, Path]:
    """The key in every form that is read, and in forms that are not."""
    e, private, public = serialization.Encoding, serialization.PrivateFormat, serialization.PublicFormat
    plain, secret = serialization.NoEncryption(), serialization.BestAvailableEncryption(b"secret")
    contents = {
        "pem": key.private_bytes(e.PEM, private.PKCS8, plain),
        "ssh": key.private_bytes(e.PEM, private.OpenSSH, plain),
        "encrypted": key.private_bytes(e.PEM, private.PKCS8, secret),
        "pem.pub": key.public_key().public_bytes(e.PEM, public.SubjectPublicKeyInfo),
        "ssh.pub": key.public_key().public_bytes(e.OpenSSH, public.OpenSSH),
    }
    paths = {name: folder / name for name in contents}
    for name, content in contents.items():
        paths[name].write_bytes(content)
    return paths


@pytest.fixture
def signed(sample: Sample, tmp_path: Path) -> Path:
    """A copy of the sample bundle with a signature of KEY beside it."""
    path = tmp_path / "signed" / sample.written.tarball.name
    path.parent.mkdir()
    shutil.copy(sample.written.tarball, path)
    sign(path, KEY)
    return path


def test_a_signature_holds_for_the_archive_and_for_its_folder(signed: Path) -> None:
    shutil.unpack_archive(signed, signed.parent, filter="data")
    for path in (signed, signed.parent / signed.name.removesuffix(".tar.gz")):
        assert verify_bundle(path, report=False, signer=KEY.public_key()).findings == []
        (finding,) = verify_bundle(path, report=False, signer=OTHER.public_key()).findings
        assert "no signature of the key SHA256:" in finding


def test_the_envelope_is_an_in_toto_statement_about_the_archive_and_its_verdicts(signed: Path, sample: Sample) -> None:
    envelope = json.loads(envelope_path(signed).read_text())
    payload = base64.b64decode(envelope["payload"])
    encoded = b"DSSEv1 28 application/vnd.in-toto+json %d %b" % (len(payload), payload)
    KEY.public_key().verify(base64.b64decode(envelope["signatures"][0]["sig"]), encoded)
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    archive = statement["subject"][0]
    assert archive["name"] == signed.name
    assert archive["digest"]["sha256"] == sample.written.side_car.read_text().split()[0]
    predicate = statement["predicate"]
    assert predicate["result"] == "FAILED"
    assert predicate["passedTests"] == ["honest BLOCK_M=64: PASSED on simulator sm_89"]
    assert [each.rpartition(": ")[2] for each in predicate["failedTests"]] == [
        "INCORRECT on simulator sm_89",
        "not judged",
    ]


def rewritten(path: Path, edit: Callable[[dict[str, Any]], object], key: Any = KEY) -> None:
    """Edit the statement, and sign it again with ``key``."""
    envelope = json.loads(envelope_path(path).read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    edit(statement)
    payload = json.dumps(statement).encode()
    encoded = b"DSSEv1 28 application/vnd.in-toto+json %d %b" % (len(payload), payload)
    envelope["payload"] = base64.b64encode(payload).decode()
    envelope["signatures"] = [{"keyid": "", "sig": base64.b64encode(key.sign(encoded)).decode()}]
    envelope_path(path).write_text(json.dumps(envelope))


def swap_subject(statement: dict[str, Any]) -> None:
    statement["subject"][0]["digest"]["sha256"] = "0" * 64


@pytest.mark.parametrize(
    ("edit", "key", "expected"),
    [
        (lambda s: None, KEY, ""),
        (lambda s: None, OTHER, "no signature of the key"),
        (swap_subject, KEY, "signs another bundle"),
        (lambda s: s["subject"].pop(1), KEY, "signs another bundle"),
        (lambda s: s["predicate"].update(result="PASSED"), KEY, "signs other verdicts"),
        (lambda s: s["predicate"]["failedTests"].clear(), KEY, "signs other verdicts"),
        (lambda s: s.update(predicateType="https://example.org/x"), KEY, "signs other verdicts"),
        (lambda s: s.update(subject=3), KEY, "not an in-toto statement"),
    ],
)
def test_a_statement_about_anything_else_is_rejected(
    signed: Path, edit: Callable[[dict[str, Any]], object], key: Any, expected: str
) -> None:
    rewritten(signed, edit, key)
    findings = verify_bundle(signed, report=False, signer=KEY.public_key()).findings
    assert len(findings) == bool(expected)
    assert expected in "".join(findings)


def test_no_envelope_and_what_is_none_are_rejected(signed: Path) -> None:
    path = envelope_path(signed)
    good = json.loads(path.read_text())
    for text in ("", "[]", "{}", '"x"', "[" * 100_000, json.dumps({**good, "payload": "*"})):
        path.write_text(text)
        assert "not a DSSE envelope" in verify_bundle(signed, report=False, signer=KEY.public_key()).findings[0]
    path.write_text(json.dumps({**good, "payloadType": "text/plain"}))
    assert "not an in-toto statement" in verify_bundle(signed, report=False, signer=KEY.public_key()).findings[0]
    path.write_text(json.dumps({**good, "signatures": []}))
    assert "no signature of the key" in verify_bundle(signed, report=False, signer=KEY.public_key()).findings[0]
    path.unlink()
    assert "there is no such file" in verify_bundle(signed, report=False, signer=KEY.public_key()).findings[0]
    assert verify_bundle(signed).accepted


def test_keys_are_read_in_pem_and_openssh_form_and_named_as_ssh_keygen_does(tmp_path: Path) -> None:
    files = key_files(tmp_path, KEY)
    names = {fingerprint(private_key(files[name]).public_key()) for name in ("pem", "ssh")}
    names |= {fingerprint(public_key(files[name])) for name in ("pem.pub", "ssh.pub")}
    assert len(names) == 1
    if shutil.which("ssh-keygen"):
        done = subprocess.run(["ssh-keygen", "-lf", str(files["ssh.pub"])], capture_output=True, text=True, check=True)
        assert done.stdout.split()[1] in names


def test_what_is_no_key_is_one_sentence(tmp_path: Path) -> None:
    files = key_files(tmp_path, KEY)
    (tmp_path / "text").write_text("no key")
    curve = key_files_of_a_curve(tmp_path)
    for path in (files["encrypted"], files["pem.pub"], files["ssh.pub"], tmp_path / "text", curve[0]):
        with pytest.raises(UserError, match="is not an ed25519 private key without a passphrase, in PEM or OpenSSH"):
            private_key(path)
    for path in (files["pem"], files["ssh"], tmp_path / "text", curve[1]):
        with pytest.raises(UserError, match="is not an ed25519 public key in PEM or OpenSSH form"):
            public_key(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        public_key(tmp_path / "absent")
    write_atomically(tmp_path / "large", bytes(2 << 20))
    with pytest.raises(UserError, match="is larger than"):
        private_key(tmp_path / "large")


def key_files_of_a_curve(folder: Path) -> tuple[Path, Path]:
    """A private and a public key of another algorithm."""
    key, e = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding
    private, public = folder / "curve", folder / "curve.pub"
    plain = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(e.PEM, serialization.PrivateFormat.PKCS8, plain))
    public.write_bytes(key.public_key().public_bytes(e.OpenSSH, serialization.PublicFormat.OpenSSH))
    return private, public


def test_the_command_line_says_whose_bundle_it_is(
    signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, others = key_files(tmp_path, KEY), tmp_path / "others"
    others.mkdir()
    assert main(["verify", str(signed), "--signer", str(files["ssh.pub"])]) == 0
    assert f"signed by the key {fingerprint(KEY.public_key())}" in capsys.readouterr().out
    assert main(["verify", str(signed)]) == 0
    assert "not checked; --signer KEY says whose it is" in capsys.readouterr().out
    assert main(["verify", str(signed), "--signer", str(key_files(others, OTHER)["pem.pub"])]) == 1
    assert "REJECTED" in capsys.readouterr().out
    assert main(["verify", str(signed), "--signer", str(files["pem"])]) == 2
    assert "is not an ed25519 public key" in capsys.readouterr().err


def test_a_bad_key_stops_repro_and_judge_before_they_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = str(key_files(tmp_path, KEY)["pem.pub"])
    out = tmp_path / "out"
    assert main(["repro", "scalar", "--out", str(out), "--sign", bad]) == 2
    assert main(["judge", "scalar", "--bundle", str(out), "--sign", bad]) == 2
    assert main(["judge", "scalar", "--sign", bad]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert ["is not an ed25519 private key" in line for line in lines] == [True, True, False]
    assert "--bundle DIR" in lines[2]
    assert not out.exists()
