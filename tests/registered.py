"""A registered model of a small table, which tests of the registry share."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import schema_once

from ortpipe.app.runs import Run, run

MODEL = ("convert=mlp", "convert.source.hidden=[4]", "convert.source.dropout=0.1", "add_loss=auto", "train.epochs=2")
ROWS = ("data=csv", "data.source.label=y", "data.split.validation=0.3")


def table(file: Path, seed: int, *, words: str = "abc", shift: float = 0.0, rows: int = 200) -> str:
    """Write a table with a column of numbers, one of words, and labels that follow from both; return its path."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(shift, 1, rows), rng.choice(list(words), rows)
    y = np.where(x + (w == "a") + rng.normal(0, 0.5, rows) > 0.5, "yes", "no")
    pd.DataFrame({"x": x, "w": w, "y": y}).to_csv(file, index=False)
    return str(file)


class Registered(NamedTuple):
    folder: Path
    uri: str
    run: Run  # that trained the champion of `churn`

    def run_with(self, *settings: str, rows: str, name: str) -> Run:
        """Run with the settings of the champion, rows of a file, and these settings."""
        place = (f"hydra.run.dir={self.folder / name}", f"data.source.path={rows}", "figures=false")
        with contextlib.chdir(self.folder):
            return run("~experiment", *MODEL, *ROWS, *place, f"recorder.tracking_uri={self.uri}", *settings)


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Registered:
    """Return an MLflow whose registered model `churn` has a champion."""
    schema_once.patch()
    folder = tmp_path_factory.mktemp("registered")
    empty = Registered(folder, f"sqlite:///{folder}/mlflow.db", None)  # type: ignore[arg-type]
    first = empty.run_with("recorder.register=churn", rows=table(folder / "old.csv", 0), name="first")
    return empty._replace(run=first)
