"""Compositions of transformers in a graph: one after another, side by side, or each on its own columns."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ortpipe.errors import ConvertError
from ortpipe.stages.convert.sources.estimators import class_path
from ortpipe.stages.convert.sources.sklearn_columns import Columns, Flow
from ortpipe.stages.convert.sources.sklearn_encoders import ENCODERS
from ortpipe.stages.convert.sources.sklearn_onnx import by_skl2onnx, has_converter
from ortpipe.stages.convert.sources.sklearn_transformers import TRANSFORMERS, check_settings

PIPELINE, COLUMN_TRANSFORMER = "sklearn.pipeline.Pipeline", "sklearn.compose.ColumnTransformer"
FEATURE_UNION = "sklearn.pipeline.FeatureUnion"
UNSUPPORTED = {  # transformers that need their training rows, trees or a solver when they predict
    "DictVectorizer": "its rows are dictionaries: give their entries as columns of a table",
    "KNNImputer": "it looks for neighbours among the training rows: take SimpleImputer",
    "IterativeImputer": "it fits a model per column and turn: take SimpleImputer",
    "KNeighborsTransformer": "it looks for neighbours among the training rows",
    "RadiusNeighborsTransformer": "it looks for neighbours among the training rows",
    "Isomap": "it looks for neighbours among the training rows: take PCA or KernelPCA",
    "LocallyLinearEmbedding": "it looks for neighbours among the training rows: take PCA or KernelPCA",
    "RandomTreesEmbedding": "it is made of trees: take KBinsDiscretizer or SplineTransformer",
    "NMF": "it solves a problem for each row: take PCA or TruncatedSVD",
    "MiniBatchNMF": "it solves a problem for each row: take PCA or TruncatedSVD",
    "LatentDirichletAllocation": "it solves a problem for each row: take TruncatedSVD",
    "DictionaryLearning": "it solves a problem for each row: take SparsePCA",
    "MiniBatchDictionaryLearning": "it solves a problem for each row: take MiniBatchSparsePCA",
    "SparseCoder": "it solves a problem for each row: take SparsePCA",
}


def is_idle(step: Any) -> bool:
    """Return whether a step of a Pipeline does nothing."""
    return step is None or isinstance(step, str)  # 'passthrough'


def parts_of(step: Any) -> Iterator[Any]:
    """Yield the transformers in a step, fitted or not; the step itself if it is no composition."""
    match class_path(step):
        case "sklearn.pipeline.Pipeline":
            inner = [part for _, part in step.steps]
        case "sklearn.compose.ColumnTransformer":
            inner = [part for _, part, _ in getattr(step, "transformers_", step.transformers)] + [step.remainder]
        case "sklearn.pipeline.FeatureUnion":
            inner = [part for _, part in step.transformer_list]
        case _:
            yield step
            return
    for part in inner:
        if not is_idle(part):
            yield from parts_of(part)


def check_transformer(step: Any) -> None:
    """Reject a transformer, fitted or not, that has no graph or contains one without."""
    for part in parts_of(step):
        path, name = class_path(part), type(part).__name__
        if path.startswith("sklearn.") and name in UNSUPPORTED:
            rule = "A step before the last must be one that ortpipe converts."
            raise ConvertError(rule, got=f"{path}: {UNSUPPORTED[name]}", fix="Take another step, or none.")
        if path in TRANSFORMERS:
            check_settings(part)
        elif (
            path not in TRANSFORMERS
            and path not in ENCODERS
            and not hasattr(part, "get_support")
            and not has_converter(part)
        ):
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
        value = TRANSFORMERS[path](flow.op, step, columns.floats(), flow.dtype.name)
        return Columns.of(flow, value, _width(step, columns))
    if hasattr(step, "get_support"):  # feature selection
        return columns.pick(np.flatnonzero(step.get_support()).tolist())
    return Columns.of(flow, by_skl2onnx(flow, step, columns), _width(step, columns))


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
    outputs = []
    for name, part, _ in step.transformers_:
        places = _places(step, name, columns.width)
        if part is None or part == "drop" or not len(places):
            continue
        output = transform(flow, part, columns.pick(places))
        outputs.append(_apply_weight(flow, output, (step.transformer_weights or {}).get(name)))
    return Columns.side_by_side(flow, outputs)


def _places(step: Any, name: str, width: int) -> list[int]:
    return np.arange(width)[step._transformer_to_input_indices[name]].tolist()


def _feature_union(flow: Flow, step: Any, columns: Columns) -> Columns:
    outputs, weights = [], step.transformer_weights or {}
    for name, part in step.transformer_list:
        if not (isinstance(part, str) and part == "drop"):
            outputs.append(_apply_weight(flow, transform(flow, part, columns), weights.get(name)))
    return Columns.side_by_side(flow, outputs)


def _apply_weight(flow: Flow, columns: Columns, weight: float | None) -> Columns:
    if weight is None:
        return columns
    return Columns.of(flow, flow.op.Mul(columns.floats(), float(weight)), columns.width)


COMPOSITIONS: Mapping[str, Callable[[Flow, Any, Columns], Columns]] = {
    PIPELINE: _pipeline,
    COLUMN_TRANSFORMER: _column_transformer,
    FEATURE_UNION: _feature_union,
}
