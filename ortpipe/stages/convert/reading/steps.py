"""The steps from a file's model to a forward model: rows first, ONNX's own operators, known sizes, weights."""

from collections.abc import Sequence
from functools import partial

import onnx_ir as ir

from ortpipe.errors import ConvertError, ModelError
from ortpipe.graph.choice.choice import some
from ortpipe.graph.core import query
from ortpipe.graph.forms.modes import settle
from ortpipe.graph.importing.batch import name_batch
from ortpipe.graph.importing.lift import float_constants, lift
from ortpipe.graph.importing.sizes import capture_unchanged, take_branches
from ortpipe.stages.convert.dialects import DialectReport, read_dialects
from ortpipe.stages.convert.dialects.standardize import standardize
from ortpipe.stages.convert.prediction.heads import Head
from ortpipe.stages.convert.reading.reading import Reading
from ortpipe.stages.convert.rows.batch import Original, batch_size, take_rows
from ortpipe.stages.convert.rows.inputs import (
    axes_of_rows,
    axis_of,
    check_axes,
    check_data_inputs,
    drop_unread,
    fix,
    fixed_batch,
    listed,
    moved,
    needs_sizes,
    set_shapes,
    sizes_of_rows,
    turn,
)


def put_rows_first(reading: Reading) -> None:
    """Keep only the inputs that hold rows, these first, as runs confirm; and keep the original."""
    model, config, data, changes = reading.model, reading.config, reading.data, list[str]()
    by_name = {str(v.name): axis_of(v, None) for v in model.graph.outputs}
    named = by_name if config.batch_axis is None else config.batch_axis
    arrays = None if reading.first is None else reading.first.inputs
    if arrays is not None and (unread := drop_unread(model.graph, arrays)):
        changes.append(f"leaves out inputs that nothing reads: {some(unread)}")
    check_axes(model.graph, config.batch_axis)
    constant_inputs = config.fixed or {}
    inputs = [v for v in query.data_inputs(model.graph) if v.name not in constant_inputs]
    candidates = axes_of_rows(inputs, config.batch_axis, arrays or {})
    trials = list[ir.Model]()
    for axes in candidates:
        trials.append(trial := model.clone() if len(candidates) > 1 else model)
        for value in [v for v in query.data_inputs(trial.graph) if v.name in axes]:
            turn(trial.graph, value, axes[str(value.name)])
        fix(trial.graph, constant_inputs)
        check_data_inputs(trial.graph, arrays)
        if data is None or len(candidates) == 1 or Original.of(trial, data).has_rows_first(fixed_batch(trial.graph)):
            break
    else:
        axes, trial = candidates[0], trials[0]
    changes += moved(axes)
    is_as_read = reading.low is not None and not changes and not constant_inputs
    reading.model, reading.notes = trial, [*reading.notes, *changes]
    reading.original = Original.of(trial, data, named, (reading.low, reading.weights) if is_as_read else None)


def rewrite_dialects(reading: Reading) -> DialectReport:
    """Rewrite the operators of onnxruntime's own domain, and take the number of rows at a time from runs."""
    original, dialects = reading.original, read_dialects(reading.model, reading.config.quantized)
    original.fused = dialects.rounding == 0
    if dialects.notes and reading.data is not None:
        try:
            original.session  # noqa: B018
        except ModelError as error:
            original = reading.original = Original.of(reading.model, reading.data, original.named)
            reading.file_notes.append(
                "predictions are not compared with the file's, which this onnxruntime cannot run, but with those of "
                f"its rewritten operators ({str(error.got)[:200]})"
            )
    original.size = batch_size(reading.graph, original, reading.config.batch)
    return dialects


def rewrite_ml(reading: Reading) -> float:
    """Rewrite the operators of ai.onnx.ml; return their tolerance."""
    if iterated := standardize(reading.graph):
        reading.file_notes.append(
            "probabilities follow Platt's formula, which onnxruntime approximates within 0.005; labels follow the votes"
        )
    return iterated


def fix_sizes(reading: Reading) -> None:
    """Infer all sizes, and decide branches by them; fix sizes at those of the rows where gradients need them."""
    graph, first = reading.graph, reading.first
    name_batch(reading.model)
    capture_unchanged(graph)
    take_branches(reading.model)
    if first is not None and needs_sizes(graph) and (free := sizes_of_rows(graph, first.inputs)):
        set_shapes(graph, free)
        name_batch(reading.model)
        take_branches(reading.model)
        sizes = listed([v for v in graph.inputs if v.name in free])
        reading.notes.append(
            f"fixes sizes at those of the rows, which the gradients of some operators need: {sizes} "
            "(convert.source.shape)"
        )


def lift_weights(reading: Reading) -> None:
    """Turn the file's constants that are weights into initializers."""
    graph, patterns = reading.graph, reading.config.lift
    constants = [v for v in float_constants(graph) if v.name in reading.constants]
    if patterns is False or (patterns is True and (reading.metadata or not constants)):
        return
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS]
    named = None if patterns is True else partial(query.select, patterns, error=ConvertError, key="lift")
    if names := lift(graph, constants, floats, named):
        reading.notes.append(f"lifts {len(names)} weights from constants: {some(names)}")


def free_rows(reading: Reading, outputs: Sequence[str]) -> dict[str, Head]:
    """Let the model take any number of rows; return the heads of these outputs."""
    reading.model, heads, notes = take_rows(reading.model, reading.original, reading.config.batch, outputs)
    reading.notes += notes
    if frozen := settle(reading.graph):
        reading.notes.append(
            f"normalizes by the running statistics, which stay as they are, in {some(frozen)}: the file asks for "
            "those of each batch, but these layers run inside a loop or a branch"
        )
    return heads
