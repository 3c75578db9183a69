"""One file's run, in a process of its own, so that its memory is its own and a crash is only its own.

    python -m acceptance.files.job FOLDER key=value …

runs the six stages with these arguments as `ortpipe` would, and writes into FOLDER what the parent compares: the
converted and the trained model, rows and predictions, the losses, the time of a step, the peak of memory; then, to
`slopes.json`, gradients beside central differences.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from acceptance.files.slopes import WEIGHTS, slopes
from ortpipe.app.assemble import open_run, plan_of
from ortpipe.app.compose import Composition
from ortpipe.artifact import Artifact
from ortpipe.data.feeds import feed_inputs, feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import OrtpipeError
from ortpipe.pipeline.events import Event, StageFinished, StageProgressed
from ortpipe.pipeline.run import run
from ortpipe.runtime.session import Session
from ortpipe.stages.train.training import Epoch

ROWS = 2  # that predictions are compared on
CHOICE = 16  # of which one is for the gradients


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
    _write(folder / "slopes.json", _slopes(artifacts["penalty"], artifacts["derive"], data.train.head(CHOICE)))


def _predicted(artifact: Artifact, rows: Rows) -> np.ndarray:
    inputs = feed_inputs(artifact.model, artifact.facts, rows)
    [array] = Session(artifact.model).run(inputs, [artifact.facts.prediction])
    return array.astype(np.float64).reshape(len(array), -1)


def _slopes(loss: Artifact, derived: Artifact, rows: Rows) -> dict[str, Any]:
    """Return what `slopes` says of ten parameters, spread over all that are trained, of one row's loss.

    Of the rows, the one with the largest loss: where a model is certain and right, 1 − p has no digits left in float32.
    """
    names = list(derived.facts.gradients)
    names = [names[i] for i in np.unique(np.linspace(0, len(names) - 1, WEIGHTS).astype(int))]
    session, total, each = Session(loss.model), str(loss.facts.loss), []
    for row in range(len(rows)):
        fed = feeds(loss.model, loss.facts, rows.take(slice(row, row + 1)))
        each.append((session.run(fed, [total])[0].item(), fed))
    _, fed = max(each, key=lambda e: e[0])
    given = {i.name for i in derived.model.graph.input} - {t.name for t in derived.model.graph.initializer}
    outputs = [derived.facts.gradients[name] for name in names]
    found = Session(derived.model).run({n: a for n, a in fed.items() if n in given}, outputs)
    weights = {name: loss.initializers[name] for name in names}
    return slopes(loss.model, total, weights, dict(zip(names, found, strict=True)), fed)


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
