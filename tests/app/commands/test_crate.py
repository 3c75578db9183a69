"""A run is exported as a Workflow Run RO-Crate, and its model is signed with OpenSSF model signing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from ortpipe.app.commands.show import run as show
from ortpipe.app.run.crate import PROFILE, write_crate
from ortpipe.app.run.process import this_process
from ortpipe.app.run.record import FAILED, RUNNING, RunRecord
from ortpipe.errors import ConfigError

VALIDATOR = os.environ.get("ROCRATE_VALIDATOR", "rocrate-validator")  # and its options, such as --offline


@pytest.fixture
def folder(linear: Path, tmp_path: Path) -> Path:
    copy = shutil.copytree(linear, tmp_path / "run")
    (copy / "link").symlink_to("/etc/passwd")
    return copy


def entities(archive: Path) -> dict[str, dict[str, object]]:
    with zipfile.ZipFile(archive) as zipped:
        graph = json.loads(zipped.read("ro-crate-metadata.json"))["@graph"]
    return {entity["@id"]: entity for entity in graph}


def test_a_crate_has_the_files_of_the_run_and_names_who_ran_what(folder: Path) -> None:
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"link"}
    archive = write_crate(folder, folder / "run.zip", "https://spdx.org/licenses/MIT")
    with zipfile.ZipFile(archive) as zipped:
        assert {*zipped.namelist()} == files | {"ro-crate-metadata.json"}
    by_id, record = entities(archive), RunRecord.read(folder)
    assert by_id["./"]["conformsTo"] == {"@id": PROFILE}
    assert by_id["./"]["license"] == "https://spdx.org/licenses/MIT"
    action = by_id[f"#{record.id}"]
    assert action["description"] == record.tags["ortpipe.command"]
    assert {"@id": "config.yaml"} in action["object"]  # type: ignore[operator]
    assert {"@id": "model.onnx"} in action["result"]  # type: ignore[operator]
    assert {file["@id"] for file in action["object"] + action["result"]} == files  # type: ignore[index, operator]
    assert archive.read_bytes() != write_crate(folder, archive, "another").read_bytes()  # replaced, not nested
    with zipfile.ZipFile(archive) as zipped:
        assert "run.zip" not in zipped.namelist()


def test_a_file_of_a_crate_has_its_media_type(folder: Path) -> None:
    types = {".log": "text/plain", ".md": "text/markdown", ".png": "image/png", ".yaml": "application/yaml"}
    for suffix in types:
        (folder / f"of{suffix}").touch()
    by_id = entities(write_crate(folder, folder / "run.zip", "none"))
    assert {suffix: by_id[f"of{suffix}"]["encodingFormat"] for suffix in types} == types


def test_a_license_without_a_crate_is_rejected() -> None:
    with pytest.raises(ConfigError, match="--license is the license of a crate"):
        show(["model.onnx", "--license", "MIT"])


def test_a_failed_run_is_exported_with_its_error_and_a_running_one_is_rejected(folder: Path) -> None:
    record = RunRecord.read(folder)
    record.end(FAILED, "Losses must stay finite.")
    action = entities(write_crate(folder, folder / "run.zip", "none"))[f"#{record.id}"]
    assert str(action["actionStatus"]).endswith("FailedActionStatus")
    assert action["error"] == "Losses must stay finite."
    record.tags |= this_process()
    record.status, record.ended = RUNNING, None
    record.write()
    with pytest.raises(ConfigError, match="a running one"):
        write_crate(folder, folder / "run.zip", "none")


@pytest.mark.skipif(shutil.which(VALIDATOR.split()[0]) is None, reason="needs roc-validator and its network access")
def test_a_validator_accepts_the_crate(folder: Path) -> None:
    archive = write_crate(folder, folder / "run.zip", "none")
    program, *options = VALIDATOR.split()
    command = [program, "validate", "-p", "process-run-crate", "--no-paging", *options, str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[OK] RO-Crate is a valid process-run-crate-0.5" in done.stdout


def test_a_changed_model_does_not_match_its_signature(folder: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
    from model_signing import signing, verifying

    key, private, public = ec.generate_private_key(ec.SECP256R1()), folder / "key.pem", folder / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    model, signature = folder / "model.onnx", folder / "model.onnx.sig"
    signing.Config().use_elliptic_key_signer(private_key=private).sign(model, signature)
    check = verifying.Config().use_elliptic_key_verifier(public_key=public)
    check.verify(model, signature)
    model.write_bytes(model.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="Hash mismatch"):
        check.verify(model, signature)
