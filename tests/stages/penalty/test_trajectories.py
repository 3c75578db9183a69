"""penalty=auto of multi-layer perceptrons: training follows scikit-learn's own trajectory, the oracle, in float64."""

import warnings

import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier, MLPRegressor

from ortpipe.data.rows import Data, Rows
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

FLOAT64 = ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge"), dtype="float64")
EPOCHS, RATE = 5, 0.01
X = np.random.default_rng(0).normal(size=(240, 4))
VALUES = np.stack([X[:, 0], X[:, 1] ** 2, X[:, 2]], axis=1)
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2, len(X))
SETTINGS = {"hidden_layer_sizes": (5,), "activation": "tanh", "alpha": 20.0, "shuffle": False, "momentum": 0.0}
SETTINGS |= {"random_state": 0, "tol": 0, "n_iter_no_change": 1000, "epsilon": 1e-50}


def perceptron(own_class, labels, epochs, weight=None, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return own_class(max_iter=epochs, **{**SETTINGS, **settings}).fit(X, labels, sample_weight=weight)


def penalized(estimator, data, reduction="mean"):
    loss = AddLossConfig(LOSSES["auto"](), reduction=reduction, sample_weight=data.weighted)
    return penalty(add_loss(convert(estimator, FLOAT64, data=data), loss, data=data), PenaltyConfig(auto=True))


def largest_difference(own_class, labels, solver, *, batch, rate=RATE, reduction="mean", weight=None, **settings):
    """Train from scikit-learn's initial weights; return the largest difference to its weights."""
    settings |= {"solver": solver, "batch_size": batch}
    start = perceptron(own_class, labels, 1, weight, learning_rate_init=1e-300, **settings)
    expected = perceptron(own_class, labels, EPOCHS, weight, learning_rate_init=RATE, **settings)
    data = Data(Rows({"X": X}, labels, weight))
    optimizer = OPTIMIZERS[solver](lr=rate, **({"epsilon": 1e-50} if solver == "adam" else {}))
    rows = len(X) if batch == "auto" else batch
    config = TrainConfig(optimizer, epochs=EPOCHS, batch_size=rows, shuffle=False)
    trained = train(derive(penalized(start, data, reduction)), config, data=data)
    pairs = [(trained.tensors[f"parameter/layer{i}.weight"], expected.coefs_[i]) for i in range(2)]
    return max(np.abs(ours - own).max() for ours, own in pairs)


@pytest.mark.parametrize(
    ("own_class", "labels", "solver", "settings"),
    [
        (MLPClassifier, (X[:, 0] > 0).astype(int), "adam", {"batch": 60}),
        (MLPClassifier, (X[:, 0] > 0) + (X[:, 1] > 0.5).astype(int), "sgd", {"batch": 240, "weight": WEIGHTS}),
        (MLPClassifier, (X[:, :2] > 0).astype(int), "sgd", {"batch": 60, "reduction": "sum", "rate": RATE / 60}),
        # ½ of the squared error, and the gradient of the sum over outputs, not of their mean
        (MLPRegressor, VALUES, "sgd", {"batch": 60, "rate": RATE / 2}),
        (MLPRegressor, np.exp(VALUES / 3), "adam", {"batch": 60, "loss": "poisson"}),
    ],
    ids=["two classes", "weights", "sum", "values", "poisson"],
)
def test_training_follows_scikit_learn(own_class, labels, solver, settings):
    if "weight" in settings:
        settings = {**settings, "rate": RATE / WEIGHTS.mean()}  # scikit-learn divides by the sum of the weights
    assert largest_difference(own_class, labels, solver, **settings) < 1e-13


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"solver": "adam", "batch_size": "auto"}, (1 / 200 + 1 / 40) / 2),
        ({"solver": "sgd", "batch_size": 100}, (2 / 100 + 1 / 40) / 3),
        ({"solver": "adam", "batch_size": 60, "early_stopping": True, "validation_fraction": 0.5}, 1 / 60),
        ({"solver": "lbfgs"}, 1 / 240),
    ],
    ids=["auto", "part of a batch", "held out", "lbfgs"],
)
def test_alpha_is_divided_by_the_rows_of_scikit_learns_batches(settings, expected):
    data = Data(Rows({"X": X}, VALUES[:, 0]))
    model = penalized(perceptron(MLPRegressor, VALUES[:, 0], 2, **settings), data)
    weights = [model.initializers[f"layer{i}.weight"] for i in range(2)]
    [prediction], [loss] = (
        Session(model.model).run({"X": X, "label": VALUES[:, :1]}, [name])
        for name in (model.facts.prediction, model.facts.loss)
    )
    # twice ½·(squared error + α·‖W‖²·expected)
    added = loss - np.mean((prediction - VALUES[:, :1]) ** 2)
    assert added == pytest.approx(20.0 * expected * sum((w**2).sum() for w in weights), rel=1e-9)


def test_batches_of_a_sum_add_up_to_the_sum_over_all_rows():
    labels = (X[:, :1] > 0).astype(np.int64)
    model = penalized(perceptron(MLPClassifier, labels[:, 0], 2), Data(Rows({"X": X}, labels)), "sum")
    session, name = Session(model.model), model.facts.label
    cuts = [slice(None), slice(0, 70), slice(70, 140), slice(140, None)]
    whole, *parts = (session.run({"X": X[cut], name: labels[cut]}, [model.facts.loss])[0] for cut in cuts)
    assert sum(parts) == pytest.approx(whole, rel=1e-12)
