"""A bucket that machines share: each has a folder of its own. `memory://` is a bucket of this process."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from pipeline.test_store import NAMES, X, Y, perform, plan

from ortpipe.artifact import Artifact
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.split import split
from ortpipe.pipeline.dry_run import dry_run
from ortpipe.pipeline.store import Entry, Store, _sum, parse_entry
from ortpipe.remote import bucket as buckets
from ortpipe.remote import shared, upkeep
from ortpipe.remote.bucket import Bucket
from ortpipe.remote.shared import SharedStore, artifact_name, entry_name
from ortpipe.runtime.config import RuntimeConfig

KEY = b"a key of this team"


@pytest.fixture
def url() -> str:
    return f"memory://{uuid4().hex}/prefix"


@pytest.fixture
def machine(url: str, tmp_path: Path) -> Callable[..., SharedStore]:
    """Return a function that returns the store of a machine, whose folder has the machine's name."""
    return lambda name, key=None: SharedStore(url, tmp_path / name, {"folder": name}, key=key)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Artifact]:
    """Return a bucket with the results of a run, and the run's artifact."""
    url = f"memory://{uuid4().hex}/made"
    return url, perform(plan(), SharedStore(url, tmp_path_factory.mktemp("made")))[0]


@pytest.fixture
def first(made: tuple[str, Artifact], url: str) -> Artifact:
    """Copy the results of a run to the bucket, and return the run's artifact."""
    for name in Bucket(made[0]).list(""):
        Bucket(url).write(name, Bucket(made[0]).read(name, 2**30) or b"")
    return made[1]


def objects(store: SharedStore) -> list[str]:
    return sorted(name for folder in ("entries", "artifacts", "locks") for name in store.bucket.list(folder))


def stored(store: SharedStore, stage: str) -> Entry:
    """Return the bucket's entry of a stage."""
    [entry] = [usage.entry for usage in upkeep.usage(store, print) if usage.entry.stage == stage]
    return entry


def object_of(entry: Entry, file: str) -> str:
    return f"{artifact_name(entry.output)}/{file}"


def change(store: SharedStore, name: str, how: Callable[[bytes], bytes]) -> None:
    content = store.bucket.read(name, 2**30)
    assert content is not None
    store.bucket.write(name, how(content))


def test_a_second_machine_computes_nothing_and_its_folder_is_a_store_of_its_own(machine, tmp_path) -> None:
    first, hits, said = perform(plan(), machine("a"))
    assert (hits, said) == ([], [])
    second, hits, said = perform(plan(), machine("b"))
    assert (hits, said) == (NAMES, [])
    assert second.digest() == first.digest()
    assert second.facts.lineage == first.facts.lineage
    assert not [name for name in objects(machine("a")) if name.startswith("locks")]
    assert perform(plan(), Store(tmp_path / "b"))[1:] == (NAMES, [])  # without the bucket
    before = objects(machine("a"))
    assert perform(plan(), machine("a"))[1:] == (NAMES, [])
    assert objects(machine("a")) == before


def test_a_bucket_has_the_layout_of_a_folder(tmp_path) -> None:
    bucket = tmp_path / "bucket"
    perform(plan(), SharedStore(bucket.as_uri(), tmp_path / "a"))
    assert perform(plan(), Store(bucket))[1:] == (NAMES, [])
    assert [file for file in bucket.rglob(".*") if file.name != ".lock"] == []  # no temporary file stays
    assert perform(plan(), SharedStore(bucket.as_uri(), tmp_path / "b"))[1:] == (NAMES, [])


def test_results_that_only_the_folder_has_are_sent_when_they_are_used(machine, tmp_path) -> None:
    perform(plan(), Store(tmp_path / "a"))
    assert perform(plan(), machine("a"))[1] == NAMES
    assert perform(plan(), machine("b"))[1] == NAMES


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    return content[:-20] + bytes([content[-20] ^ 4]) + content[-19:]


def empty(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("files", [("entry", "model.onnx"), ("artifact.json", "tensors.safetensors")])
def test_damaged_objects_are_named_computed_again_and_replaced(machine, first, files: tuple[str, str]) -> None:
    cases = dict(zip(NAMES, itertools.product(files, (truncated, flipped, empty)), strict=True))
    for stage, (file, how) in cases.items():
        entry = stored(machine("a"), stage)
        change(machine("a"), entry_name(stage, entry.key) if file == "entry" else object_of(entry, file), how)
    again, hits, said = perform(plan(), machine("b"))
    shared_artifact = ["penalty"] if "artifact.json" in files else []  # add_loss has replaced it: there is no penalty
    assert (again.digest(), hits) == (first.digest(), shared_artifact)
    places = [entry_name(stage, stored(machine("b"), stage).key) for stage in NAMES if stage not in hits]
    assert all(place in line and "is damaged" in line for place, line in zip(places, said, strict=True))
    assert perform(plan(), machine("c"))[1:] == (NAMES, [])


def test_an_entry_without_its_artifact_is_a_miss(machine, first) -> None:
    machine("a").bucket.delete(object_of(stored(machine("a"), "train"), "artifact.json"))
    _, hits, said = perform(plan(), machine("b"))
    assert (hits, said) == ([name for name in NAMES if name != "train"], [])


def test_a_name_that_strangers_chose_is_no_path(machine, first, tmp_path) -> None:
    outputs = ["../../../../etc/passwd", "/etc/passwd", "a" * 63, "A" * 64, "a" * 64 + "\n", "a" * 64 + "/.."]
    for stage, output in zip(NAMES, outputs, strict=True):

        def named(content: bytes, output: str = output) -> bytes:
            fields = {name: value for name, value in json.loads(content).items() if name != "sha256"}
            return json.dumps({**fields, "output": output, "sha256": _sum({**fields, "output": output})}).encode()

        change(machine("a"), entry_name(stage, stored(machine("a"), stage).key), named)
    again, hits, said = perform(plan(), machine("b"))
    assert (again.digest(), hits, len(said)) == (first.digest(), [], 6)
    assert all("is damaged" in line for line in said)
    assert {path.name for path in tmp_path.iterdir()} == {"b"}


@pytest.mark.parametrize("bound", ["TEXT", "MOST"])
def test_too_large_objects_are_not_downloaded(machine, first, monkeypatch, bound: str) -> None:
    monkeypatch.setattr(shared, bound, 100)
    _, hits, said = perform(plan(), machine("a"))
    assert hits == []
    assert ["more than 100 bytes" in line for line in said] == [True] * 6


def test_only_entries_with_the_seal_are_used_with_a_key(machine, first) -> None:
    again, hits, said = perform(plan(), machine("a", KEY))
    assert (again.digest(), hits) == (first.digest(), [])
    assert ["not sealed with this ORTPIPE_STORE_KEY are ignored" in line for line in said] == [True]
    assert perform(plan(), machine("b", KEY))[1:] == (NAMES, [])  # machine a replaced the stranger's


def test_the_plan_of_a_new_machine_names_the_hits_of_the_bucket(machine, first, tmp_path) -> None:
    context = {"data": split(Rows({"X": X}, Y), SplitConfig(seed=0)), "runtime": RuntimeConfig(), "start": None}
    assert [status.status for status in dry_run(plan(), context, machine("b"))] == ["hit"] * 6
    assert dry_run(plan(), context, machine("b", KEY))[0].status == "miss"
    assert list(tmp_path.iterdir()) == []


def test_two_machines_at_once_compute_each_stage_once(machine) -> None:
    """Both begin with the same stage; the second waits for the claim of the first."""
    computed, digests = list[str](), set[str]()
    start = threading.Barrier(2)

    def work(name: str) -> None:
        start.wait()
        artifact, hits, _ = perform(plan(), machine(name))
        digests.add(artifact.digest())
        computed.extend(stage for stage in NAMES if stage not in hits)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(computed) == dict.fromkeys(NAMES, 1)
    assert len(digests) == 1


def test_two_writers_of_one_key_leave_one_intact_entry(machine, first) -> None:
    entry = stored(machine("a"), "evaluate")
    stores = [machine(str(number)) for number in range(4)]
    threads = [
        threading.Thread(target=store.publish, args=("evaluate", entry.key, entry.parts, first, 1.0, print))
        for store in stores
    ]
    for store in stores:
        store._replace.add(entry.key)  # as after damage: each writes every object
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = machine("a").bucket.read(entry_name("evaluate", entry.key), 2**20)
    assert parse_entry(content, "evaluate", entry.key).output == first.digest()
    assert perform(plan(), machine("new"))[1:] == (NAMES, [])


def test_the_claim_of_a_killed_machine_ends(machine, monkeypatch) -> None:
    monkeypatch.setattr(buckets, "STALE", 0.3)
    bucket, said = machine("a").bucket, list[str]()
    bucket.create("locks/abcdef0123", b"process 7 on \x1b[31mhost 1234abcd")
    with bucket.claim("abcdef0123", said.append):
        assert bucket.read("locks/abcdef0123", 100) != b""
    assert said == ["waiting for process 7 on ?[31mhost, which computes the same"]
    assert bucket.read("locks/abcdef0123", 100) is None


def test_a_claim_is_renewed_while_it_is_held(machine, monkeypatch) -> None:
    monkeypatch.setattr(buckets, "BEAT", 0.05)
    monkeypatch.setattr(buckets, "STALE", 2.0)  # a busy machine may hold a thread up for most of a second
    bucket, order = machine("a").bucket, list[str]()

    def second() -> None:
        with bucket.claim("key", lambda message: None):
            order.append("second")

    with bucket.claim("key", print):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(3.0)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_folder_that_cannot_be_written_is_named_and_the_run_goes_on(first, url, tmp_path) -> None:
    (tmp_path / "file").write_text("no folder")
    again, hits, said = perform(plan(), SharedStore(url, tmp_path / "file"))
    assert (again.digest(), hits) == (first.digest(), [])
    assert any("cannot be stored here" in line for line in said)
