"""Who can choose what a store gives: with a key, those who hold it."""

import dataclasses
import json
import os
import shutil
from collections import Counter

import numpy as np
import pytest
from pipeline.test_store import NAMES, perform, plan

from ortpipe.artifact import Artifact
from ortpipe.errors import ConfigError
from ortpipe.pipeline.gc import remove, verify
from ortpipe.pipeline.store import VARIABLE, Store, _sum, key_of_environment, other_writers

KEY, OTHER = b"a key of this team", b"a key of another team"
ALIEN = "not sealed with this ORTPIPE_STORE_KEY"


@pytest.fixture(scope="module")
def unsealed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unsealed") / "cache"
    perform(plan(), Store(folder))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "cache"
    perform(plan(), Store(folder, key=KEY))
    return folder


@pytest.fixture
def sealed(made, tmp_path):
    return shutil.copytree(made, tmp_path / "cache")


def forged(folder, key=None):
    """Write, as somebody who can, another trained model under the key of train: consistent in itself."""
    store = Store(folder)
    [entry] = store.entries("train")
    artifact = store.artifact(entry.output, print)
    model = type(artifact.model).FromString(artifact.model.SerializeToString())
    for tensor in model.graph.initializer:
        if tensor.name in artifact.facts.parameters:
            values = np.frombuffer(tensor.raw_data, np.float32) * 100
            tensor.raw_data = values.astype(np.float32).tobytes()
    worse = Artifact(model, dataclasses.replace(artifact.facts, lineage=(entry.record,)), artifact.tensors)
    return Store(folder, key=key).publish("train", entry.key, entry.parts, worse, 1.0, print)


def test_a_forged_entry_is_taken_without_a_key_and_not_with_one(unsealed, sealed, tmp_path):
    copy = shutil.copytree(unsealed, tmp_path / "copy")
    true, _, _ = perform(plan(), Store(sealed, key=KEY))
    entry = forged(copy)
    trusting, hits, _ = perform(plan(), Store(copy))
    assert "train" in hits
    assert trusting.digest() != true.digest()  # so this is what the key is for
    for key in (None, OTHER):
        forged(sealed, key)
        store = Store(sealed, key=KEY)
        assert store.find("train", entry.key) is None
        assert verify(store, print) == Counter(intact=5, foreign=1)
        artifact, hits, said = perform(plan(), store)
        assert artifact.digest() == true.digest()
        assert "train" not in hits
        assert sum(ALIEN in line for line in said) == 1
    assert perform(plan(), Store(sealed, key=KEY))[1:] == (NAMES, [])  # what it computed took the entry's place


def test_what_others_stored_counts_as_not_there_and_stays(unsealed, tmp_path):
    copy = shutil.copytree(unsealed, tmp_path / "copy")
    said = []
    store = Store(copy, key=KEY)
    assert verify(store, said.append) == Counter(foreign=6)
    assert said == []  # it is not damaged
    before = sorted(copy.rglob("model.onnx"))
    remove(store, [])
    assert sorted(copy.rglob("model.onnx")) == before


def test_a_sealed_entry_says_nothing_of_another_stage_or_key(sealed):
    store = Store(sealed, key=KEY)
    places = {entry.stage: store.entry_file(entry.stage, entry.key) for entry in store.entries()}
    train = json.loads(places["train"].read_text())
    under = places["evaluate"].with_name(f"{train['key']}.json")  # of another stage, under its own key
    shutil.copy(places["train"], under)
    assert store.find("evaluate", train["key"]) is None
    assert Store(sealed).find("evaluate", train["key"]) is None
    shutil.copy(places["train"], places["penalty"])
    assert store.find("penalty", places["penalty"].stem) is None
    for field, value in (("seconds", 1e-3), ("made", 0.0), ("run", {"folder": "mine"}), ("output", train["output"])):
        entry = {**json.loads(places["derive"].read_text()), field: value}
        del entry["sha256"]
        places["derive"].write_text(json.dumps({**entry, "sha256": _sum(entry)}))
        assert store.find("derive", entry["key"]) is None
        assert Store(sealed).find("derive", entry["key"]) is not None  # without the key nobody can know


def test_the_key_is_nowhere_in_the_store(sealed):
    assert not [file for file in sealed.rglob("*") if file.is_file() and KEY in file.read_bytes()]


def test_an_empty_key_is_no_key():
    with pytest.raises(ConfigError, match="must hold a secret key"):
        key_of_environment({VARIABLE: " "})


@pytest.mark.skipif(os.name != "posix", reason="rights of others are POSIX")
def test_a_folder_that_others_can_write_is_told_once(made, tmp_path):
    copy = shutil.copytree(made, tmp_path / "copy")
    assert perform(plan(), Store(copy))[1:] == (NAMES, [])
    os.chmod(copy / "entries", 0o777)
    _, _, said = perform(plan(), Store(copy))
    assert [line.partition(",")[0] for line in said] == [f"{copy / 'entries'} can be written by everyone"]
    assert perform(plan(), Store(copy, key=KEY))[2] == []  # the key guards it


@pytest.mark.skipif(os.name != "posix", reason="rights of others are POSIX")
def test_a_group_of_one_is_nobody_else(tmp_path, monkeypatch):
    import grp
    import pwd

    me = pwd.getpwuid(os.getuid()).pw_name
    tmp_path.chmod(0o775)
    for name, members, expected in ((me, [me], None), (me, [me, "eve"], f"group {me}"), ("team", [], "group team")):
        monkeypatch.setattr(grp, "getgrgid", lambda number, n=name, m=members: grp.struct_group((n, "x", number, m)))
        assert other_writers(tmp_path) == expected
    tmp_path.chmod(0o755)
    assert other_writers(tmp_path) is None
