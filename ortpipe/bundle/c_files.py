"""The C sources of a bundle's graphs: training and predictions without a runtime, such as on a microcontroller."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact, Facts
from ortpipe.bundle.checks import STEPS, rows_of
from ortpipe.bundle.graphs import BundleGraphs, training_graphs
from ortpipe.bundle.reading import scalars_at
from ortpipe.errors import EngineError, TrainError
from ortpipe.graph import clean
from ortpipe.runtime.c import C_TYPES, Argument, CSource, emit, number
from ortpipe.runtime.session import Session
from ortpipe.stages.train.config import TrainConfig

CMAKE = Path(__file__).with_name("CMakeLists.txt")
PER_LINE = 8  # numbers
TOLERANCE = {"float32": "1e-4", "float64": "1e-9"}  # of losses and predictions, relative to their size


@dataclass(frozen=True)
class CFiles:
    """A model in C.

    Attributes:
        files: name → content.
        flash: what → bytes of numbers that stay in flash; the code adds to them.
        ram: what → bytes that change; the caller's rows and the stack add to them.
    """

    files: Mapping[str, str]
    flash: Mapping[str, int]
    ram: Mapping[str, int]


@dataclass(frozen=True)
class _Program:
    """The emitted functions, with the graphs that they compute."""

    graphs: BundleGraphs
    train: CSource
    predict: CSource
    seed: int

    @property
    def rows(self) -> list[Argument]:
        """A batch's arguments."""
        return [x for x in _of(self.train, "row") if x.name in self.graphs.rows]

    @property
    def scalars(self) -> list[Argument]:
        """The optimizer's numbers for a step."""
        return [x for x in _of(self.train, "row") if x.name in self.graphs.scalars]

    @property
    def states(self) -> dict[str, str]:
        """How the emitted functions reach each value of the state."""
        return {x.name: f"state->{x.c_name}" for x in _of(self.train, "state")}

    @property
    def loss_type(self) -> str:
        """The type of losses."""
        return _type(_of(self.train, "output")[0])


def c_sources(
    artifact: Artifact, config: TrainConfig, *, steps: int | None = None, example: Arrays | None = None
) -> CFiles:
    """Return a model in C that trains on the rows of an update of `config` at a time, and predicts row by row.

    Args:
        artifact, config, steps: as for `training_graphs`.
        example: rows of the model's inputs for the test program; by default, random ones.

    Raises:
        TrainError: an operator cannot be written as C; the optimizer needs all rows at once.
    """
    graphs, output = training_graphs(artifact, config, steps), str(artifact.facts.prediction)
    batch = config.batch_size * config.accumulate
    rows = rows_of(graphs, artifact.facts, example or {}, batch)
    one_row = {name: array[:, :1] for name, array in rows.items()}
    train = _emitted(graphs, graphs.models["train"], "model_train_steps", rows)
    program = _Program(
        graphs, train, _emitted(graphs, _by_row(graphs, output), "model_predict_rows", one_row), config.seed
    )
    files = {
        "model.h": _header(program, artifact.facts, batch),
        "train.c": program.train.text + _train(program),
        "predict.c": program.predict.text + _predict(program),
        "test.c": _test(program, rows, output),
        CMAKE.name: CMAKE.read_text(encoding="utf-8"),
    }
    first = [array for array in graphs.state.values() if array.any()]
    constants = {**train.constants, **program.predict.constants}
    flash = {
        "weights": _bytes(first),
        "rates": _bytes(graphs.scalars.values()),
        "constants": _bytes(constants.values()),
    }
    return CFiles(files, flash, {"state": _bytes(graphs.state.values()), "work": _work(program)})


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


def _header(program: _Program, facts: Facts, batch: int) -> str:
    """Return the state, the functions and, where MODEL_WEIGHTS is defined, the first values of the state."""
    states, [prediction], graphs = _of(program.train, "state"), _of(program.predict, "output"), program.graphs
    classes = (
        json.dumps(list(facts.classes), default=str).replace("*/", "* /").replace("/*", "/ *")
        if facts.classes
        else "none"
    )
    first = [_table(f"first_{x.c_name}", graphs.state[x.name]) for x in states if graphs.state[x.name].any()]
    rows, inputs = _parameters(program.rows), _parameters(_of(program.predict, "row"))
    return f"""\
/* A model that trains. Classes, in the order of predictions, as labels from 0 on: {classes} */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum {{
  MODEL_BATCH = {batch}, /* rows of a batch */
  MODEL_PREDICTION = {_size(prediction)} /* numbers of a prediction */
}};

typedef struct {{
  double work[{_work(program) // 8}]; /* without a meaning between two calls */
{_lines(f"  {_type(x)} {x.c_name}[{_size(x)}];" for x in states)}
  int64_t steps; /* so far */
}} model_state;

/* Start from the exported weights. */
void model_init(model_state *state);

/* Train one batch of MODEL_BATCH rows, and return its loss before the update. */
{program.loss_type} model_train_batch(model_state *state, {rows});

/* Train batches that follow each other in memory, and write the loss of each. */
void model_train_epoch(model_state *state, int64_t batches, {rows}, {program.loss_type} *losses);

/* Write MODEL_PREDICTION numbers for each row. */
void model_predict(model_state *state, int64_t rows, {inputs}, {_type(prediction)} *predictions);

#ifdef MODEL_WEIGHTS
{_lines(first)}
#endif

#endif
"""


def _train(program: _Program) -> str:
    """Return the functions that train, which follow the emitted one."""
    train, arrays, rows = program.train, program.graphs.state, _parameters(program.rows)
    filled = {x.name: arrays[x.name].any() for x in _of(train, "state")}
    start = [
        f"  {f'memcpy(state->{x.c_name}, first_{x.c_name}' if filled[x.name] else f'memset(state->{x.c_name}, 0'}"
        f", sizeof state->{x.c_name});"
        for x in _of(train, "state")
    ]
    tables = {x.name: program.graphs.scalars[x.name] for x in program.scalars}
    places = {
        name: f"(state->steps < {len(array)} ? state->steps : {len(array) - 1})" for name, array in tables.items()
    }
    others = {x.name: "losses" for x in _of(train, "output")}
    call = _call(train, others | program.states | {x.name: f"{x.c_name} + {places[x.name]}" for x in program.scalars})
    return f"""
#define MODEL_WEIGHTS
#include "model.h"

/* The optimizer's numbers for each step; the last ones count for all later steps. */
{_lines(_table(x.c_name, tables[x.name]) for x in program.scalars)}
{_constants(train)}
void model_init(model_state *state) {{
{_lines(start)}
  state->steps = 0;
}}

{program.loss_type} model_train_batch(model_state *state, {rows}) {{
  {program.loss_type} losses[1];
  model_train_steps(1, {f"{program.seed}, state->steps, " if train.seeded else ""}{call});
  state->steps++;
  return losses[0];
}}

void model_train_epoch(model_state *state, int64_t batches, {rows}, {program.loss_type} *losses) {{
  for (int64_t i = 0; i < batches; i++)
    losses[i] = model_train_batch(state, {", ".join(f"{x.c_name} + i * {_size(x)}" for x in program.rows)});
}}
"""


def _predict(program: _Program) -> str:
    """Return the function that predicts, which follows the emitted one."""
    [output], inputs = _of(program.predict, "output"), _parameters(_of(program.predict, "row"))
    return f"""
#include "model.h"
{_constants(program.predict)}
void model_predict(model_state *state, int64_t rows, {inputs}, {_type(output)} *predictions) {{
  model_predict_rows(rows, {_call(program.predict, {**program.states, output.name: "predictions"})});
}}
"""


def _test(program: _Program, rows: Arrays, output: str) -> str:
    """Return a program that compares losses and predictions with those of onnxruntime; random steps are only run."""
    graphs, inputs = program.graphs, _of(program.predict, "row")
    scalars = scalars_at(graphs.scalars, 0, STEPS)
    *values, losses = Session(graphs.models["train"]).run({**graphs.state, **rows, **scalars})
    weights = {n: a for n, a in zip(graphs.state, values, strict=True) if n in graphs.weights}
    fed = {**weights, **{x.name: rows[x.name][0] for x in inputs}}
    predictions = Session(graphs.models["predict"]).run(fed, [output])[0]
    if program.train.seeded:
        losses, predictions = np.full_like(losses, np.nan), np.full_like(predictions, np.nan)
    return f"""\
/* Train {STEPS} batches and predict; compare the results with Python's. With random numbers, those are nan. */
#include "model.h"
#include <math.h>
#include <stdio.h>

{_lines(_table(x.c_name, rows[x.name]) for x in program.rows)}
{_table("expected_losses", losses)}
{_table("expected_predictions", predictions)}
static model_state state;
static {program.loss_type} losses[{STEPS}];
static {C_TYPES[predictions.dtype.name]} predictions[{predictions.size}];

static int differs(const char *what, int i, double actual, double expected) {{
  const double allowed = {TOLERANCE[losses.dtype.name]} * fmax(1, fabs(expected));
  printf("%s %d: %.7g (Python: %.7g)\\n", what, i, actual, expected);
  return !(isnan(expected) ? isfinite(actual) : fabs(actual - expected) <= allowed);
}}

int main(void) {{
  int wrong = 0;
  model_init(&state);
  model_train_epoch(&state, {STEPS}, {", ".join(x.c_name for x in program.rows)}, losses);
  for (int i = 0; i < {STEPS}; i++) wrong += differs("loss", i, (double) losses[i], (double) expected_losses[i]);
  model_predict(&state, MODEL_BATCH, {", ".join(x.c_name for x in inputs)}, predictions);
  for (int i = 0; i < {predictions.size}; i++)
    wrong += differs("prediction", i, (double) predictions[i], (double) expected_predictions[i]);
  printf("%s\\n", wrong ? "different" : "equal");
  return wrong != 0;
}}
"""


def _of(source: CSource, role: str) -> list[Argument]:
    return [argument for argument in source.arguments if argument.role == role]


def _size(argument: Argument) -> int:
    return int(np.prod(argument.shape))


def _type(argument: Argument) -> str:
    return C_TYPES[argument.dtype.name]


def _bytes(arrays: Iterable[np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays)


def _work(program: _Program) -> int:
    """Return the bytes of working memory, a multiple of 8."""
    return max(8, -(-max(program.train.workspace, program.predict.workspace) // 8) * 8)


def _parameters(arguments: Iterable[Argument]) -> str:
    return ", ".join(f"const {_type(x)} *{x.c_name}" for x in arguments)


def _call(source: CSource, others: Mapping[str, str]) -> str:
    """Return the arguments of a call of an emitted function; `others` are not named as in its source."""
    names = [others.get(x.name, x.c_name) for x in source.arguments]
    return ", ".join([*names, "(unsigned char *) state->work"])


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _constants(source: CSource) -> str:
    return "".join(f"{_table(name, array)}\n" for name, array in source.constants.items())


def _table(name: str, array: np.ndarray) -> str:
    """Return an array as a constant of C, with exactly the same numbers."""
    numbers = [number(x, array.dtype) for x in array.flat]
    lines = [", ".join(numbers[i : i + PER_LINE]) for i in range(0, len(numbers), PER_LINE)]
    return f"static const {C_TYPES[array.dtype.name]} {name}[{array.size}] = {{\n  " + ",\n  ".join(lines) + "};"
