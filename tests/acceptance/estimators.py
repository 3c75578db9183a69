"""Every estimator of scikit-learn: its loss, or why it is not supported.

`python -m acceptance estimators` fits each on a few rows, converts it, and trains it by L-BFGS from its own
solution: where its objective is ortpipe's too, that finds nothing lower. It writes docs/reference/estimators.md.
"""

import argparse
import collections
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
from scipy.optimize import minimize
from sklearn.datasets import load_diabetes, load_iris, load_linnerud, make_multilabel_classification
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler, scale
from sklearn.utils import all_estimators

from ortpipe.artifact import Artifact
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import OrtpipeError
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.estimators import ESTIMATORS, reason
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.convert.sources.sklearn_walk import check_transformer
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty

FLOAT64 = ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), dtype="float64")
MEMBERS = {
    "Classifier": [("a", LogisticRegression()), ("b", LogisticRegression(C=0.1))],
    "Regressor": [("a", Ridge()), ("b", Ridge(0.1))],
}
SETTINGS: dict[str, dict[str, Any]] = {  # where the defaults do not fit, or have no gradient
    "VotingClassifier": {"voting": "soft"},
    "BaggingClassifier": {"estimator": LogisticRegression()},
    "BaggingRegressor": {"estimator": Ridge()},
    "GridSearchCV": {"param_grid": {"alpha": [1.0, 2.0]}},
    "HalvingGridSearchCV": {"param_grid": {"alpha": [1.0, 2.0]}},
    "RandomizedSearchCV": {"param_distributions": {"alpha": [1.0, 2.0]}, "n_iter": 2},
    "HalvingRandomSearchCV": {"param_distributions": {"alpha": [1.0, 2.0]}},
    "Pipeline": {"steps": [("ridge", Ridge())]},
    "RANSACRegressor": {"min_samples": 0.5},
    "SelfTrainingClassifier": {"estimator": LogisticRegression()},
    "ColumnTransformer": {"transformers": [("all", StandardScaler(), [0])]},
    "FeatureUnion": {"transformer_list": [("all", StandardScaler())]},
    "SparseCoder": {"dictionary": np.eye(2)},
}
STRENGTHS = """\
scikit-learn's networks divide alpha by the rows of a batch (`sgd` and `adam`) or by all rows (`lbfgs`). `penalty=auto`
does the same with the estimator's own batch size, so `train.batch_size` does not change the objective. With the same
batches, training follows scikit-learn's steps. A smaller last batch counts in the mean over the batches of an epoch.
Class weights of an estimator are part of its loss, whichever loss you choose.
"""
STEP = 1e-3  # of its loss: more than this below an estimator's solution is not its objective


class Row(NamedTuple):
    """What became of an estimator."""

    path: str
    outcome: str  # converted, step, not supported
    told: str


def samples() -> Iterator[tuple[np.ndarray, Any]]:
    """Yield rows that an estimator may be made for: values, classes, several values, labels, categories."""
    x, y = load_diabetes(return_X_y=True)
    yield x[:80] * 20, y[:80] / 50
    x, y = load_iris(return_X_y=True)
    yield scale(x)[::2], (y[::2] == 1).astype(int)
    x, y = load_linnerud(return_X_y=True)
    yield scale(x), scale(y)
    x, y = make_multilabel_classification(60, 5, n_classes=3, random_state=0)
    yield x, y
    x, y = load_iris(return_X_y=True)
    yield np.floor(x), y


def made(name: str, cls: type) -> Any:
    """Return an estimator with the settings that it needs."""
    known = inspect.signature(cls).parameters
    kind = "Classifier" if "Classifier" in name or name == "ClassifierChain" else "Regressor"
    needed: dict[str, Any] = {"random_state": 0} if "random_state" in known else {}
    if known.get("estimators") is not None:
        needed["estimators"] = MEMBERS[kind]
    elif known.get("estimator") is not None and known["estimator"].default is inspect.Parameter.empty:
        needed["estimator"] = MEMBERS[kind][0][1]
    if name == "FrozenEstimator":
        needed["estimator"] = Ridge().fit(*next(samples()))
    return cls(**{**needed, **SETTINGS.get(name, {})})


def trained(path: str, name: str, cls: type) -> Row:
    """Fit, convert and train an estimator on the first rows that it is made for."""
    error: Exception = ValueError("no rows fit it")
    for x, y in samples():
        try:
            estimator = made(name, cls).fit(x, y)
            artifact = convert(estimator, FLOAT64, data=Data(Rows({"X": x}, y)))
        except (OrtpipeError, ValueError, TypeError, AttributeError, IndexError) as found:
            error = found
            continue
        objective = artifact.facts.objective
        if not objective:
            return Row(path, "converted", "by the task: ortpipe records no objective for it")
        fall = fallen(artifact, Data(Rows({"X": x}, y)))
        loss = dict(objective["loss"])
        words = f"`{loss.pop('name')}`" + (f" of `{loss['loss']}`" if "loss" in loss else "")
        kinds = dict.fromkeys(f"`{kind}`" for one in objective["penalty"].values() for kind in one)
        words += f", penalty {' and '.join(kinds)}" if kinds else ""
        if objective["missing"]:
            return Row(path, "converted", f"{words}; not included: {objective['missing']}")
        exact = "its own objective" if fall <= STEP else "its own objective, whose minimum scikit-learn does not reach"
        return Row(path, "converted", f"{words}: {exact}")
    return Row(path, "not supported", str(error).splitlines()[0])


def fallen(artifact: Any, data: Data) -> float:
    """Return how far training from an estimator's own solution lowers its objective, of its size."""
    own = AddLossConfig(LOSSES["auto"](), reduction=artifact.facts.objective["reduction"])
    model = derive(penalty(add_loss(artifact, own), PenaltyConfig(auto=True)), DeriveConfig())
    value, solution = objective(model, data)
    before, _ = value(solution)
    found = minimize(value, solution, jac=True, method="L-BFGS-B", options={"maxiter": 300}).fun
    return float((before - found) / max(1e-9, abs(before)))


def objective(model: Artifact, data: Data) -> tuple[Callable[[np.ndarray], tuple[float, np.ndarray]], np.ndarray]:
    """Return a derived model's loss on all rows with its slope, as SciPy minimizes it, and the weights it has."""
    facts, given, session = model.facts, feeds(model.model, model.facts, data.train), Session(model.model)
    weights = [model.initializers[name] for name in facts.parameters]
    bounds = np.cumsum([array.size for array in weights])[:-1]

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        parts = [part.reshape(array.shape) for part, array in zip(np.split(flat, bounds), weights, strict=True)]
        inputs = given | dict(zip(facts.parameters, parts, strict=True))
        loss, *slopes = session.run(inputs, [facts.loss, *(facts.gradients[name] for name in facts.parameters)])
        return float(loss), np.concatenate([slope.ravel() for slope in slopes])

    return value, np.concatenate([array.ravel() for array in weights])


def path_of(name: str, cls: type) -> str:
    """Return where users import an estimator from."""
    return f"{'.'.join(cls.__module__.split('.')[:2])}.{name}"


def row_of(name: str, cls: type) -> Row:
    """Return what becomes of an estimator."""
    path = path_of(name, cls)
    if path in ESTIMATORS:
        return trained(path, name, cls)
    if hasattr(cls, "transform"):
        try:
            check_transformer(made(name, cls))
        except OrtpipeError:
            return Row(path, "not supported", reason(path) or "ortpipe cannot convert this transformer")
        return Row(path, "step", "of a Pipeline, before the trained estimator")
    return Row(path, "not supported", reason(path) or "neither a predictor of labels nor a step of a Pipeline")


def table(rows: list[Row]) -> str:
    """Return the page."""
    count = collections.Counter(row.outcome for row in rows)
    head = (
        f"Of the {len(rows)} estimators in scikit-learn {sklearn.__version__}, ortpipe converts and trains "
        f"{count['converted']}, uses {count['step']} as steps of a Pipeline, and does not\nsupport "
        f"{count['not supported']}. `python -m acceptance estimators` generates this page.\n\n"
        "`add_loss=auto penalty=auto` choose the losses and penalties in the table. *Its own objective* "
        "means that training from\nscikit-learn's solution finds no lower value.\n\n"
        f"{STRENGTHS}\n"
        "| estimator | status | loss and penalty, or reason |\n|---|---|---|\n"
    )
    return "# scikit-learn\n\n" + head + "".join(f"| {r.path} | {r.outcome} | {r.told} |\n" for r in rows)


def main(arguments: list[str]) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(prog="python -m acceptance estimators", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/reference/estimators.md"))
    output = parser.parse_args(arguments).output
    warnings.simplefilter("ignore")
    classes = dict(all_estimators())
    classes |= {path.rpartition(".")[2]: pkgutil.resolve_name(path) for path in ESTIMATORS}
    rows = [row_of(name, cls) for name, cls in sorted(classes.items())]
    output.write_text(table(sorted(rows)), encoding="utf-8")
