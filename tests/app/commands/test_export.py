"""ortpipe export: a bundle of a run's model, with other parameters or another optimizer, and what it rejects."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortpipe import LOSSES, AddLossConfig, Data, Rows, add_loss, convert, run
from ortpipe.app.commands import export
from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking import client_at
from ortpipe.artifact_folder import load_artifact, save_artifact
from ortpipe.bundle import read_state
from ortpipe.errors import ConfigError, DeriveError, ModelError, TrainError
from ortpipe.runtime.session import Session

ARGUMENTS = ("~experiment", "data=csv", "data.source.path=rows.csv", "data.source.label=y", "convert=mlp")
Call = Callable[..., str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a small network on a table with words."""
    folder = tmp_path_factory.mktemp("run")
    rows = "\n".join(f"{i % 7},{'red' if i % 3 else 'blue'},{'yes' if i % 2 else 'no'}" for i in range(40))
    (folder / "rows.csv").write_text(f"a,b,y\n{rows}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(*ARGUMENTS, "train.epochs=2", "recorder=none", "hydra.run.dir=run", "figures=false")
    return folder / "run"


@pytest.fixture
def folder(finished: Path, call: Call, tmp_path: Path) -> Path:
    """The run, as `run` in the current folder."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_a_bundle_predicts_as_the_run_and_goes_on_training(folder: Path, call: Call) -> None:
    assert "runs in        onnxruntime >=1.19" in call("export", "run", "--output", "bundle")
    bundle = json.loads(Path("bundle/bundle.json").read_text())
    [meaning] = bundle["predictions"]
    assert (meaning["classes"], meaning["scores"]) == (["no", "yes"], "probabilities")
    assert bundle["origin"]["run"] == RunRecord.read(folder).id
    raw = Path("bundle/state.bin").read_bytes()
    places = {tensor["name"]: tensor for tensor in bundle["state"]["tensors"]}
    state = {
        name: np.frombuffer(raw, places[name]["dtype"], int(np.prod(places[name]["shape"])), places[name]["offset"])
        for name in bundle["carried"]
    }
    rows = {"a": np.arange(6, dtype=np.float32), "b": np.array(["red", "blue", "green"] * 2, object)}
    weights = {name: state[name] for name in bundle["weights"]}
    trained = load_artifact(folder / "stages" / "5_train")
    expected = Session(trained.model).run(rows, [meaning["output"]])[0]
    graph = Session(onnx.load("bundle/predict.onnx"))
    np.testing.assert_allclose(graph.run({**weights, **rows}, [meaning["output"]])[0], expected, rtol=1e-5)
    batch = {name: array[None] for name, array in rows.items()} | {meaning["label"]: np.array([[[0], [1]] * 3])}
    scalars = {name: np.zeros(1, np.float32) + 0.01 for name in bundle["scalars"]}
    *values, losses = Session(onnx.load("bundle/train.onnx")).run({**state, **batch, **scalars})
    assert np.isfinite(losses).all()
    assert not np.array_equal(values[0], state["parameters"])


def test_parameters_and_optimizer_of_a_bundle_may_differ_from_the_runs(folder: Path, call: Call) -> None:
    arguments = ("derive.parameters=[output*]", "train.optimizer={name: sgd, lr: 0.5}")
    call("export", "run", "--output", "bundle", "--steps", "3", *arguments)
    bundle = json.loads(Path("bundle/bundle.json").read_text())
    assert [parameter["name"].partition(".")[0] for parameter in bundle["parameters"]] == ["output", "output"]
    assert (bundle["carried"], bundle["optimizer"]["lr"]) == (["parameters"], 0.5)
    call("export", "run", "--output", "adapters", "+derive.adapters={rank: 1}")
    names = [parameter["name"] for parameter in json.loads(Path("adapters/bundle.json").read_text())["parameters"]]
    assert all("lora" in name or name.endswith(("/L", "/R")) for name in names), names
    text = (folder / "config.yaml").read_text()
    text = text.replace("  calibration: null", "  calibration: temperature").replace("accumulate: 1", "accumulate: 4")
    (folder / "config.yaml").write_text(text)
    assert "left out: calibration" in call("export", "run", "--output", "uncalibrated")
    assert json.loads(Path("uncalibrated/bundle.json").read_text())["batch_size"] == 4 * bundle["batch_size"]
    call("export", "run", "--output", "small", "train.batch_size=8")
    assert json.loads(Path("small/bundle.json").read_text())["batch_size"] == 8
    with pytest.raises(ConfigError, match=r"must not exist yet(.|\n)*--force to replace it"):
        call("export", "run", "--output", "bundle")
    Path("bundle/node_modules").mkdir()
    for name in ("node_modules/ort.js", "fit.mjs"):  # as the README of a bundle says
        Path("bundle", name).write_text(name)
    for _ in range(2):
        assert "bundle  bundle" in call("export", "run", "--output", "bundle", "--force")
        assert {path.name for path in Path("bundle").iterdir()} == {
            *bundle["files"], "bundle.json", "README.md", "fit.mjs", "node_modules",
        }  # fmt: skip
        assert Path("bundle/node_modules/ort.js").read_text() == "node_modules/ort.js"
        Path("bundle/bundle.json").write_text("{}")
    assert "bundle  bundle" in call("export", "run", "--output", "bundle", "--force")
    Path("mine").mkdir()
    with pytest.raises(ConfigError, match="Name another, or remove it"):
        call("export", "run", "--output", "mine", "--force")
    with pytest.raises(DeriveError, match="must match a parameter"):
        call("export", "run", "--output", "other", "derive.parameters=[nothing]")
    with pytest.raises(ConfigError, match="export changes single keys"):
        call("export", "run", "--output", "other", "train.optimizer=sgd")
    with pytest.raises(ConfigError, match=r"changes keys of derive and train(.|\n)*got: penalty=none"):
        call("export", "run", "--output", "other", "penalty=none", "train.epochs=1")
    with pytest.raises(ConfigError, match=r"only settings that a bundle uses(.|\n)*got: train.shuffle, train.epochs"):
        call("export", "run", "--output", "other", "train.shuffle=false", "train.epochs=1", "train.optimizer.lr=0.1")
    with pytest.raises(TrainError, match=r"at most 1,000 bytes(.|\n)*got: \d+,\d+"):
        call("export", "run", "--output", "other", "--max-size", "1000")
    with pytest.raises(ConfigError, match="--steps must be positive"):
        call("export", "run", "--output", "other", "--steps", "0")
    with pytest.raises(ConfigError, match="RUN must name a run or"):
        call("export", "none", "--output", "other")
    assert not Path("other").exists()


def test_an_unchanged_export_is_a_cache_hit_and_show_reads_it(folder: Path, call: Call) -> None:
    call("export", "run", "--output", "bundle", "--float16")
    before = Path("bundle/state.bin").stat().st_mtime_ns
    text = call("export", "run", "--output", "bundle", "--float16")
    assert text == "bundle  bundle (cached: the model and the options are unchanged)\n"
    assert Path("bundle/state.bin").stat().st_mtime_ns == before
    assert "cached" not in call("export", "run", "--output", "bundle", "--float16", "--force")
    with pytest.raises(ConfigError, match="must not exist yet"):
        call("export", "run", "--output", "bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "CODE", folder)  # another version of ortpipe
        with pytest.raises(ConfigError, match="must not exist yet"):
            call("export", "run", "--output", "bundle", "--float16")
    shown = call("show", "bundle", "--stage", "step")
    assert f"run          {RunRecord.read(folder).id}" in shown
    assert "changed" not in shown
    description = json.loads(Path("bundle/bundle.json").read_text())
    assert json.loads(call("show", "bundle", "--json"))["bundle"] == description
    Path("bundle/state.bin").write_bytes(Path("bundle/state.bin").read_bytes() + b"x")
    assert "changed" in call("show", "bundle")
    with pytest.raises(ConfigError, match="must not exist yet"):
        call("export", "run", "--output", "bundle", "--float16")
    with pytest.raises(ConfigError, match="Did you mean 'train'"):
        call("show", "bundle", "--stage", "trian")
    sizes = [{"tensors": [{**description["state"]["tensors"][0], "shape": [size]}]} for size in (2**70, -1, "N")]
    for damaged in (
        *({**description, "state": state} for state in sizes),
        {"format": 2},
        {**description, "predictions": [1]},
        {**description, "state": {"tensors": 5}},
        [],
    ):
        Path("bundle/bundle.json").write_text(json.dumps(damaged))
        with pytest.raises(ModelError, match="Export it again"):
            call("show", "bundle")


@pytest.mark.usefixtures("folder")
def test_artifacts_with_a_loss_are_exported_and_later_stages_count_as_their_run(call: Call) -> None:
    call("export", "run/stages/5_train", "--output", "of_run")
    assert "run" in json.loads(Path("of_run/bundle.json").read_text())["origin"]
    call("export", "run/stages/4_derive", "--output", "untrained", "train.optimizer.lr=0.5")
    untrained = json.loads(Path("untrained/bundle.json").read_text())
    assert ([*untrained["origin"]], untrained["optimizer"]["lr"]) == (["artifact", "key"], 0.5)
    start = load_artifact(Path("run/stages/4_derive")).initializers
    flat = np.concatenate([start[parameter["name"]].ravel() for parameter in untrained["parameters"]])
    np.testing.assert_array_equal(read_state(Path("untrained"), untrained)["parameters"], flat)
    for name in ("3_penalty", "4_derive", "5_train"):
        shutil.copytree(Path("run/stages") / name, name)
    call("export", "3_penalty", "--output", "of_loss", "train.optimizer.lr=0.1")
    assert json.loads(Path("of_loss/bundle.json").read_text())["optimizer"] == {"name": "sgd", "lr": 0.1}
    with pytest.raises(ConfigError, match=r"takes no settings of derive(.|\n)*got: derive.frozen"):
        call("export", "4_derive", "--output", "other", "derive.frozen=[a]")
    for name in ("5_train", "run/stages/1_convert"):
        with pytest.raises(ConfigError, match=rf"needs a loss(.|\n)*got: {name}"):
            call("export", name, "--output", "other")


def test_the_bundle_is_an_artifact_of_its_mlflow_run(
    folder: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{folder.parent}/mlflow.db"
    place = f"recorder.tracking_uri={uri}"
    call("sync", "run", place)
    run_id = json.loads((folder / "mlflow.json").read_text())["run_id"]
    assert f"MLflow run  {run_id}, artifact bundles/bundle" in call("export", run_id, "--output", "bundle", place)
    names = {Path(entry.path).name for entry in client_at(uri).list_artifacts(run_id, "bundles/bundle")}
    assert names == {path.name for path in Path("bundle").iterdir()}
    again = call("export", run_id, "--output", "bundle", place)  # an export whose recording failed is tried again
    assert "cached" in again
    assert "artifact bundles/bundle" in again


def test_c_sources_are_written_after_the_memory_that_they_take_is_printed(
    folder: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    network = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[N,2] X) => (float[N,1] y)
        <float[2,1] w = {0.5, -0.25}, float[1] b = {1}> { y = Gemm(X, w, b) }"""
    )
    data = Data(Rows({"X": np.eye(2, dtype=np.float32)}, np.ones(2, np.float32)))
    save_artifact(add_loss(convert(network, data=data), AddLossConfig(LOSSES["l2"]())), Path("line"))
    with pytest.raises(ConfigError, match=r"at most 10 bytes(.|\n)*got: 16"):
        call("export", "line", "--target", "c", "--output", "small", "--max-size", "10")
    assert "flash  16 bytes: weights 12, rates 4;" in capsys.readouterr().out
    shown = call("export", "line", "--target", "c", "--output", "firmware", "train.batch_size=2")
    assert shown.splitlines()[1].startswith("RAM    ")
    assert {path.name for path in Path("firmware").iterdir()} == {
        "CMakeLists.txt", "cmsis.h", "model.h", "predict.c", "test.c", "train.c",
    }  # fmt: skip
    assert "MODEL_BATCH = 2" in Path("firmware/model.h").read_text()
    with pytest.raises(ConfigError, match="must not exist yet"):
        call("export", "line", "--target", "c", "--output", "firmware")
    Path("firmware/board").mkdir()
    Path("firmware/board/main.c").write_text("int main(void) { return 0; }")
    call("export", "line", "--target", "c", "--output", "firmware", "train.batch_size=3", "--force")
    assert "MODEL_BATCH = 3" in Path("firmware/model.h").read_text()
    assert Path("firmware/board/main.c").read_text() == "int main(void) { return 0; }"
    Path("other").mkdir()
    Path("other/model.h").write_text("/* mine */")
    with pytest.raises(ConfigError, match=r"must not exist yet(.|\n)*or remove it"):
        call("export", "line", "--target", "c", "--output", "other", "--force")
    with pytest.raises(ConfigError, match=r"--steps must be at most 1,000,000(.|\n)*got: 10,000,000"):
        call("export", "line", "--target", "c", "--output", "long", "--steps", "10000000")
    with pytest.raises(ConfigError, match=r"--float16 is an option of bundles(.|\n)*--target c"):
        call("export", "line", "--target", "c", "--output", "half", "--float16")
    with pytest.raises(TrainError, match=r"C sources read numbers(.|\n)*the columns (.|\n)*inputs=\["):
        call("export", "run", "--target", "c", "--output", "words")
    assert not any(Path(name).exists() for name in ("small", "half", "words"))
