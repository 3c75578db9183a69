"""A fitted scikit-learn estimator or Pipeline as one graph, and rows as its input: an array, or named columns."""

import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.errors import ConvertError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import marked, within
from ortpipe.graph.core.types import IR_VERSION, OPSET
from ortpipe.stages.convert.forward import Meaning
from ortpipe.stages.convert.imported import Imported
from ortpipe.stages.convert.objective import Objective
from ortpipe.stages.convert.sources.estimators import End, check_supported, class_path, end_of, source_values
from ortpipe.stages.convert.sources.outputs import plain_classes, write_class_outputs
from ortpipe.stages.convert.sources.sklearn_columns import ENCODERS, Columns, Flow, frame
from ortpipe.stages.convert.sources.sklearn_walk import (
    COLUMN_TRANSFORMER,
    COMPOSITIONS,
    PIPELINE,
    check_transformer,
    is_idle,
    parts_of,
    transform,
)

NO_CLASS_WEIGHTS = "the estimator's class weights are not in the loss: its own objective is not known"
EXACT = {"StandardScaler", "MinMaxScaler"}  # which treat a number and its float32 value alike
EMPTY: Mapping[str, str | None] = {}


@dataclass(frozen=True)
class InputForm:
    """The inputs of an estimator's graph.

    Attributes:
        table: names of a table's columns, each an input [N]; None: a single input X [N, K] holds all columns.
        names: of the columns of X, if the estimator reads columns by name.
        truth: columns of the table that hold truth values, as the words true and false.
    """

    table: tuple[str, ...] | None
    names: tuple[str, ...] = ()
    truth: frozenset[str] = frozenset()

    def as_estimator_input(
        self, inputs: Mapping[str, np.ndarray], empty: Mapping[str, str | None] = EMPTY, truth: Set[str] | None = None
    ) -> Any:
        """Return rows as the estimator takes them.

        Empty text becomes nan, or the value in `empty`; the words true and false of the columns `truth`, by default all
        columns of truth values, become booleans, or 1 and 0 beside missing values.
        """
        truth = self.truth if truth is None else truth
        if self.table is None:
            [array] = inputs.values()
            array = array.reshape(len(array), -1)
            if not self.names:
                return array
            columns = dict(zip(self.names, array.T, strict=True))
        else:
            columns = {
                name: _column(inputs[name], empty.get(name, np.nan), truth=name in truth)
                for name in self.table
                if name in inputs
            }
        return frame(columns)


def _column(array: np.ndarray, empty: Any, *, truth: bool) -> np.ndarray:
    words = array.reshape(-1)
    if words.dtype.kind not in "USO":
        return words
    missing, is_true = words == "", words == "true"
    if truth:
        return np.where(missing, np.nan, is_true) if missing.any() else is_true
    return np.where(missing, empty, words.astype(object))


def form_for(estimator: Any, rows: Rows | None) -> InputForm:
    """Return the form of input that fits an estimator, and the rows if there are any."""
    fitted_names = tuple(map(str, getattr(estimator, "feature_names_in_", ())))
    if rows is None:
        return InputForm(fitted_names) if fitted_names and by_name(estimator) else InputForm(None)
    inputs = rows.inputs
    all_columns = all(array.ndim == 1 or array.shape[1:] == (1,) for array in inputs.values())
    has_text = any(array.dtype.kind in "USO" for array in inputs.values())
    if len(inputs) == 1 and not has_text and not rows.kept:
        names = next(iter(rows.columns.values()), ())
        expected_names = fitted_names or (names if by_name(estimator) else ())
        width = np.prod(next(iter(inputs.values())).shape[1:])
        return InputForm(None, expected_names if len(expected_names) == width else ())
    if not all_columns:
        rule = "scikit-learn estimators take one input, or the columns of a table."
        raise ConvertError(rule, got=sorted(inputs), fix="Give one array of features, or arrays of one dimension each.")
    truth = frozenset(name for name, column in rows.kept.items() if column.of == "truth")
    return InputForm(fitted_names or tuple(inputs), truth=truth)


def by_name(estimator: Any) -> bool:
    """Return whether an estimator selects columns by name, or reads words: it then needs a table's raw columns."""
    path = class_path(estimator)
    if path == COLUMN_TRANSFORMER:
        return True
    if path in COMPOSITIONS:
        steps = estimator.steps if hasattr(estimator, "steps") else estimator.transformer_list
        return any(by_name(step) for _, step in steps if not is_idle(step))
    names = ("best_estimator_", "estimator", "regressor")
    inner = next((getattr(estimator, name) for name in names if hasattr(estimator, name)), None)
    return path in ENCODERS or (hasattr(inner, "get_params") and by_name(inner))


def steps_of(estimator: Any) -> tuple[list[Any], Any, tuple[str, ...]]:
    """Return the transformers of an estimator or Pipeline, the final estimator, and its step's name."""
    if class_path(estimator) != PIPELINE:
        return [], estimator, ()
    steps = [(name, step) for name, step in estimator.steps if not is_idle(step)]
    if not steps:
        raise ConvertError("A Pipeline must end in an estimator.", got="no step", fix="Add one as its last step.")
    *before, (name, last) = steps
    return [step for _, step in before], last, (name,)


def check_supported_estimator(estimator: Any) -> None:
    """Reject an estimator or Pipeline, fitted or not, that has no graph, or a step without one."""
    before, last, _ = steps_of(estimator)
    for step in before:
        check_transformer(step)
    if class_path(last) == PIPELINE:
        check_supported_estimator(last)
    else:
        check_supported(class_path(last))


def predictor(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """Write the graph of a fitted estimator or Pipeline behind its features, a value or columns; return its end."""
    before, last, name = steps_of(estimator)
    if not name:
        return end_of(op, estimator, x, dtype)
    columns = x if isinstance(x, Columns) else Columns.of(Flow(op, np.dtype(dtype)), x, query.width(x))
    for step in before:
        columns = transform(columns.flow, step, columns)
    with within(op.graph, *name):
        return predictor(op, last, columns, dtype)


def build(estimator: Any, dtype: str, rows: Rows | None = None) -> Imported:
    """Return the graph of a fitted estimator; outputs as skl2onnx names them.

    Inputs: `X` [N, features], or [N] for each column that the estimator reads, if it reads a table's columns by name.
    Regression gives `prediction` [N, K]; classifiers give `label` [N] and `probabilities` [N, K], or
    `scores` if scikit-learn gives no probabilities.
    """
    check_supported_estimator(estimator)
    before, last, _ = steps_of(estimator)
    form = form_for(estimator, rows)
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=type(last).__name__)
    op = Builder(graph, "forward")
    flow = Flow(op, np.dtype(dtype), truth=form.truth)
    with op.formulas():
        end = predictor(op, estimator, _columns(flow, estimator, form), dtype)
    if form.table is not None:
        place = {name: i for i, name in enumerate(form.table)}
        graph.inputs[:] = sorted(graph.inputs, key=lambda value: place[str(value.name)])
        _check_kinds(graph, rows)
    is_exact = {type(part).__name__ for step in before for part in parts_of(step)} <= EXACT
    classes = None if end.task in ("regression", "multilabel") else plain_classes(last.classes_)
    if end.task == "regression":
        graph.outputs.append(op.rename(end.prediction, "prediction"))
    else:
        write_class_outputs(op, end.prediction, end.logits, classes, end.ranking)
    objective, notes = _objective(end, last)
    meaning = Meaning(end.task, str(end.logits.name) if end.logits is not None else None, classes)
    return Imported(
        ir.Model(graph, ir_version=IR_VERSION),
        prediction=str(end.prediction.name),
        meaning_of=lambda rows: meaning,
        expected=lambda inputs, output: _predicted(estimator, end, form, flow, inputs),
        origin=class_path(last),
        notes=tuple(dict.fromkeys([*flow.notes, *notes])),
        rounding=end.rounding,
        untrained_reasons=dict.fromkeys(marked(graph)),
        objective=objective,
        as_given=form.table is not None or not is_exact,
    )


def _predicted(estimator: Any, end: End, form: InputForm, flow: Flow, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the estimator's own prediction."""
    rows = form.as_estimator_input(inputs, flow.empty, flow.numeric_truth)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they do not matter to the conversion
        return source_values(estimator, end, rows)


def _objective(end: End, last: Any) -> tuple[Objective | None, tuple[str, ...]]:
    """Return the objective of the estimator's fit, and the notes, one of which may say that it lacks class weights."""
    weighs = any(name.endswith("class_weight") and value is not None for name, value in last.get_params().items())
    if weighs and end.objective is None:
        return None, (*end.notes, NO_CLASS_WEIGHTS)
    if weighs and end.objective is not None and end.objective.class_weight is None:
        return end.objective.without("its class weights"), end.notes
    return end.objective, end.notes


def _columns(flow: Flow, estimator: Any, form: InputForm) -> Columns:
    if form.table is not None:
        return Columns.inputs(flow, form.table)
    before, last, _ = steps_of(estimator)
    width = next(int(step.n_features_in_) for step in (*before, last) if hasattr(step, "n_features_in_"))
    return Columns.of(flow, flow.op.input("X", ir.DataType.from_numpy(flow.dtype), ["N", width]), width)


def _check_kinds(graph: ir.Graph, rows: Rows | None) -> None:
    """Reject columns of numbers if the estimator was fitted on words, and the reverse."""
    for value in graph.inputs:
        array = rows.inputs.get(str(value.name)) if rows is not None else None
        words = value.dtype == ir.DataType.STRING
        if array is not None and words != (array.dtype.kind in "USO"):
            raise ConvertError(
                "Columns must have the type that the estimator was fitted on: words or numbers.",
                got=f"{'numbers' if words else 'words'} in column {value.name!r}",
                fix="Give the column as in training, or add a step that encodes its words.",
            )
