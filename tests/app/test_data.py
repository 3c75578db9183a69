"""Data of one's own, from the command line to the trained model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from command import ortpipe
from sklearn.datasets import load_diabetes, load_iris

from ortpipe import load_artifact
from ortpipe.facts_json import read_metadata
from ortpipe.runtime.session import Session

FRAME = load_diabetes(as_frame=True, scaled=False).frame
FRAME["sex"] = FRAME["sex"].map({1: "f", 2: "m"})
LINEAR = ("experiment=linear_regression", "train.epochs=300")


def metrics(folder: Path, name: str) -> dict[str, float]:
    return json.loads((folder / "run.json").read_text())["metrics"][name]


def test_a_csv_file_with_words_trains_and_the_model_says_how_to_feed_it(
    cli: Callable, only_run: Callable, tmp_path: Path
) -> None:
    FRAME.to_csv(tmp_path / "patients.csv", index=False)
    done = cli(*LINEAR, "data=csv", "data.source.path=patients.csv", "data.source.label=target")
    assert done.returncode == 0, done.stderr
    r2 = metrics(only_run(), "r2")
    assert r2["trained"] >= r2["source"] - 0.01
    model = onnx.load(only_run() / "model.onnx")
    said = read_metadata(model)
    row = {name: np.array([FRAME[name][0]], object if name == "sex" else np.float32) for name in said["inputs"]}
    assert list(row) == [name for name in FRAME if name != "target"]
    [[[predicted]]] = Session(model).run(row, ["prediction"])
    assert 25 < predicted < 346  # the range of the labels


@pytest.mark.parametrize("stream", ["true", "null"])
def test_a_folder_of_parquet_files_trains_with_a_column_of_parts(
    stream: str, cli: Callable, only_run: Callable, tmp_path: Path
) -> None:
    frame = load_iris(as_frame=True).frame
    frame = frame.assign(part=np.random.default_rng(0).choice(["train", "validation", "test"], 150, p=[0.5, 0.2, 0.3]))
    (tmp_path / "iris").mkdir()
    for number in range(3):
        frame[number * 50 : number * 50 + 50].to_parquet(tmp_path / "iris" / f"{number}.parquet", row_group_size=20)
    done = cli(
        *("~experiment", "data=parquet", "data.source.path=iris", "data.source.label=target", "data.split.column=part"),
        *("convert.source.estimator=sklearn.linear_model.LogisticRegression", "convert.source.scaler=standard"),
        *(f"data.source.stream={stream}", "train.init=random", "train.optimizer.lr=0.3", "train.epochs=60"),
    )
    assert done.returncode == 0, done.stderr
    accuracy = metrics(only_run(), "accuracy")
    assert accuracy["trained"] >= accuracy["source"] - 0.05
    tensors = load_artifact(only_run() / "stages" / "6_evaluate").tensors
    assert len(tensors["losses/validation"]) == 60
    assert len(tensors["evaluation/label"]) == (frame.part == "test").sum()


def test_npy_files_train_with_a_folder_of_test_rows(cli: Callable, only_run: Callable, tmp_path: Path) -> None:
    X, y = load_diabetes(return_X_y=True)
    for name, cut in (("rows", slice(300)), ("held", slice(300, None))):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "X.npy", X[cut])
        np.save(tmp_path / name / "y.npy", y[cut])
    done = cli("experiment=linear_regression", "data=npy", "data.source.path=rows", "data.split.test=held")
    assert done.returncode == 0, done.stderr
    r2 = metrics(only_run(), "r2")
    assert r2["trained"] >= r2["source"] - 0.02
    assert len(load_artifact(only_run() / "stages" / "6_evaluate").tensors["evaluation/label"]) == len(y) - 300


FUNCTION = """
from sklearn.datasets import load_diabetes

def rows(scaled):
    return load_diabetes(as_frame=True, scaled=scaled).frame
"""


def test_a_function_trains_and_its_code_is_in_the_lineage(tmp_path: Path) -> None:
    records = []
    for name, code in (("one", FUNCTION), ("same", FUNCTION), ("other", f"# another\n{FUNCTION}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(code)
        done = ortpipe(
            *("recorder=none", *LINEAR, "data=function", "data.source.function=mine:rows", "data.source.label=target"),
            *("+data.source.params.scaled=true", "train.epochs=1"),
            cwd=tmp_path / name,
        )
        assert done.returncode == 0, done.stderr
        [folder] = (tmp_path / name).glob("outputs/runs/*/*")
        records.append(load_artifact(folder / "stages" / "1_convert").facts.lineage[0]["data"])
    assert records[0] == records[1] != records[2]


EMBEDDING = """<ir_version: 8, opset_import: ["" : 17]>
mix (float[N,2] X, int64[N] city) => (float[N,1] y)
 <float[2,1] W = {0,0}, float[3,1] level = {0,0,0}>
{ line = MatMul(X, W) own = Gather<axis=0>(level, city) y = Add(line, own) }"""


def test_several_inputs_come_from_columns_by_name(cli: Callable, only_run: Callable, tmp_path: Path) -> None:
    """Least squares, by numpy.linalg.lstsq, is where the training goes."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=400), "b": rng.normal(size=400)})
    frame["town"] = rng.choice(3, 400)
    levels = frame.town.map({0: -2.0, 1: 1.0, 2: 4.0})
    frame = frame.assign(y=2 * frame.a - frame.b + levels + rng.normal(scale=0.1, size=400))
    frame.to_csv(tmp_path / "rows.csv", index=False)
    onnx.save(onnx.parser.parse_model(EMBEDDING), tmp_path / "mix.onnx")
    done = cli(
        *("~experiment", "convert=onnx", "convert.source.path=mix.onnx", "add_loss=l2", "data=csv"),
        *("data.source.path=rows.csv", "data.source.label=y", "data.source.inputs={X: [a, b], city: [town]}"),
        *("train.epochs=60", "train.optimizer.lr=0.05", "data.split.test=0.1"),
    )
    assert done.returncode == 0, done.stderr
    tensors = load_artifact(only_run() / "stages" / "5_train").tensors
    design = np.column_stack([frame[["a", "b"]], pd.get_dummies(frame.town)]).astype(float)
    expected = np.linalg.lstsq(design, frame.y, rcond=None)[0]
    found = np.concatenate([tensors["parameter/W"].ravel(), tensors["parameter/level"].ravel()])
    np.testing.assert_allclose(found, expected, atol=0.05)


BAD = {
    "wrong settings, a label that is not there and a missing value, all at once": (
        [
            *("data.source.path=holed.csv", "data.source.label=targt", "data.source.exclude=[nothing]"),
            *("train.epochs=-1", "data.source.unlabeled=never", "data.split.test=2"),
        ],
        [
            *("5 errors", "train.epochs must be", "data.source.unlabeled must be", "data.split.test must be"),
            *("data.source.label must name", "Did you mean 'target'?", "data.source.exclude must name"),
        ],
    ),
    "a missing value": (["data.source.path=holed.csv"], ["1 row without a value in column 'bmi'"]),
    "a ragged line": (
        ["data.source.path=ragged.csv"],
        ["as many fields as the first (11)", "line 4 of ragged.csv has 3: 1,2,3"],
    ),
    "a file that is away": (["data.split.test=away.csv"], ["must exist", "away.csv"]),
    "words as parts": (
        ["data.split.column=sex"],
        ["train, validation and test", "'m' in column 'sex', line 2 of patients.csv"],
    ),
    "a module that is away": (
        ["data=function", "data.source.function=nowhere:rows"],
        ["nowhere: ModuleNotFoundError"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused_before_any_stage(case: str, cli: Callable, tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "patients.csv", index=False)
    holed = FRAME.copy()
    holed.loc[7, "bmi"] = np.nan
    holed.to_csv(tmp_path / "holed.csv", index=False)
    lines = (tmp_path / "patients.csv").read_text().splitlines()
    (tmp_path / "ragged.csv").write_text("\n".join([*lines[:3], "1,2,3", *lines[3:]]))
    overrides, words = BAD[case]
    own = ["data=csv", "data.source.path=patients.csv", "data.source.label=target"]
    done = cli("experiment=linear_regression", *(own if overrides[0] != "data=function" else []), *overrides)
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    assert [word for word in words if word not in done.stderr] == []
    assert list(tmp_path.glob("outputs/runs/*/*/stages")) == []
