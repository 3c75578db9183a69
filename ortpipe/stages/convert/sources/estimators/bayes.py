"""Generative classifiers: their logits are log P(class) + log P(x | class)."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.objective import averaged
from ortpipe.stages.convert.sources.estimators.end import End, log_sigmoid, parameter, softmax_end

COUNTED = "its counts, or distribution per class (it minimizes no loss of the labels)"


def joint(op: Builder, estimator: Any, logits: ir.Value) -> End:
    """softmax(log P(class, x)), trained by the log loss or cross-entropy of labels."""
    objective = averaged("log" if len(estimator.classes_) == 2 else "cross_entropy", missing=COUNTED)
    return softmax_end(op, logits, estimator.classes_, objective)._replace(ranking=logits)


def gaussian(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Log π − ½·Σ log(2π·v) − ½·Σ (x − mean)²/v, of the logarithms of priors π and variances v."""
    mean = parameter(op, estimator, "mean", "theta_", dtype=dtype)  # [classes, K]
    variance = parameter(op, estimator, "log_variance", "var_", ["log"], dtype=dtype)
    prior = parameter(op, estimator, "log_prior", "class_prior_", ["log"], dtype=dtype)
    difference: Any = op.Unsqueeze(x, [1]) - mean  # [N, classes, K]
    terms = difference * difference * op.Exp(-variance) + (variance + math.log(2 * math.pi))
    return joint(op, estimator, prior - op.ReduceSum(terms, [-1], keepdims=0) * 0.5)


def multinomial(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """x · log P(feature | class) + log P(class)."""
    weight = parameter(op, estimator, "feature_log_prob", "feature_log_prob_", ["transpose"], dtype=dtype)
    if type(estimator).__name__ == "ComplementNB" and len(estimator.classes_) > 1:
        return joint(op, estimator, op.MatMul(x, weight))
    prior = parameter(op, estimator, "class_log_prior", "class_log_prior_", dtype=dtype)
    return joint(op, estimator, op.Gemm(x, weight, prior))


def bernoulli(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Σ x·log p + (1 − x)·log(1 − p) + log P(class), of x binarized at `binarize`."""
    if estimator.binarize is not None:
        x = op.cast(op.Greater(x, float(estimator.binarize)), x)
    # log odds are unbounded, log p is not
    odds = parameter(op, estimator, "feature_logit", "feature_log_prob_", ["log_odds"], ["transpose"], dtype=dtype)
    prior = parameter(op, estimator, "class_log_prior", "class_log_prior_", dtype=dtype)
    all_zero_log = op.ReduceSum(log_sigmoid(op, -odds), [0], keepdims=0)  # Σ log(1 − p)
    return joint(op, estimator, op.Gemm(x, odds, prior + all_zero_log))


def categorical(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Σ log P(category | class) + log P(class); a category is the number in x."""
    codes = op.Cast(x, to=ir.DataType.INT64)
    logits = parameter(op, estimator, "class_log_prior", "class_log_prior_", dtype=dtype)
    for i in range(len(estimator.feature_log_prob_)):
        name = f"feature{i}.log_prob"
        table = parameter(op, estimator, name, "feature_log_prob_", ["transpose"], dtype=dtype, index=i)
        column = op.Gather(codes, op.const(np.array(i)), axis=1)  # [N]
        logits = op.Gather(table, column) + logits
    return joint(op, estimator, logits)


def quadratic(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """−½·(‖(x − mean) · R · S^−½‖² + Σ log S) + log π, of each class's rotation R and scaling S."""
    means = parameter(op, estimator, "mean", "means_", dtype=dtype)
    prior = parameter(op, estimator, "log_prior", "priors_", ["log"], dtype=dtype)
    columns = []
    for i in range(len(estimator.classes_)):
        rotation = parameter(op, estimator, f"class{i}.rotation", "rotations_", dtype=dtype, index=i)
        scaling = parameter(op, estimator, f"class{i}.log_scaling", "scalings_", ["log"], dtype=dtype, index=i)
        difference: Any = op.MatMul(x - op.Gather(means, op.const(np.array(i)), axis=0), rotation)
        columns.append(op.ReduceSum(difference * difference * op.Exp(-scaling) + scaling, [-1], keepdims=1) * -0.5)
    return joint(op, estimator, op.Concat(*columns, axis=-1) + prior)


def nearest_centroid(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """−‖(x − centroid)/s‖² + 2·log π, of each feature's deviation s within classes; the label is the nearest one's."""
    if estimator.metric != "euclidean":
        rule, fix = "A centroid's distance needs a gradient.", "Set metric='euclidean'."
        raise ConvertError(rule, got=f"metric={estimator.metric!r}, which gives no scores", fix=fix)
    centroids = parameter(op, estimator, "centroids", "centroids_", dtype=dtype)
    deviation, prior = estimator.within_class_std_dev_, np.asarray(estimator.class_prior_)
    difference = op.Unsqueeze(x, [1]) - centroids
    scaled = difference / op.like(np.where(deviation == 0, 1, deviation), x)
    logits = op.like(2 * np.log(prior), x) - op.ReduceSum(scaled * scaled, [-1], keepdims=0)
    end = joint(op, estimator, logits)
    if np.isclose(prior, 1 / len(prior)).all():  # predict then compares distances without priors
        return end._replace(ranking=-op.ReduceSum(difference * difference, [-1], keepdims=0))
    return end
