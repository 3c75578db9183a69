"""scikit-learn estimators as graphs of standard operators, parameters under the names scikit-learn's users know."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.errors import ConvertError, nearest
from ortpipe.graph.builder import Builder
from ortpipe.graph.origins import mark_attribute


class End(NamedTuple):
    """The end of an estimator's graph before its outputs are named."""

    task: Task
    logits: ir.Value | None  # [N, K], or [N, 1] for two classes
    prediction: ir.Value  # values [N, K], or probabilities [N, K]
    ranking: ir.Value | None = None  # what the label is the largest of, where that is not the prediction


def linear_scores(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """x · coefficient + intercept, [N, K]."""
    coefficient = estimator.coef_.toarray() if hasattr(estimator.coef_, "toarray") else estimator.coef_  # sparsify()
    weight = np.atleast_2d(coefficient).T.astype(dtype)
    steps = [["transpose"]] if np.ndim(coefficient) == 2 else [["reshape", 1, -1], ["transpose"]]
    inputs = [x, mark_attribute(op.parameter("coefficient", weight), "coef_", *steps)]
    if estimator.fit_intercept:
        bias = np.broadcast_to(np.ravel(estimator.intercept_), (weight.shape[1],)).astype(dtype)
        inputs.append(mark_attribute(op.parameter("intercept", bias), "intercept_", ["reshape", -1]))
    return op.Gemm(*inputs)


def linear_regressor(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """y = x · coefficient + intercept."""
    return End("regression", None, linear_scores(op, estimator, x, dtype))


def linear_classifier(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Two classes: p = σ(z). More: softmax(z), or one-versus-rest σ(z) scaled to sum 1."""
    scores = linear_scores(op, estimator, x, dtype)
    if len(estimator.classes_) == 2:
        return End("binary", scores, two_columns(op, op.Sigmoid(scores)))
    ranking = scores  # σ(z) of two classes may both round to 1, z does not
    name, kind = type(estimator).__name__, getattr(estimator, "multi_class", None)
    if name == "SGDClassifier" or kind == "ovr" or estimator.solver == "liblinear":
        # σ(z)ₖ / Σ σ(z) = softmax(log σ(z)), and log σ(z) = (z − |z|)/2 − log(1 + exp(−|z|)) never overflows
        size, half = op.Abs(scores), op.like(0.5, scores)
        tail = op.Log(op.Add(op.Exp(op.Neg(size)), 1))
        scores = op.Sub(op.Mul(op.Sub(scores, size), half), tail)
    return End("multiclass", scores, op.Softmax(scores, axis=-1), ranking)


def two_columns(op: Builder, p: ir.Value) -> ir.Value:
    """[1 − p, p]: the probabilities of both classes."""
    return op.Concat(op.Sub(1, p), p, axis=-1)


HIDDEN = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid", "identity": None}


def mlp(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Layers of x ← activation(x · weight + bias), then the output activation scikit-learn chose."""
    activation = HIDDEN[estimator.activation]
    last = len(estimator.coefs_) - 1
    for i, (weight, bias) in enumerate(zip(estimator.coefs_, estimator.intercepts_, strict=True)):
        w = mark_attribute(op.parameter(f"layer{i}.weight", weight.astype(dtype)), "coefs_", index=i)
        b = mark_attribute(op.parameter(f"layer{i}.bias", bias.astype(dtype)), "intercepts_", index=i)
        x = op.Gemm(x, w, b)
        if i < last and activation is not None:
            x = getattr(op, activation)(x)
    match estimator.out_activation_:
        case "identity":
            return End("regression", None, x)
        case "exp":
            return End("regression", None, op.Exp(x))
        case "softmax":
            return End("multiclass", x, op.Softmax(x, axis=-1))
        case _ if estimator._label_binarizer.y_type_.startswith("multilabel"):
            return End("multilabel", x, op.Sigmoid(x))
        case _:
            return End("binary", x, two_columns(op, op.Sigmoid(x)))


ESTIMATORS: dict[str, Callable[[Builder, Any, ir.Value, Any], End]] = {
    "sklearn.linear_model.LinearRegression": linear_regressor,
    "sklearn.linear_model.Ridge": linear_regressor,
    "sklearn.linear_model.Lasso": linear_regressor,
    "sklearn.linear_model.ElasticNet": linear_regressor,
    "sklearn.linear_model.SGDRegressor": linear_regressor,
    "sklearn.linear_model.LogisticRegression": linear_classifier,
    "sklearn.linear_model.SGDClassifier": linear_classifier,
    "sklearn.neural_network.MLPRegressor": mlp,
    "sklearn.neural_network.MLPClassifier": mlp,
}


def check_estimator(estimator: Any) -> None:
    """Refuse a final estimator that has no graph here, fitted or not."""
    check_supported(ESTIMATORS, class_path(estimator), "The estimator")
    if type(estimator).__name__ == "SGDClassifier" and estimator.loss != "log_loss":
        rule = "SGDClassifier gives probabilities only with loss='log_loss'."
        raise ConvertError(rule, got=f"loss={estimator.loss!r}", fix="Set params.loss=log_loss.")


def end_of(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Return the end of a fitted final estimator's graph, given its features."""
    return ESTIMATORS[class_path(estimator)](op, estimator, x, dtype)


def check_supported(table: Mapping[str, Any], path: str, role: str, key: str | None = None) -> None:
    """Refuse a class path, named by a setting `key`, that is not in a table."""
    if path not in table:
        rule = f"{role} must be one that ortpipe converts."
        raise ConvertError(rule, key=key, got=path, fix=nearest(path, table))


def class_path(step: Any) -> str:
    """Return the public path of a class, such as sklearn.svm.SVC."""
    return f"{'.'.join(type(step).__module__.split('.')[:2])}.{type(step).__name__}"


def plain_classes(classes: Any) -> tuple[int | str, ...]:
    """Return class labels as int or str."""
    plain = np.asarray(classes).tolist()
    for label in plain:
        if not isinstance(label, str) and not float(label).is_integer():
            rule = "Class labels are strings or whole numbers."
            raise ConvertError(rule, got=repr(label), fix="Encode the labels first.")
    return tuple(label if isinstance(label, str) else int(label) for label in plain)


def label_of(op: Builder, end: End, classes: tuple[int | str, ...] | None) -> ir.Value:
    """Return the predicted label: the class that ranks highest, or for multilabel each p > ½."""
    if classes is None:
        return op.Cast(op.Greater(end.prediction, 0.5), to=ir.DataType.INT64)
    index = op.ArgMax(end.prediction if end.ranking is None else end.ranking, axis=1, keepdims=0)
    strings = any(isinstance(label, str) for label in classes)
    return op.Gather(op.const(np.array(classes, str if strings else np.int64)), index)
