"""Stored results that are not as they were written, met from the command line."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

from command import ortpipe
from faults.conftest import outputs_of
from faults.processes import SMALL

from ortpipe.artifact_folder import load_artifact
from ortpipe.pipeline.store import Store


def artifact(folder: Path, stage: str) -> Path:
    store = Store(folder / "outputs" / "cache")
    [entry] = store.entries(stage)
    return store.artifact_folder(entry.output)


def rewrite(path: Path, content: bytes) -> None:
    path.unlink()  # stored files are read-only
    path.write_bytes(content)


def test_every_kind_of_damage_is_said_set_aside_and_computed_again(copy: Path, expected: list[str]) -> None:
    model, tensors = artifact(copy, "convert") / "model.onnx", artifact(copy, "train") / "tensors.safetensors"
    rewrite(model, model.read_bytes()[:-20])
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 16
    rewrite(tensors, bytes(content))
    later = artifact(copy, "derive") / "artifact.json"
    rewrite(later, json.dumps({**json.loads(later.read_text()), "format": 99}).encode())
    shutil.rmtree(artifact(copy, "evaluate"))
    [entry] = (copy / "outputs" / "cache" / "entries" / "add_loss").iterdir()
    rewrite(entry, entry.read_bytes().replace(b'"seconds"', b'"Seconds"'))
    done = ortpipe(*SMALL, cwd=copy)
    assert done.returncode == 0, done.stderr
    assert outputs_of(copy) == (["penalty"], expected)
    assert done.stderr.count("is damaged: set aside in") == 4  # what was removed leaves nothing
    for said in (
        "external data must be readable",
        "must have the digest it was written with",
        "format must be the one of",
    ):
        assert said in done.stderr
    assert len(list((copy / "outputs" / "cache" / "damaged").iterdir())) == 4


def test_a_file_of_a_run_that_is_edited_in_place_is_found_in_the_store_that_shares_it(
    copy: Path, expected: list[str]
) -> None:
    done = ortpipe(*SMALL, cwd=copy)
    assert done.returncode == 0, done.stderr
    [mine] = copy.glob("outputs/runs/*/*/stages/5_train/model.onnx")
    assert os.path.samefile(mine, artifact(copy, "train") / "model.onnx")
    assert stat.S_IMODE(mine.stat().st_mode) == 0o444  # who is not root is told before anything happens
    mine.chmod(0o644)
    with mine.open("r+b") as file:
        file.seek(-30, os.SEEK_END)
        file.write(b"edited")
    done = ortpipe(*SMALL, cwd=copy)
    assert done.returncode == 0, done.stderr
    assert "set aside" in done.stderr
    hits, found = outputs_of(copy)
    assert "train" not in hits
    assert found == expected
    [_, later] = sorted(copy.glob("outputs/runs/*/*/stages/5_train"))
    assert load_artifact(later).digest() == expected[4]


def test_a_damaged_artifact_is_not_taken_for_an_equal_one_that_another_config_gives(
    copy: Path, expected: list[str]
) -> None:
    model = artifact(copy, "convert") / "model.onnx"
    rewrite(model, b"damaged")
    done = ortpipe(*SMALL, "convert.tolerance=0.001", cwd=copy)  # another key, the same result
    assert done.returncode == 0, done.stderr
    assert outputs_of(copy)[1] == expected
    assert "set aside" in done.stderr
    [folder] = copy.glob("outputs/runs/*/*/stages/1_convert")
    assert load_artifact(folder).digest() == expected[0] == load_artifact(artifact_of(copy, expected[0])).digest()


def artifact_of(folder: Path, digest: str) -> Path:
    return Store(folder / "outputs" / "cache").artifact_folder(digest)
