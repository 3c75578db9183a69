"""Transformers in a graph: one after another, side by side, each on its own columns; inverted, of a target."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError, ModelError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import within
from ortpipe.graph.importing.lower import inline, prepared
from ortpipe.stages.convert.sources.estimators import End, class_path, end_of
from ortpipe.stages.convert.sources.outputs import ML, ML_VERSION
from ortpipe.stages.convert.sources.sklearn_columns import ENCODERS, Columns, Flow
from ortpipe.stages.convert.sources.sklearn_transformers import (
    TRANSFORMERS,
    center_and_scale,
    check_settings,
    numpy_function,
)

PIPELINE, COLUMN_TRANSFORMER = "sklearn.pipeline.Pipeline", "sklearn.compose.ColumnTransformer"
FEATURE_UNION = "sklearn.pipeline.FeatureUnion"
WORDS = ("CountVectorizer", "TfidfVectorizer", "HashingVectorizer")  # which read one column of texts
LOCALE = "C.UTF-8"  # exists without language packs, unlike skl2onnx's default en_US.UTF-8
UNSUPPORTED = {  # why a transformer has no graph → classes: they need training rows, trees or a solver to predict
    "its rows are dictionaries: give their entries as columns of a table": "DictVectorizer",
    "it looks for neighbours among the training rows": "KNeighborsTransformer RadiusNeighborsTransformer",
    "it looks for neighbours among the training rows: take SimpleImputer": "KNNImputer",
    "it looks for neighbours among the training rows: take PCA or KernelPCA": "Isomap LocallyLinearEmbedding",
    "it fits a model per column and turn: take SimpleImputer": "IterativeImputer",
    "it is made of trees: take KBinsDiscretizer or SplineTransformer": "RandomTreesEmbedding",
    "it solves a problem for each row: take PCA or TruncatedSVD": "NMF MiniBatchNMF",
    "it solves a problem for each row: take TruncatedSVD": "LatentDirichletAllocation",
    "it solves a problem for each row: take SparsePCA": "DictionaryLearning SparseCoder",
    "it solves a problem for each row: take MiniBatchSparsePCA": "MiniBatchDictionaryLearning",
}


def is_idle(step: Any) -> bool:
    """Return whether a step of a Pipeline does nothing."""
    return step is None or isinstance(step, str)  # 'passthrough'


def parts_of(step: Any) -> Iterator[Any]:
    """Yield the transformers in a step, fitted or not; the step itself if it is no composition."""
    path = class_path(step)
    if path not in COMPOSITIONS:
        yield step
        return
    if path == COLUMN_TRANSFORMER:
        inner = [part for _, part, _ in getattr(step, "transformers_", step.transformers)] + [step.remainder]
    else:
        inner = [part for _, part in (step.steps if path == PIPELINE else step.transformer_list)]
    for part in inner:
        if not is_idle(part):
            yield from parts_of(part)


def check_transformer(step: Any) -> None:
    """Reject a transformer, fitted or not, that has no graph or contains one without."""
    for part in parts_of(step):
        path, name = class_path(part), type(part).__name__
        why = next((why for why, names in UNSUPPORTED.items() if name in names.split()), None)
        if path.startswith("sklearn.") and why is not None:
            rule = "A step before the last must be one that ortpipe converts."
            raise ConvertError(rule, got=f"{path}: {why}", fix="Take another step, or none.")
        if path in TRANSFORMERS:
            check_settings(part)
        elif path not in ENCODERS and not hasattr(part, "get_support") and not has_converter(part):
            raise ConvertError(
                "A step before the last must be one that ortpipe or skl2onnx converts.",
                got=path,
                fix="Take another step, make its columns in the data, or tell skl2onnx how "
                "(skl2onnx.update_registered_converter, in the module that makes the Pipeline).",
            )


def transform(flow: Flow, step: Any, columns: Columns) -> Columns:
    """Apply a fitted transformer to columns."""
    if is_idle(step):
        return columns
    path = class_path(step)
    if path in COMPOSITIONS:
        return COMPOSITIONS[path](flow, step, columns)
    if path in ENCODERS:
        return ENCODERS[path](flow, step, columns)
    if path in TRANSFORMERS:
        value = TRANSFORMERS[path](flow.op, step, columns.floats())
        return Columns.of(flow, value, _width(step, columns))
    if hasattr(step, "get_support"):  # feature selection
        return columns.pick(np.flatnonzero(step.get_support()).tolist())
    return Columns.of(flow, by_skl2onnx(flow, step, columns), _width(step, columns))


def has_converter(step: Any) -> bool:
    """Return whether skl2onnx has a converter for a transformer's class, its own or a registered one."""
    import skl2onnx

    try:
        skl2onnx.get_model_alias(type(step))
    except RuntimeError:
        return False
    return True


def by_skl2onnx(flow: Flow, step: Any, columns: Columns) -> ir.Value:
    """Apply skl2onnx's graph of a transformer to columns, inlined, with all numbers as constants."""
    import skl2onnx

    data_types = skl2onnx.common.data_types
    op, options = flow.op, None
    if type(step).__name__ in WORDS:
        x, input_type = columns.words(), data_types.StringTensorType([None, 1])
        options = {type(step): {"locale": LOCALE}}
    else:
        x = columns.floats()
        float_type = data_types.DoubleTensorType if flow.dtype == np.float64 else data_types.FloatTensorType
        input_type = float_type([None, columns.width])
    target = {"": op.graph.opset_imports[""], ML: ML_VERSION}
    try:
        model = skl2onnx.to_onnx(step, initial_types=[("X", input_type)], target_opset=target, options=options)
        inner = prepared(model, op)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, KeyError, ModelError) as error:
        raise ConvertError(
            "A step that ortpipe does not convert itself must be one that skl2onnx can convert.",
            got=f"{type(step).__name__}: {str(error).strip().splitlines()[0]}",
            fix="Take another step, or make its columns in the data.",
        ) from error
    [output] = inner.graph.outputs
    inline(op, inner, {"X": x}, type(step).__name__)
    dtype = ir.DataType.from_numpy(flow.dtype)
    return output if output.dtype == dtype else op.Cast(output, to=dtype)


def _width(step: Any, columns: Columns) -> int | None:
    if type(step).__name__ == "FunctionTransformer":
        return columns.width
    try:
        return len(step.get_feature_names_out())
    except (AttributeError, ValueError):
        return None


def _pipeline(flow: Flow, pipeline: Any, columns: Columns) -> Columns:
    for _, step in pipeline.steps:
        columns = transform(flow, step, columns)
    return columns


def _column_transformer(flow: Flow, step: Any, columns: Columns) -> Columns:
    fitted = [(name, part, _places(step, chosen, columns.width)) for name, part, chosen in step.transformers_]
    used = [entry for entry in fitted if entry[2] and entry[1] is not None and not _is_dropped(entry[1])]
    return _side_by_side(flow, step, [(name, part, columns.pick(places)) for name, part, places in used])


def _places(step: Any, chosen: Any, width: int) -> list[int]:
    """Return the positions of a ColumnTransformer's columns: names, positions, a mask, or a slice of these."""
    names = list(getattr(step, "feature_names_in_", ()))
    if isinstance(chosen, slice):
        first = names.index(chosen.start) if isinstance(chosen.start, str) else chosen.start
        last = names.index(chosen.stop) + 1 if isinstance(chosen.stop, str) else chosen.stop
        return list(range(width))[slice(first, last, chosen.step)]
    keys = [names.index(key) if isinstance(key, str) else key for key in np.atleast_1d(chosen).tolist()]
    return [*map(int, np.arange(width)[keys])] if keys else []


def _feature_union(flow: Flow, step: Any, columns: Columns) -> Columns:
    parts = [(name, part, columns) for name, part in step.transformer_list if not _is_dropped(part)]
    return _side_by_side(flow, step, parts)


def _side_by_side(flow: Flow, step: Any, parts: Sequence[tuple[str, Any, Columns]]) -> Columns:
    """Return the outputs of named parts, each of its columns and times its weight."""
    outputs, weights = [], step.transformer_weights or {}
    for name, part, columns in parts:
        output = transform(flow, part, columns)
        if (weight := weights.get(name)) is not None:
            output = Columns.of(flow, flow.op.Mul(output.floats(), float(weight)), output.width)
        outputs.append(output)
    return Columns.side_by_side(flow, outputs)


def _is_dropped(part: Any) -> bool:
    return isinstance(part, str) and part == "drop"


COMPOSITIONS: Mapping[str, Callable[[Flow, Any, Columns], Columns]] = {
    PIPELINE: _pipeline,
    COLUMN_TRANSFORMER: _column_transformer,
    FEATURE_UNION: _feature_union,
}


def transformed_target(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """The inner regressor's prediction, back on the target's own scale: what losses compare with labels."""
    with within(op.graph, "regressor_"):
        end = end_of(op, estimator.regressor_, x, dtype)
    value = _inverse(op, estimator.transformer_, end.prediction)
    note = (
        "the loss is of the target on its own scale; scikit-learn fitted the regressor on it as "
        f"{type(estimator.transformer_).__name__} gives it"
    )
    return End("regression", None, value, notes=(*end.notes, note), rounding=end.rounding)


def _inverse(op: Builder, step: Any, y: ir.Value) -> ir.Value:
    path = class_path(step)
    if path == PIPELINE:
        for _, part in reversed(step.steps):
            y = y if is_idle(part) else _inverse(op, part, y)
        return y
    if path not in INVERSES:
        raise ConvertError(
            "The transformer of a target must be one whose inverse ortpipe supports.",
            got=path,
            fix=f"Take one of {', '.join(name.rpartition('.')[2] for name in INVERSES)}.",
        )
    return INVERSES[path](op, step, y)


def _scaler_inverse(op: Builder, step: Any, y: ir.Value) -> ir.Value:
    """y · scale + center, each part if the scaler has that setting."""
    center, scale = center_and_scale(step)
    y = y if scale is None else y * op.like(scale, y)
    return y if center is None else y + op.like(center, y)


def _min_max_inverse(op: Builder, step: Any, y: ir.Value) -> ir.Value:
    """(y − min) / scale."""
    return y * op.like(1 / step.scale_, y) + op.like(-step.min_ / step.scale_, y)


def _function_inverse(op: Builder, step: Any, y: ir.Value) -> ir.Value:
    """The inverse function, one of NumPy's."""
    return y if step.inverse_func is None else numpy_function(step.inverse_func, step.inv_kw_args)(op, y)


def _power_inverse(op: Builder, step: Any, y: ir.Value) -> ir.Value:
    """Box-Cox (y·λ + 1)^(1/λ), or Yeo-Johnson: for y ≥ 0 that − 1, for y < 0 1 − that of −y with 2 − λ."""
    if step.standardize:
        y = _scaler_inverse(op, vars(step)["_scaler"], y)
    if step.method == "box-cox":
        return op.Exp(_log_root(op, y, step.lambdas_))
    positive = op.Exp(_log_root(op, op.Relu(y), step.lambdas_)) - 1.0
    return positive - (op.Exp(_log_root(op, op.Relu(-y), 2 - step.lambdas_)) - 1.0)


def _log_root(op: Builder, y: ir.Value, lambdas: np.ndarray) -> ir.Value:
    """log(y·λ + 1)/λ; y where λ is 0."""
    is_zero = np.abs(lambdas) < np.spacing(1.0)
    base = y * op.like(np.where(is_zero, 0, lambdas), y) + 1.0
    root = op.Log(base) / op.like(np.where(is_zero, 1, lambdas), y)
    return op.Where(op.const(is_zero), y, root) if is_zero.any() else root


INVERSES: dict[str, Callable[[Builder, Any, ir.Value], ir.Value]] = {
    **{f"sklearn.preprocessing.{name}Scaler": _scaler_inverse for name in ("Standard", "MaxAbs", "Robust")},
    "sklearn.preprocessing.MinMaxScaler": _min_max_inverse,
    "sklearn.preprocessing.FunctionTransformer": _function_inverse,
    "sklearn.preprocessing.PowerTransformer": _power_inverse,
}
