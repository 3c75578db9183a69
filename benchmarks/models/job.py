"""One file's run, in a process of its own, so that its memory is its own and a crash is only its own.

    python -m benchmarks.models.job FOLDER key=value …

runs the six stages with these arguments as `ortpipe` would, and writes into FOLDER what the parent compares: the
converted and the trained model, rows and predictions, the losses, the time of a step, the peak of memory; then, to
`slopes.json`, gradients beside central differences.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.models.double import as_double
from ortpipe.app.assemble import open_run, plan_of
from ortpipe.app.compose import Composition
from ortpipe.artifact import Artifact
from ortpipe.data.feeds import feed_inputs, feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ModelError, OrtpipeError
from ortpipe.graph.edit import open_initializers
from ortpipe.pipeline.events import Event, StageFinished, StageProgressed
from ortpipe.pipeline.run import run
from ortpipe.runtime.session import Session
from ortpipe.stages.train.losses import Epoch

ROWS = 2  # that predictions and gradients are compared on
WEIGHTS = 10
ROUNDING = 16.0  # of the loss, in float32
CLOSE = 1e-3  # then no smaller step is tried


def main(folder: Path, overrides: list[str]) -> None:
    """Run the flow, then check its gradients."""
    artifacts: dict[str, Artifact] = {}
    clock: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, StageFinished):
            artifacts[event.name] = event.artifact
        elif isinstance(event, StageProgressed) and isinstance(event.report, Epoch):
            clock.append(event.seconds)

    try:
        config = Composition([*overrides, "recorder=none", "paths.cache=null"]).config
        context = open_run(vars(config))
        run(plan_of(config), context, [listen])
    except OrtpipeError as error:
        _write(folder / "run.json", {"refused": str(error), "after": list(artifacts)})
        return
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    data: Data = context["data"]
    few = data.train.head(ROWS)
    trained, converted = artifacts["train"], artifacts["convert"]
    facts = trained.facts
    steps = trained.tensors["losses/step"]
    result: dict[str, Any] = {
        "losses": trained.tensors["losses/train"].tolist(),
        "steps": len(steps),
        "microseconds": float(np.median(np.diff(clock)) / (len(steps) / len(clock)) * 1e6) if len(clock) > 1 else None,
        "megabytes": peak,
        "outputs": [facts.prediction],
        "parameters": len(artifacts["derive"].facts.gradients),
        "task": facts.task,
        "notes": [note for entry in facts.lineage for note in entry.get("notes", ())],
    }
    onnx.save(trained.model, folder / "trained.onnx")
    np.savez(folder / "rows.npz", **few.inputs)
    np.savez(folder / "fed.npz", **feed_inputs(trained.model, facts, few))
    for name, artifact in (("converted", converted), ("trained", trained)):
        np.save(folder / f"{name}.npy", _predicted(artifact, few))
    _write(folder / "run.json", result)
    _write(folder / "slopes.json", slopes(artifacts["penalty"], artifacts["derive"], few))


def _predicted(artifact: Artifact, rows: Rows) -> np.ndarray:
    inputs = feed_inputs(artifact.model, artifact.facts, rows)
    [array] = Session(artifact.model).run(inputs, [artifact.facts.prediction])
    return array.astype(np.float64).reshape(len(array), -1)


def slopes(loss: Artifact, derived: Artifact, rows: Rows) -> dict[str, Any]:
    """Return the worst difference between gradients and (f(w + h) − f(w − h)) / 2h, relative to the larger one.

    Of ten parameters, spread over all that are trained, the weight with the largest gradient (of fewer parameters the
    largest few). The loss is computed in float64 where the runtime has the kernels, else in float32, where differences
    within its rounding count as none; of three steps h the best counts, for the sake of kinks.
    """
    names = list(derived.facts.gradients)
    names = [names[i] for i in np.unique(np.linspace(0, len(names) - 1, WEIGHTS).astype(int))]
    backward, fed = derived.model, feeds(loss.model, loss.facts, rows)
    given = {i.name for i in backward.graph.input} - {t.name for t in backward.graph.initializer}
    outputs = [derived.facts.gradients[name] for name in names]
    found = Session(backward).run({n: a for n, a in fed.items() if n in given}, outputs)
    gradients = dict(zip(names, found, strict=True))
    try:
        return _compared(gradients, as_double(loss.model), loss, fed, np.float64)
    except ModelError as error:
        dtype = next(iter(loss.initializers[name].dtype.type for name in names))
        return _compared(gradients, loss.model, loss, fed, dtype) | {"why": str(error.got)[:200]}


def _compared(
    gradients: Mapping[str, np.ndarray],
    model: onnx.ModelProto,
    loss: Artifact,
    rows: Mapping[str, np.ndarray],
    dtype: type[np.floating[Any]],
) -> dict[str, Any]:
    fed = {name: _as(array, dtype) for name, array in rows.items()}
    values = {name: _as(loss.initializers[name], dtype) for name in gradients}
    opened = ir.from_proto(model)
    open_initializers(opened, values)
    session = Session(ir.to_proto(opened))
    read = {i.name for i in model.graph.input} | values.keys()

    def total(arrays: Mapping[str, np.ndarray]) -> float:
        given = {name: array for name, array in {**fed, **arrays}.items() if name in read}
        return float(session.run(given, [str(loss.facts.loss)])[0])

    size, eps = max(1.0, abs(total(values))), float(np.finfo(dtype).eps)
    many = -(-WEIGHTS // len(gradients))
    places = [(n, int(i)) for n, g in gradients.items() for i in np.argsort(-np.abs(g), axis=None)[:many]]
    compared: list[dict[str, Any]] = []
    for name, flat in places[:WEIGHTS]:
        place = tuple(int(i) for i in np.unravel_index(flat, gradients[name].shape))
        gradient = float(gradients[name][place])
        widest = float(np.cbrt(eps)) * max(1.0, abs(float(values[name][place])))
        tries: list[tuple[float, float]] = []
        for step in (widest, widest / 4, widest / 16):
            moved = [values[name].copy(), values[name].copy()]
            moved[0][place] += step
            moved[1][place] -= step
            apart = float(moved[0][place]) - float(moved[1][place])
            slope = (total({**values, name: moved[0]}) - total({**values, name: moved[1]})) / apart
            excess = max(0.0, abs(gradient - slope) - ROUNDING * eps * size / apart)
            tries.append((excess / max(abs(gradient), abs(slope), 1e-12), slope))
            if tries[-1][0] < CLOSE:
                break
        worst, slope = min(tries)
        compared.append({"at": f"{name}{list(place)}", "gradient": gradient, "slope": slope, "off": worst})
    return {"type": np.dtype(dtype).name, "off": max(c["off"] for c in compared), "weights": compared}


def _as(array: np.ndarray, dtype: type) -> np.ndarray:
    return array.astype(dtype) if array.dtype.kind == "f" else array


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
