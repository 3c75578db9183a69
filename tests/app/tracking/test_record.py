"""What MLflow is told of a run's rows and of the model that it kept."""

import json
from pathlib import Path

import numpy as np

from ortpipe.app.run.data_facts import data_facts
from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking.datasets import datasets
from ortpipe.app.tracking.metrics import MOST_COLUMNS, Results, metrics
from ortpipe.data.rows import Data
from ortpipe.data.sources.csv import Csv


def test_a_dataset_names_its_columns_its_labels_and_gaps_and_the_whole_path(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("age,city,low,high\n31,Rome,1,2\n,Oslo,3,4\n")
    source = {"path": str(tmp_path / "rows.csv"), "label": ["low", "high"]}
    data = Data(Csv(path=source["path"], label=("low", "high"))())
    (tmp_path / "environment.json").write_text(json.dumps({"folder": str(tmp_path)}))
    record = RunRecord(tmp_path, "mine", {}, data={"source": {**source, "path": "rows.csv"}, **data_facts(data)})
    [train] = datasets(record)
    columns = json.loads(train.dataset.schema)["mlflow_colspec"]
    assert [(c["name"], c["type"], c["required"]) for c in columns] == [
        ("age", "double", False),
        ("city", "string", True),
        ("low", "long", True),
        ("high", "long", True),
    ]
    assert json.loads(train.dataset.source)["uri"] == source["path"]


def test_the_loss_of_the_kept_epoch_stands_beside_the_last_ones(tmp_path: Path) -> None:
    series = {"losses/train": np.array([4.0, 2.0, 1.0]), "losses/validation": np.array([4.0, 3.0, 5.0])}
    record = RunRecord(
        tmp_path, "mine", {}, values={"validation/loss": 3.0}, sensitivity={f"x{i}": i / 9 for i in range(99)}
    )
    record.importance = {"r2": {"age": [0.5, 0.1], "city": [0.25, 0.1]}}
    points = {
        (point.key, point.step): point.value for point in metrics(record, Results(series, kept_epoch=2), None, range(0))
    }
    assert (points["loss/validation", 3], points["loss/kept", 2], points["loss/kept_epoch", 0]) == (5.0, 3.0, 2)
    assert points["importance/r2/age", 0] == 0.5
    assert sum(name.startswith("sensitivity/") for name, _ in points) == MOST_COLUMNS
    assert points["sensitivity/x98", 0] == 98 / 9
