"""A run with folds fits once per fold; a run whose test rows are those of a fold is the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold

import ortpipe
from ortpipe.errors import DataError, EvaluateError
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.early import check

N = 48
SETTINGS = {"model": "sklearn.linear_model.Ridge", "epochs": 2, "recorder": "none", "figures": False}


@pytest.fixture
def frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=N), "group": rng.integers(0, 6, N)})
    return frame.assign(y=frame["x"] + rng.normal(size=N))


def test_each_fold_is_a_run_of_its_own_test_rows(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    run = ortpipe.fit(frame, "y", folds=3, **{"data.split.group": "group"}, **SETTINGS)
    folds = run.folds
    assert list(folds.columns) == list(run.metrics)
    _, test = next(GroupKFold(3).split(frame, groups=frame["group"].astype(str)))
    part = np.where(np.isin(np.arange(N), test), "test", "train")
    one = ortpipe.fit(frame.drop(columns="group").assign(part=part), "y", column="part", **SETTINGS)
    assert {name: values["trained"] for name, values in one.metrics.items()} == dict(folds.iloc[0])
    printed = capsys.readouterr()
    assert f"fold 1 of 3: r2 {folds['r2'][0]:.4f}, " in printed.err
    shown = f"{folds['r2'].mean():.4f} ± {folds['r2'].std(ddof=0):.4f}"
    assert shown in printed.out
    for page in ("report.md", "report.html"):
        assert shown in (run.folder / page).read_text()
    alone = ortpipe.fit(frame, "y", **{"data.split.group": "group"}, **SETTINGS)
    assert alone.artifact().digest() == run.artifact().digest()
    assert alone.folds.empty


def test_folds_that_cannot_be_are_rejected(frame: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="6 groups") as error:
        ortpipe.fit(frame, "y", folds=7, **{"data.split.group": "group"}, **SETTINGS)
    assert any("1 of 7" in note for note in error.value.__notes__)
    with pytest.raises(DataError, match="Folds need a split by fractions"):
        ortpipe.fit(frame.assign(p="train"), "y", folds=2, column="p", **SETTINGS)


def test_the_stage_alone_has_no_folds() -> None:
    rows = ortpipe.Rows({"X": np.zeros((2, 1))}, [0.0, 1.0])
    facts = ortpipe.Facts("regression", ("X",), ("Y",), "Y", ("w",))
    with pytest.raises(EvaluateError, match="Folds belong to a run"):
        check(facts, EvaluateConfig(folds=2), data=ortpipe.Data(rows, test=rows))
