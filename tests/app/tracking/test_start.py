"""A run starts from the trained model of a run or of the registry, however that is named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from registered import MODEL, ROWS, Registered, table

from ortpipe.app.compose import Composition
from ortpipe.app.schema import check
from ortpipe.app.tracking.start import GRAPH, WEIGHTS
from ortpipe.errors import OrtpipeError
from ortpipe.pipeline.digest import identity


def _typed(registered: Registered, start: str, *settings: str):
    place = (f"recorder.tracking_uri={registered.uri}", "data.source.path=rows.csv", f"start={start}")
    return check(Composition(("~experiment", *MODEL, *ROWS, *place, *settings)).values)


def test_a_run_starts_from_the_trained_weights_on_new_rows(registered: Registered) -> None:
    rows = table(registered.folder / "new.csv", 1, words="abcd")
    run = registered.run_with("start=models:/churn@champion", rows=rows, name="warm")
    assert run.config["start"] == "models:/churn/1"
    assert run.record.tags["mlflow.source.name"] == "ortpipe"
    champion, converted = registered.run.artifact(), run.artifact("convert")
    weights = registered.run.folder / WEIGHTS / "model.onnx"
    assert converted.facts.lineage[0]["init"]["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    for name in champion.facts.parameters:
        np.testing.assert_array_equal(run.artifact("train").tensors[f"initial/{name}"], champion.initializers[name])
    assert any(node.op_type == "Dropout" and len(node.input) == 3 for node in converted.model.graph.node)
    assert run.artifact().digest() != champion.digest()
    assert {*run.record.metrics["accuracy"]} == {"before", "trained", "baseline"}  # not the network's random weights


def test_every_name_of_a_model_reads_the_same_files(registered: Registered) -> None:
    folder = registered.run.folder
    registry = ("models:/churn@champion", "models:/churn/1", "models:/churn/latest")
    names = (*registry, str(registered.run.record.mlflow), str(folder))
    configs = []
    for name in names:
        values, problems = _typed(registered, name)
        assert problems == []
        configs.append(values["convert"])
    assert len({str(identity(config)) for config in configs}) == 1
    assert configs[-1].source.path == f"{folder}/{GRAPH}/model.onnx"


@pytest.mark.parametrize(
    ("start", "settings", "message"),
    [
        ("nothing", (), "start must name a run or a registered model."),
        ("runs:/0123/model", (), "start takes the run's id alone."),
        ("models:/churn@nobody", (), "MLflow must have the model"),
        ("models:/other@champion", (), "MLflow must have the model"),
        ("0" * 32, (), "The tracking server or database must be reachable."),
        ("FOLDER", ("convert.init={path: w.onnx}",), "start sets the initial weights."),
        ("UNTRAINED", (), "start needs a run that finished training."),
    ],
)
def test_a_start_that_is_none_is_an_error(
    registered: Registered, tmp_path: Path, start: str, settings: tuple[str, ...], message: str
) -> None:
    (tmp_path / "run.json").write_text((registered.run.folder / "run.json").read_text().replace('"train"', '"other"'))
    start = {"FOLDER": str(registered.run.folder), "UNTRAINED": str(tmp_path)}.get(start, start)
    _, problems = _typed(registered, start, *settings)
    assert [str(problem) for problem in problems if message in str(problem)]
    assert all(isinstance(problem, OrtpipeError) for problem in problems)
