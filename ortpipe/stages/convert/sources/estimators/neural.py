"""Multi-layer perceptrons."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.objective import Objective, averaged, summed
from ortpipe.stages.convert.sources.estimators.end import End, parameter, sigmoid_end, softmax_end

HIDDEN = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid", "identity": None}


def mlp(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Layers of x ← activation(x · weight + bias), then the output activation scikit-learn chose."""
    activation = HIDDEN[estimator.activation]
    last = len(estimator.coefs_) - 1
    for i in range(last + 1):
        w = parameter(op, estimator, f"layer{i}.weight", "coefs_", dtype=dtype, index=i)
        b = parameter(op, estimator, f"layer{i}.bias", "intercepts_", dtype=dtype, index=i)
        x = op.Gemm(x, w, b)
        if i < last and activation is not None:
            x = getattr(op, activation)(x)
    width = estimator.coefs_[-1].shape[1]
    match estimator.out_activation_:
        case "identity":
            return End("regression", None, x, objective=_objective(estimator, "l2", 2.0))
        case "exp":
            loss = {"name": "poisson", "link": "identity"}
            return End("regression", None, op.Exp(x), objective=_objective(estimator, loss))
        case "softmax":
            return softmax_end(op, x, range(width), _objective(estimator, "cross_entropy"))
        case _ if width > 1:  # a logistic output of several labels
            return End("multilabel", x, op.Sigmoid(x), objective=_objective(estimator, "log"))
        case _:
            return sigmoid_end(op, x, _objective(estimator, "log"))


def _objective(estimator: Any, loss: Any, factor: float = 1.0) -> Objective:
    """(Σ l + ½·α·Σ ‖weight‖²) / n, times a factor: n is the rows of a batch for sgd and adam, all rows for lbfgs.

    The batches are the estimator's own: its objective does not change with train.batch_size. A last, smaller batch
    counts in the mean of 1/n over the batches of an epoch. Several outputs count as their sum: scikit-learn reports the
    mean squared error over them, but follows the gradient of the sum.
    """
    strength = factor * float(estimator.alpha) / 2
    names = [f"layer{i}.weight" for i in range(len(estimator.coefs_))]
    if estimator.solver == "lbfgs":
        return summed(loss, {name: {"l2": strength} for name in names})
    rows = max(1, round(estimator.t_ / max(1, estimator.n_iter_)))  # those of an epoch
    batch = min(200 if estimator.batch_size == "auto" else estimator.batch_size, rows)
    strength *= np.mean([1 / min(batch, rows - first) for first in range(0, rows, batch)])
    return averaged(loss, {name: {"l2": strength} for name in names})
