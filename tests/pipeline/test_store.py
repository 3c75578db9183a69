import json
import multiprocessing
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from ortpipe.artifact_folder import FORMAT
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.split import split
from ortpipe.errors import ConvergenceError
from ortpipe.flow import FLOW
from ortpipe.pipeline.events import StageFinished, StageNotice
from ortpipe.pipeline.gc import evictable, remove, usage, verify
from ortpipe.pipeline.locks import key_lock
from ortpipe.pipeline.plan import Step
from ortpipe.pipeline.run import run
from ortpipe.pipeline.store import Store, _sum
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS

X, Y = load_diabetes(return_X_y=True)
NAMES = [stage.name for stage in FLOW]


def plan(source=None, **changes):
    configs = {
        "convert": ConvertConfig(source or SklearnEstimator("sklearn.linear_model.Ridge")),
        "add_loss": AddLossConfig(L2()),
        "penalty": PenaltyConfig(),
        "derive": DeriveConfig(),
        "train": TrainConfig(epochs=2),
        "evaluate": EvaluateConfig(),
    }
    return tuple(Step(stage, (configs | changes)[stage.name]) for stage in FLOW)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache", {"folder": "the first run"})


def perform(steps, store, seed=0):
    """Run a plan; return its artifact, which stages were hits, and what was said beside the stages' own notes."""
    events = []
    context = {"data": split(Rows({"X": X}, Y), SplitConfig(seed=seed)), "runtime": RuntimeConfig(), "start": None}
    artifact = run(steps, context, [events.append], store)
    finished = [e for e in events if isinstance(e, StageFinished)]
    notes = {note for record in artifact.facts.lineage for note in record.get("notes", ())}
    said = [e.message for e in events if isinstance(e, StageNotice) and e.message not in notes]
    return artifact, [e.name for e in finished if e.hit is not None], said


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "flipped":
        content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


def test_what_was_computed_is_taken_and_is_the_same_to_the_byte(store):
    first, hits, said = perform(plan(), store)
    assert (hits, said) == ([], [])
    again, hits, said = perform(plan(), Store(store.folder, {"folder": "another"}))
    assert (hits, said) == (NAMES, [])
    assert again.digest() == first.digest()
    assert again.facts == first.facts  # metrics and the whole lineage
    assert list(again.tensors) == list(first.tensors)  # losses


def test_an_entry_in_use_outlives_garbage_collection(store):
    perform(plan(), store)
    for path in store.files():
        os.utime(path, (0, 0))
    other = plan(train=TrainConfig(epochs=2, seed=1))
    perform(other, store)  # uses the first four entries, and adds two
    old = evictable(usage(store, print), since=time.time() - 3600)
    assert sorted(one.entry.stage for one in old) == ["evaluate", "train"]
    remove(store, [one.entry for one in old])
    assert perform(other, store)[1] == NAMES
    assert perform(plan(), store)[1] == NAMES[:4]


def test_an_entry_says_what_it_is_and_who_made_it(store):
    artifact, _, _ = perform(plan(), store)
    [entry] = store.entries("evaluate")
    assert entry.run == {"folder": "the first run"}
    assert entry.output == artifact.digest()
    settings = {
        "metrics": None,
        "baseline": "constant",
        "calibration": None,
        "threshold": None,
        "rows": 200_000,
        "by": [],
        "bootstrap": 0,
        "folds": 0,
        "importance": 0,
        "sensitivity": False,
        "seed": 0,
    }
    assert entry.parts["evaluate"] == settings
    assert abs(entry.made - time.time()) < 60


@pytest.mark.parametrize("lrs", [(0.01, 0.02, 0.03)])
def test_a_sweep_over_rates_runs_the_first_four_stages_once(store, lrs):
    for number, lr in enumerate(lrs):
        _, hits, _ = perform(plan(train=TrainConfig(OPTIMIZERS["sgd"](lr=lr), epochs=1)), store)
        assert hits == (NAMES[:4] if number else [])
    assert {name: len(list(store.entries(name))) for name in NAMES} == dict.fromkeys(NAMES[:4], 1) | {
        "train": 3,
        "evaluate": 3,
    }


def test_an_output_that_did_not_change_ends_the_chain(store):
    perform(plan(), store)
    version = ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), tolerance=1e-3)  # another key, same model
    _, hits, _ = perform(plan(convert=version), store)
    assert hits == NAMES[1:]


def test_lineage_is_of_the_run_and_not_of_who_computed(store):
    perform(plan(), store)
    tolerant = ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), tolerance=1e-3)
    artifact, _, _ = perform(plan(convert=tolerant), store)
    assert [record["stage"] for record in artifact.facts.lineage] == NAMES
    [entry] = [e for e in store.entries("convert") if e.parts["convert"]["tolerance"] == 1e-3]
    assert artifact.facts.lineage[0] == entry.record


def test_only_success_is_stored(store):
    diverges = TrainConfig(OPTIMIZERS["sgd"](lr=1e30), epochs=2)
    for _ in range(2):
        with pytest.raises(ConvergenceError):
            perform(plan(train=diverges), store)
    assert [entry.stage for entry in store.entries()] == ["add_loss", "convert", "derive", "penalty"]


@pytest.mark.parametrize("file", ["model.onnx", "tensors.safetensors", "artifact.json"])
@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied"])
def test_a_damaged_artifact_is_set_aside_and_computed_again(store, file, how):
    first, _, _ = perform(plan(), store)
    [entry] = store.entries("train")
    path = store.artifact_folder(entry.output) / file
    damage(path, how) if how != "emptied" else path.write_bytes(b"")
    again, hits, said = perform(plan(), store)
    assert hits == [name for name in NAMES if name != "train"]
    assert any("set aside" in message for message in said)
    assert again.digest() == first.digest()
    assert [p.name for p in (store.folder / "damaged").iterdir()] == [f"{entry.output}.0"]
    assert perform(plan(), store)[1:] == (NAMES, [])


@pytest.mark.parametrize("how", ["truncated", "flipped", "swapped"])
def test_a_damaged_entry_is_set_aside_and_computed_again(store, how):
    first, _, _ = perform(plan(), store)
    perform(plan(), store, seed=1)
    one, other = sorted((store.folder / "entries" / "train").iterdir())
    if how == "swapped":
        one.write_bytes(other.read_bytes())
    else:
        damage(one, how)
    results = [perform(plan(), store, seed) for seed in (0, 1)]
    assert results[0][0].digest() == first.digest()
    assert sorted(len(hits) for _, hits, _ in results) == [5, 6]
    assert sum("set aside" in message for _, _, said in results for message in said) == 1


def test_an_artifact_of_a_later_version_is_not_used(store):
    first, _, _ = perform(plan(), store)
    [entry] = store.entries("derive")
    path = store.artifact_folder(entry.output) / "artifact.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))
    again, hits, said = perform(plan(), store)
    assert hits == [name for name in NAMES if name != "derive"]
    assert "format must be the one of this version of ortpipe" in said[0]
    assert again.digest() == first.digest()


def test_an_input_that_changes_while_its_stage_runs_is_not_stored(store, tmp_path, monkeypatch):
    import onnx
    from skl2onnx import to_onnx
    from sklearn.linear_model import LinearRegression

    from ortpipe.stages.convert import stage

    def save(scale):
        fitted = LinearRegression().fit(X, scale * Y)
        made = to_onnx(fitted, X[:1].astype(np.float32), target_opset=17, black_op={"LinearRegressor"})
        onnx.save(made, tmp_path / "a.onnx")

    save(1.0)
    real = stage.convert

    def edits_while_it_works(*arguments, **keywords):
        made = real(*arguments, **keywords)
        save(2.0)
        return made

    monkeypatch.setattr(stage, "convert", edits_while_it_works)
    steps = plan(OnnxFile(str(tmp_path / "a.onnx")))
    _, hits, said = perform(steps, store)
    assert hits == []
    assert said == ["the data or files that convert reads changed while it ran: its result is not stored"]
    assert list(store.entries("convert")) == []
    monkeypatch.undo()
    assert perform(steps, store)[1] == []  # the file is another one now
    assert perform(steps, store)[1] == NAMES


def test_a_store_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    artifact, hits, said = perform(plan(), Store(tmp_path / "cache"))
    assert hits == []
    assert artifact.facts.metrics
    assert [message.partition(":")[0] for message in said] == [  # once, and not for every stage
        f"no lock on {tmp_path / 'cache' / 'locks'}",
        f"cannot write to the store {tmp_path / 'cache'}",
    ]


def compute(folder, barrier, results):
    barrier.wait(120)
    _, hits, said = perform(plan(), Store(folder, {"folder": str(os.getpid())}))
    results.put((hits, said))


def test_processes_that_want_the_same_wait_for_the_one_that_computes(tmp_path):
    fresh = multiprocessing.get_context("spawn")
    results, barrier = fresh.Queue(), fresh.Barrier(2)
    other = fresh.Process(target=compute, args=(tmp_path / "cache", barrier, results))
    other.start()
    compute(tmp_path / "cache", barrier, results)  # in this one
    found = [results.get(timeout=120) for _ in range(2)]
    other.join()
    computed = [name for hits, _ in found for name in NAMES if name not in hits]
    assert sorted(computed) == sorted(NAMES)  # each stage once, whoever it was
    assert not list((tmp_path / "cache" / "locks").iterdir())


HOLD = """
import pathlib, sys, time
from ortpipe.pipeline.locks import key_lock
with key_lock(pathlib.Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_process_that_was_killed_is_free(store):
    perform(plan(), store)
    [entry] = store.entries("train")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, store.folder / "locks" / entry.key], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    assert (store.folder / "locks" / entry.key).exists()
    said = []
    with store.lock(entry.key, said.append):
        assert said == []
    assert not (store.folder / "locks" / entry.key).exists()


@pytest.fixture
def home(tmp_path):
    """A user's folder, which nothing in a store may lead to."""
    for name in ("photos/a.png", ".bashrc", "letter.txt"):
        (tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / name).write_text("precious")
    yield tmp_path / "home"
    kept = {path.relative_to(tmp_path / "home").as_posix() for path in (tmp_path / "home").rglob("*.*")}
    assert kept == {"photos/a.png", ".bashrc", "letter.txt"}
    assert {path.read_text() for path in (tmp_path / "home").rglob("*.*")} == {"precious"}


@pytest.mark.parametrize("place", ["artifacts", "artifacts/zz", "entries/zz", "locks", "locks/x", "artifacts/zz/x"])
def test_garbage_collection_follows_no_link(store, home, place):
    link = store.folder / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(home)
    (store.folder / "a.file").write_text("")
    remove(store, [])


def test_garbage_collection_removes_whatever_is_no_artifact(store):
    (store.folder / "artifacts" / "ab").mkdir(parents=True)
    (store.folder / "artifacts" / "ab" / "file").write_text("")
    os.mkfifo(store.folder / "artifacts" / "ab" / "pipe")
    (store.folder / "entries" / "train" / ".git").mkdir(parents=True)
    remove(store, [])
    assert list((store.folder / "artifacts" / "ab").iterdir()) == []


@pytest.mark.parametrize("form", ["{home}", "../../../home", "a" * 63, None])
def test_an_entry_names_only_an_artifact_of_its_store(store, home, form):
    perform(plan(), store)
    path = store.files("train")[0]
    fields = json.loads(path.read_text())
    del fields["sha256"]
    fields["output"] = form and form.format(home=home)
    path.write_text(json.dumps({**fields, "sha256": _sum(fields)}))
    assert verify(store, print) == {"intact": 5, "damaged": 1}
    assert perform(plan(), store)[1] == [name for name in NAMES if name != "train"]


def test_a_lock_that_is_a_link_is_not_written_to(home, capsys):
    with key_lock(home.parent / "free", print):
        pass
    (home.parent / "lock").symlink_to(home / "letter.txt")
    with key_lock(home.parent / "lock", print):
        pass
    assert "no lock on" in capsys.readouterr().out
