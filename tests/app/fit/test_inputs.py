"""Rows and models as arguments of a run."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.ensemble import VotingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from ortpipe.app.fit.inputs import model_of, rows_of, teacher_of
from ortpipe.errors import ConfigError, DataError

FRAME = pd.DataFrame({"age": [1.5, 2.5, np.nan], "net price": [1, 2, 3], "kind": ["a", "b", "a"]})
PROTO = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 18]> g (float[N,1] X) => (float[N,1] y) { y = Relu(X) }'
)


@pytest.mark.parametrize(
    ("rows", "label", "expected"),
    [
        ("new.csv", "y", ["data=csv", "data.source.path=new.csv", "data.source.label=y"]),
        (Path("a b.csv.gz"), ["x", "y"], ["data=csv", "data.source.path='a b.csv.gz'", "data.source.label=[x,y]"]),
        (
            "rows.parquet",
            "net price",
            ["data=parquet", "data.source.path=rows.parquet", "data.source.label='net price'"],
        ),
        ("rows.npz", None, ["data=npz", "data.source.path=rows.npz"]),
        ("iris", None, ["data=iris"]),
    ],
)
def test_a_path_is_read_by_the_source_of_its_ending(rows: Any, label: Any, expected: list[str]) -> None:
    inputs = rows_of(rows, label)
    assert (list(inputs.arguments), inputs.files) == (expected, {})


def test_a_folder_is_read_by_the_source_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").touch()
    assert rows_of(tmp_path, "y").arguments[0] == "data=parquet"


@pytest.mark.parametrize("make", [pd.DataFrame, pa.table])
def test_a_frame_becomes_a_file_named_after_its_content(make: Any) -> None:
    frame = make({"age": [1.5, 2.5], "y": ["a", "b"]})
    inputs = rows_of(frame, "y")
    [(name, content)] = inputs.files.items()
    path = f"data.source.path=${{paths.outputs}}/inputs/{name}"
    assert inputs.arguments == ("data=parquet", path, "data.source.label=y")
    assert parquet.read_table(io.BytesIO(content)).to_pydict() == {"age": [1.5, 2.5], "y": ["a", "b"]}
    assert rows_of(make({"age": [1.5, 2.5], "y": ["a", "b"]}), "y") == inputs
    assert rows_of(make({"age": [1.5, 2.25], "y": ["a", "b"]}), "y").files != inputs.files


def test_labels_may_be_an_array() -> None:
    inputs = rows_of(FRAME[["age"]], FRAME["kind"])
    [content] = inputs.files.values()
    assert inputs.arguments[-1] == "data.source.label=kind"
    assert parquet.read_table(io.BytesIO(content))["kind"].to_pylist() == ["a", "b", "a"]
    for rows in (np.eye(3), {"X": np.eye(3)}):
        inputs = rows_of(rows, np.arange(3))
        [content] = inputs.files.values()
        arrays = np.load(io.BytesIO(content))
        np.testing.assert_array_equal(arrays["X"], np.eye(3))
        np.testing.assert_array_equal(arrays["y"], [0, 1, 2])
        assert inputs.arguments[0] == "data=npz"
    assert rows_of({"X": np.eye(3), "t": np.arange(3)}, "t").arguments[-1] == "data.source.label=t"
    assert rows_of(np.eye(3), [1, 2, 3]) == rows_of(np.eye(3), np.array([1, 2, 3]))


@pytest.mark.parametrize(
    ("rows", "label", "message"),
    [
        ("new.csv", None, r"name of its column of labels(.|\n)*got: new\.csv(.|\n)*--label COLUMN"),
        (FRAME, None, "name of its column of labels"),
        ("new.csv", np.arange(3), "labels of a file must be named"),
        ("new.docx", "y", r"got: new\.docx(.|\n)*\.csv(.|\n)*iris"),
        (np.eye(3), "y", r"need an array of labels(.|\n)*fit\(X, y\)"),
        (3, "y", "must be the path of a file, a DataFrame"),
        (FRAME, pd.Series([1, 2, 3], name="age"), r"another name(.|\n)*'age'"),
        (FRAME, np.arange(2), "3 rows, 2 labels"),
    ],
)
def test_wrong_rows_are_rejected(rows: Any, label: Any, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        rows_of(rows, label)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("tabular", ["experiment=networks/tabular"]),
        ("old/net.onnx", ["~experiment", "convert=onnx", "convert.source.path=old/net.onnx"]),
        (
            "sklearn.linear_model.Ridge",
            ["~experiment", "convert=sklearn", "convert.source.estimator=sklearn.linear_model.Ridge"],
        ),
        (
            Ridge(alpha=0.5),
            [
                *("~experiment", "convert=sklearn", "convert.source.estimator=sklearn.linear_model.Ridge"),
                "convert.source.params={alpha:0.5}",
            ],
        ),
    ],
)
def test_a_model_is_a_choice_of_convert(model: Any, expected: list[str]) -> None:
    inputs = model_of(model)
    assert (list(inputs.arguments), inputs.files) == (expected, {})


def test_a_model_from_memory_becomes_a_file() -> None:
    [(name, content)] = model_of(PROTO).files.items()
    assert model_of(PROTO).arguments[-1] == f"convert.source.path=${{paths.outputs}}/inputs/{name}"
    assert onnx.load_from_string(content) == PROTO


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("mpl", "Did you mean 'mlp'"),
        (3, "got: int"),
        (VotingClassifier([("a", LogisticRegression())]), r"plain values(.|\n)*docs/howto/pipeline"),
        (make_pipeline(Ridge()), r"plain values(.|\n)*docs/howto/pipeline"),
    ],
)
def test_a_wrong_model_is_rejected(model: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(model)


def test_a_teacher_is_a_choice_an_import_path_an_estimator_or_an_onnx_file() -> None:
    assert teacher_of("stack").arguments == ("data/teacher=stack",)
    path = teacher_of("lightgbm.LGBM")
    assert path.arguments == ("data/teacher=boosting", "data.teacher.estimator=lightgbm.LGBM")
    assert teacher_of("big.onnx").arguments == ("data/teacher=onnx", "data.teacher.path=big.onnx")
    estimator = teacher_of(Ridge(alpha=0.5))
    [(name, content)] = estimator.files.items()
    assert pickle.loads(content).alpha == 0.5
    file = f"data.teacher.path=${{paths.outputs}}/inputs/{name}"
    assert estimator.arguments == ("data/teacher=file", file, "data.teacher.trust=true")
    for teacher, shown in (("boost", "got: 'boost'"), (Ridge, "got: teacher: ABCMeta")):
        with pytest.raises(ConfigError, match=f"an estimator with predict(.|\n)*{shown}(.|\n)*boosting or stack"):
            teacher_of(teacher)
