"""Train networks by config and HistGradientBoosting on real tables, one after the other, and print one table.

    python -m acceptance tables [--tables diabetes …] [--seeds 3] [--rows 20000] [--output table.md]

Each table is split into training, validation (15 %) and test rows (25 %) by each seed. Networks train on the first and
stop by the second; HistGradientBoosting has its defaults and fits both. Quality is measured on the test rows, mean and
least to greatest over the seeds; time is this process's own seconds on one thread, from the rows to the trained model,
preparation included.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from acceptance.tables.data import LOSS, METRIC, table
from benchmarks.report import table as markdown
from ortpipe.data.parts import SplitConfig
from ortpipe.data.pieces import concatenate
from ortpipe.data.rows import Data, Rows
from ortpipe.data.split import split
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

NETWORKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # source, its settings, those of AdamW
    "linear": ("mlp", {"hidden": [], "words": "one_hot"}, {"lr": 0.01}),
    "MLP": ("mlp", {}, {"lr": 0.001}),
    "TabM": ("tabular", {"width": 64}, {"lr": 0.002, "weight_decay": 0.0003}),
}
PATIENCE, EPOCHS = 16, 200
FEW = 2000  # rows, up to which a batch has 32


def network(name: str, data: Data, loss: str, metric: str, seed: int) -> tuple[float, float]:
    """Return a network's quality on the test rows, and the seconds that it took."""
    source, settings, optimizer = NETWORKS[name]
    start = time.process_time()
    model = convert(None, ConvertConfig(SOURCES[source](**settings, seed=seed)), data=data)
    gradient = derive(add_loss(model, AddLossConfig(LOSSES[loss]())))
    config = TrainConfig(
        OPTIMIZERS["adamw"](**optimizer),
        epochs=EPOCHS,
        batch_size=32 if len(data.train) <= FEW else 256,
        seed=seed,
        early_stop=EarlyStopConfig(patience=PATIENCE),
    )
    trained = train(gradient, config, data=data)
    seconds = time.process_time() - start
    return evaluate(trained, data=data).facts.metrics[metric]["trained"], seconds


def boosting(data: Data, metric: str, seed: int) -> tuple[float, float]:
    """Return HistGradientBoosting's quality on the test rows, words as its categories, and the seconds it took."""
    from sklearn import ensemble, metrics
    from threadpoolctl import threadpool_limits

    assert data.test is not None
    assert data.validation is not None
    fitted, test = concatenate([data.train.sample(), data.validation.sample()]), data.test.sample()
    start = time.process_time()
    words = {n: sorted(set(fitted.inputs[n].tolist())) for n, kept in fitted.kept.items() if kept.kind == "word"}
    kind = ensemble.HistGradientBoostingRegressor if metric == "r2" else ensemble.HistGradientBoostingClassifier
    model = kind(random_state=seed, categorical_features="from_dtype")
    with threadpool_limits(1):
        model.fit(frame(fitted, words), fitted.label)
    seconds = time.process_time() - start
    x, y = frame(test, words), test.label
    if metric == "roc_auc":
        return float(metrics.roc_auc_score(y == model.classes_[1], model.predict_proba(x)[:, 1])), seconds
    return float(model.score(x, y)), seconds


def frame(rows: Rows, words: dict[str, list[str]]) -> pd.DataFrame:
    """Return rows as a frame of numbers, parts of dates, and categories, of which unknown ones are missing."""
    if not rows.kept:
        [numbers] = rows.inputs.values()
        return pd.DataFrame(np.asarray(numbers))
    columns: dict[str, Any] = {}
    for name, array in rows.inputs.items():
        if rows.kept[name].kind == "date":
            when = pd.to_datetime(pd.Series(array))
            parts = {"day": when.dt.dayofyear, "weekday": when.dt.day_of_week, "hour": when.dt.hour}
            columns |= {f"{name}.{part}": values for part, values in parts.items()}
        else:
            columns[name] = _categories(array, words[name]) if name in words else array
    return pd.DataFrame(columns)


def _categories(array: np.ndarray, words: list[str]) -> pd.Categorical:
    known = dict(zip(words, range(len(words)), strict=True))
    return pd.Categorical.from_codes([known.get(word, -1) for word in array], words)


def main(arguments: list[str] | None = None) -> None:
    """Run all and print or write the table."""
    parser = argparse.ArgumentParser(prog="python -m acceptance tables", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--tables", nargs="+", default=[*LOSS], choices=[*LOSS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000, help="of the flights")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    lines = []
    for name in options.tables:
        rows = table(name, options.rows)
        runs: dict[str, Callable[[Data, int], tuple[float, float]]] = {
            model: lambda data, seed, model=model, name=name: network(model, data, LOSS[name], METRIC[name], seed)
            for model in NETWORKS
        }
        runs["HistGradientBoosting"] = lambda data, seed, name=name: boosting(data, METRIC[name], seed)
        stratify = LOSS[name] != "l2"
        parts = [split(rows, SplitConfig(0.25, 0.15, stratify=stratify, seed=s)) for s in range(options.seeds)]
        for model, run in runs.items():
            print(f"{name}, {model} …", file=sys.stderr, flush=True)
            found = [run(data, seed) for seed, data in enumerate(parts)]
            lines.append([name, f"{len(rows):,}", METRIC[name], model, *_shown(found)])
    text = markdown(["table", "rows", "metric", "model", "mean", "least to greatest", "s"], lines)
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text + "\n")


def _shown(found: list[tuple[float, float]]) -> list[str]:
    quality, seconds = np.array(found).T
    return [f"{quality.mean():.3f}", f"{quality.min():.3f} to {quality.max():.3f}", f"{seconds.mean():.1f}"]
