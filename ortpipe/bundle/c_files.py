"""The C sources of a bundle's graphs: training and predictions without a runtime, such as on a microcontroller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact, Facts
from ortpipe.bundle.checks import STEPS, rows_of
from ortpipe.bundle.draws import RANDOM, drawn_steps
from ortpipe.bundle.graphs import BundleGraphs, training_graphs
from ortpipe.bundle.reading import scalars_at
from ortpipe.errors import EngineError, TrainError
from ortpipe.graph import clean
from ortpipe.runtime.c import C_TYPES, Argument, CSource, emit, number
from ortpipe.runtime.node_order import in_order
from ortpipe.runtime.session import Session
from ortpipe.stages.train.config import TrainConfig

TEMPLATES = Path(__file__).with_name("c")
PER_LINE = 8  # numbers
TOLERANCE = {"float32": "1e-4", "float64": "1e-9"}  # of losses and predictions, relative to their size


@dataclass(frozen=True)
class CFiles:
    """A model in C.

    Attributes:
        files: name → content.
        flash: what → bytes of numbers that stay in flash; the code adds to them.
        ram: what → bytes that change; the caller's rows, the stack and, if it is used, CMSIS-DSP add to them.
    """

    files: Mapping[str, str]
    flash: Mapping[str, int]
    ram: Mapping[str, int]


def c_sources(
    artifact: Artifact, config: TrainConfig, *, steps: int | None = None, example: Arrays | None = None
) -> CFiles:
    """Return a model in C that trains on the rows of an update of `config` at a time, and predicts row by row.

    Args:
        artifact, config, steps: as for `training_graphs`.
        example: rows of the model's inputs for the test program; by default, random ones.

    Raises:
        TrainError: an input is text, or an operator cannot be written as C; predictions draw random numbers; the
            optimizer needs all rows at once.
    """
    graphs, output = training_graphs(artifact, config, steps), str(artifact.facts.prediction)
    batch = config.batch_size * config.accumulate
    rows = rows_of(graphs, artifact.facts, example or {}, batch)
    _check_numbers(rows, artifact.facts)
    train = _emitted(graphs, graphs.models["train"], "model_train_steps", rows)
    one_row = {name: array[:, :1] for name, array in rows.items()}
    predict = _emitted(graphs, _by_row(graphs, output), "model_predict_rows", one_row)
    high, low = np.random.SeedSequence([config.seed, 1, batch]).generate_state(2).tolist()  # of the first epoch
    key = high << 32 | low
    _check_draws(graphs, predict)
    work = max(8, -(-max(train.workspace, predict.workspace) // 8) * 8)
    words = {
        **_words_of_model(graphs, train, predict),
        **_words_of_test(graphs, train, rows, _expected(graphs, rows, output, key if train.seeded else None)),
        "classes": _comment(
            json.dumps(list(artifact.facts.classes), default=str) if artifact.facts.classes else "none"
        ),
        "batch": batch,
        "work": work // 8,
        "seed": f"UINT64_C({key}), state->steps, " if train.seeded else "",
    }
    files = {file.name: file.read_text(encoding="utf-8") for file in sorted(TEMPLATES.iterdir())}
    sources = {n: Template(text).substitute(words) if n[-2:] in (".c", ".h") else text for n, text in files.items()}
    flash = {
        "weights": _bytes(array for array in graphs.state.values() if array.any()),
        "rates": _bytes(graphs.scalars.values()),
        "constants": _bytes({**train.constants, **predict.constants}.values()),
    }
    return CFiles(sources, flash, {"state": _bytes(graphs.state.values()), "work": work})


def _check_numbers(rows: Arrays, facts: Facts) -> None:
    """Raise if an input is text, such as that of a raw column."""
    inputs = {name: array.dtype.kind in "fiub" for name, array in rows.items() if name in facts.inputs}
    if words := [name for name, is_number in inputs.items() if not is_number]:
        numbers = ", ".join(name for name, is_number in inputs.items() if is_number)
        fix = "Export it for onnxruntime, not as C"
        fix += f", or train with columns of numbers alone: data.source.inputs=[{numbers}]." if numbers else "."
        raise TrainError("C sources read numbers.", got=f"text in the columns {', '.join(words)}", fix=fix)


def _check_draws(graphs: BundleGraphs, predict: CSource) -> None:
    """Raise if predictions draw random numbers, for which `model_predict` has neither a key nor a count of calls."""
    if predict.seeded:
        drawing = RANDOM.intersection(node.op_type for node in in_order(graphs.models["predict"].graph.node))
        rule, fix = "C sources predict without random numbers.", "Export it for onnxruntime, not as C."
        raise TrainError(rule, got=f"{', '.join(sorted(drawing))} in predictions", fix=fix)


def _by_row(graphs: BundleGraphs, output: str) -> onnx.ModelProto:
    """Return a Scan over rows, whose body predicts one of them and keeps the weights."""
    model, count = ir.from_proto(graphs.models["predict"]), len(graphs.weights)
    body = model.graph
    body.outputs[:] = [value for value in body.outputs if value.name == output]
    clean(model)
    shapes = [[*(["rows"] if i >= count else []), *(value.shape or ())] for i, value in enumerate(body.inputs)]
    inputs = [ir.val(str(value.name), value.dtype, shape) for value, shape in zip(body.inputs, shapes, strict=True)]
    for value in (*body.inputs, body.outputs[0]):
        value.name = f"{value.name}/of_step"
    carried = [ir.node("Identity", [value]) for value in body.inputs[:count]]
    body.extend(carried)
    body.outputs[:0] = [node.outputs[0] for node in carried]
    names = [*(f"{value.name}/end" for value in inputs[:count]), output]
    ends = [ir.val(name, value.dtype) for name, value in zip(names, body.outputs, strict=True)]
    scan = ir.node("Scan", inputs, {"body": body, "num_scan_inputs": len(inputs) - count}, outputs=ends)
    graph = ir.Graph(inputs, ends, nodes=[scan], opset_imports=dict(body.opset_imports), name="rows")
    return ir.to_proto(ir.Model(graph, ir_version=model.ir_version))


def _emitted(graphs: BundleGraphs, model: onnx.ModelProto, function: str, rows: Arrays) -> CSource:
    """Return the source of a Scan over batches of rows [steps, batch, …]."""
    shapes = {name: array.shape for name, array in graphs.state.items()}
    shapes |= {name: array.shape[1:] for name, array in rows.items()}
    try:
        return emit(model, shapes=shapes | dict.fromkeys(graphs.scalars, ()), blas=False, function=function)
    except EngineError as error:
        rule, fix = "C sources hold dense networks that read numbers.", "Export it for onnxruntime, not as C."
        raise TrainError(rule, got=error.got, fix=fix) from error


def _words_of_model(graphs: BundleGraphs, train: CSource, predict: CSource) -> dict[str, Any]:
    """Return the words of the templates about the model."""
    states, inputs, [prediction], [losses] = (
        (*_of(train, "state"),),
        _of(predict, "row"),
        _of(predict, "output"),
        _of(train, "output"),
    )
    rows = [x for x in _of(train, "row") if x.name in graphs.rows]
    scalars = [x for x in _of(train, "row") if x.name in graphs.scalars]
    members = {x.name: f"state->{x.c_name}" for x in states}
    filled = [x for x in states if graphs.state[x.name].any()]
    places = {x.name: f"{x.c_name} + {_last(len(graphs.scalars[x.name]))}" for x in scalars}
    products = re.findall(r" multiply_\w+\(\d+, (\d+), (\d+)", train.text + predict.text)
    widest = max([1, *(int(size) for pair in products for size in pair)])
    return {
        "train": train.text,
        "predict": predict.text,
        "loss": _type(losses),
        "prediction": _type(prediction),
        "width": _size(prediction),
        "fields": _lines(f"  {_type(x)} {x.c_name}[{_size(x)}];" for x in states),
        "rows": _parameters(rows),
        "inputs": _parameters(inputs),
        "weights": _lines(_table(f"first_{x.c_name}", graphs.state[x.name]) for x in filled),
        "scalars": _lines(_table(x.c_name, graphs.scalars[x.name]) for x in scalars),
        "starts": _lines(f"  {_start(x, filled=x in filled)}" for x in states),
        "train_constants": _lines(_table(*item) for item in train.constants.items()),
        "predict_constants": _lines(_table(*item) for item in predict.constants.items()),
        "train_call": _call(train, {**members, **places, losses.name: "losses"}),
        "predict_call": _call(predict, {**members, prediction.name: "predictions"}),
        "rows_of_batch": ", ".join(f"{x.c_name} + i * {_size(x)}" for x in rows),
        "row_names": ", ".join(x.c_name for x in rows),
        "input_names": ", ".join(x.c_name for x in inputs),
        "widest": widest,
        "cmsis": 2 * widest * np.dtype(np.float32).itemsize,
    }


def _words_of_test(
    graphs: BundleGraphs, train: CSource, rows: Arrays, expected: tuple[np.ndarray, np.ndarray]
) -> dict[str, Any]:
    """Return the words of the template of the test program."""
    losses, predictions = expected
    return {
        "steps": STEPS,
        "tolerance": TOLERANCE[losses.dtype.name],
        "test_rows": _lines(_table(x.c_name, rows[x.name]) for x in _of(train, "row") if x.name in graphs.rows),
        "expected_losses": _table("expected_losses", losses),
        "expected_predictions": _table("expected_predictions", predictions),
    }


def _expected(graphs: BundleGraphs, rows: Arrays, output: str, key: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses of some steps, and the predictions before them; `key` is that of random numbers.

    Predictions afterwards may differ: Adam moves a parameter whose gradient is 0 but for rounding by its whole rate,
    such as a bias of Cox or before batch normalization. If the reference implementation lacks an operator of random
    steps, the losses are nan, and only finite ones are expected.
    """
    scalars = scalars_at(graphs.scalars, 0, STEPS)
    if key is None:
        *_, losses = Session(graphs.models["train"]).run({**graphs.state, **rows, **scalars})
    else:
        feeds = [{n: np.asarray(a[place]) for n, a in {**rows, **scalars}.items()} for place in range(STEPS)]
        try:
            *_, losses = drawn_steps(graphs.models["step"], graphs.state, feeds, key)
        except NotImplementedError:
            losses = np.full(STEPS, np.nan, next(iter(graphs.state.values())).dtype)
    model, first = graphs.models["predict"], {name: array[0] for name, array in rows.items()}
    fed = {value.name: {**graphs.state, **first}[value.name] for value in model.graph.input}
    return losses, Session(model).run(fed, [output])[0]


def _of(source: CSource, role: str) -> list[Argument]:
    return [argument for argument in source.arguments if argument.role == role]


def _size(argument: Argument) -> int:
    return int(np.prod(argument.shape))


def _type(argument: Argument) -> str:
    return C_TYPES[argument.dtype.name]


def _bytes(arrays: Iterable[np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays)


def _start(state: Argument, *, filled: bool) -> str:
    """Return the statement that sets the first values of a state; those without a table are 0."""
    to = f"state->{state.c_name}"
    return f"memcpy({to}, first_{state.c_name}, sizeof {to});" if filled else f"memset({to}, 0, sizeof {to});"


def _last(count: int) -> str:
    """Return the place of a step in a table of so many numbers."""
    return f"(state->steps < {count} ? state->steps : {count - 1})"


def _parameters(arguments: Iterable[Argument]) -> str:
    return ", ".join(f"const {_type(x)} *{x.c_name}" for x in arguments)


def _call(source: CSource, others: Mapping[str, str]) -> str:
    """Return the arguments of a call of an emitted function; `others` are not named as in its source."""
    names = [others.get(x.name, x.c_name) for x in source.arguments]
    return ", ".join([*names, "(unsigned char *) state->work"])


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _comment(text: str) -> str:
    """Return text that neither ends a comment nor begins another."""
    return text.replace("*/", "* /").replace("/*", "/ *")


def _table(name: str, array: np.ndarray) -> str:
    """Return an array as a constant of C, with exactly the same numbers."""
    numbers = [number(x, array.dtype) for x in array.flat]
    lines = [", ".join(numbers[i : i + PER_LINE]) for i in range(0, len(numbers), PER_LINE)]
    return f"static const {C_TYPES[array.dtype.name]} {name}[{array.size}] = {{\n  " + ",\n  ".join(lines) + "};"
