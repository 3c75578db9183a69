"""One call gives the run of the equivalent command, and the run predicts, reports and saves."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest

import ortpipe
from ortpipe.app.command_list import command
from ortpipe.errors import ConfigError, DataError

N = 60


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(size=N).round(3), "sex": rng.choice(["f", "m"], N)})
    return frame.assign(target=(2 * frame["age"] + (frame["sex"] == "m")).round(3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fit")


@pytest.fixture(scope="module")
def run(folder: Path) -> ortpipe.Run:
    settings = {"epochs": 3, "weights": "he", "optimizer": "adam", "lr": 0.02, "recorder": "none", "figures": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return ortpipe.fit(table(), "target", folder="one", **settings)


def test_its_command_gives_the_same_bytes(run: ortpipe.Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    program, *words = shlex.split(run.record.tags["ortpipe.command"])
    assert (program, words[0], words[-1]) == ("ortpipe", "experiment=networks/auto", "hydra.run.dir=one")
    again = ortpipe.run(*words[:-1], "hydra.run.dir=two", "paths.cache=null")
    assert again.artifact().digest() == run.artifact().digest()
    assert (folder / "one" / "model.onnx").read_bytes() == (folder / "two" / "model.onnx").read_bytes()


def test_a_run_predicts_frames_files_and_arrays_alike(run: ortpipe.Run, folder: Path) -> None:
    frame = table()
    frame.to_csv(folder / "rows.csv", index=False)
    predicted = run.predict(frame.drop(columns="target"), keep=["sex"])
    assert list(predicted.columns) == ["sex", "prediction"]
    np.testing.assert_array_equal(run.predict(folder / "rows.csv")["prediction"], predicted["prediction"])
    session = onnxruntime.InferenceSession(run.save(folder / "new" / "saved.onnx"))
    feeds = {"age": frame["age"].to_numpy(np.float32), "sex": frame["sex"].to_numpy(object)}
    [expected] = session.run([run.artifact().facts.prediction], feeds)
    np.testing.assert_array_equal(expected.ravel(), predicted["prediction"])


def test_a_run_has_metrics_losses_and_a_report(run: ortpipe.Run) -> None:
    assert run.metrics["r2"]["trained"] > run.metrics["r2"]["before"]
    assert run.losses.query("kind == 'train'")["number"].tolist() == [1, 2, 3]
    assert not (run.folder / "figures").exists()
    assert "figures/losses.png" in run.report().with_suffix(".md").read_text()
    with pytest.raises(ConfigError, match=r"an \.onnx file"):
        run.save("model.pt")
    with pytest.raises(DataError, match="no 'sex' in the rows"):
        run.predict(pd.DataFrame({"age": [1.0]}))
    with pytest.raises(ConfigError, match=r"^keep must name columns(.|\n)*got: nothing"):
        run.predict(table(), keep=["nothing"])


def test_arrays_are_fitted_and_predicted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    x = np.random.default_rng(0).normal(size=(N, 3))
    run = ortpipe.fit(x, x.sum(axis=1), model="sklearn.linear_model.Ridge", epochs=2, recorder="none", figures=False)
    predicted = run.predict(x)["prediction"]
    assert len(predicted) == N
    np.testing.assert_array_equal(run.predict({"X": x})["prediction"], predicted)


def test_the_command_prints_the_run_that_does_the_same(
    run: ortpipe.Run, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    table().to_csv("table.csv", index=False)
    settings = (
        "epochs=3",
        "weights=he",
        "optimizer=adam",
        "lr=0.02",
        "recorder=none",
        "figures=false",
        "hydra.run.dir=three",
    )
    command("fit")(["table.csv", "--label", "target", *settings])
    output = capsys.readouterr()
    assert output.err.splitlines()[0] == (
        "ortpipe experiment=networks/auto data=csv data.source.path=table.csv data.source.label=target "
        "train/optimizer=adam recorder=none train.epochs=3 convert.source.weights=he train.optimizer.lr=0.02 "
        "figures=false hydra.run.dir=three"
    )
    assert ortpipe.Run("three").artifact("train").tensors.keys() == run.artifact("train").tensors.keys()
    assert ortpipe.Run("three").metrics == run.metrics
    command("predict")(["three", "table.csv", "--output", "-", "--keep", "age"])
    shown = capsys.readouterr()
    assert shown.err == f"{N} rows predicted\n"
    expected = run.predict(table(), keep=["age"])
    np.testing.assert_allclose(pd.read_csv(io.StringIO(shown.out))["prediction"], expected["prediction"], rtol=1e-6)
    with pytest.raises(ConfigError, match=r"name=value(.|\n)*got: ~train"):
        command("fit")(["table.csv", "--label", "target", "~train"])
