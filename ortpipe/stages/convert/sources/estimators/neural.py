"""Multi-layer perceptrons."""

from typing import Any

import onnx_ir as ir

from ortpipe.graph.builder import Builder
from ortpipe.stages.convert.sources.estimators.attributes import parameter
from ortpipe.stages.convert.sources.estimators.end import End, sigmoid_end, softmax_end
from ortpipe.stages.convert.sources.estimators.objective import Objective, summed

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
        case "identity":  # ½ of the mean over rows and columns
            return End("regression", None, x, objective=_objective(estimator, "l2", 2.0 * width))
        case "exp":
            loss = {"name": "poisson", "link": "identity"}
            return End("regression", None, op.Exp(x), objective=_objective(estimator, loss, 1.0 * width))
        case "softmax":
            return softmax_end(op, x, range(width), _objective(estimator, "cross_entropy"))
        case _ if estimator._label_binarizer.y_type_.startswith("multilabel"):
            return End("multilabel", x, op.Sigmoid(x), objective=_objective(estimator, "log"))
        case _:
            return sigmoid_end(op, x, _objective(estimator, "log"))


def _objective(estimator: Any, loss: Any, factor: float = 1.0) -> Objective:
    """1/N·(Σ l + ½·α·Σ ‖weight‖²) with the batch's N; here times N and a factor."""
    strength = factor * float(estimator.alpha) / 2
    penalty = {f"layer{i}.weight": {"l2": strength} for i in range(len(estimator.coefs_))}
    return summed(loss, penalty)
