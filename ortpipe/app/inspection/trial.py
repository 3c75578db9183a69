"""The inspection of a file: roles of inputs, and a short training on rows that are made here."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortpipe.app.assemble import open_run, plan_of
from ortpipe.app.compose import Composition
from ortpipe.app.inspection.inspection import Inspection
from ortpipe.artifact import Artifact
from ortpipe.errors import ConvertError, ModelError, OrtpipeError
from ortpipe.pipeline.events import Event, StageFinished
from ortpipe.pipeline.run import run
from ortpipe.stages.convert.inspection import examine, labels_of

ROWS = "rows.npz"
NAME = "inspected"  # of the trial's experiment
TRIAL = (
    "data.split.test=0.33",
    "data.split.validation=0",
    "train.epochs=1",
    "train.batch_size=2",
    "recorder=none",
    "paths.cache=null",
)


def inspect(path: str | Path) -> Inspection:
    """Return the settings with which an .onnx file trains, from the file alone.

    Inputs that are states, flags or single numbers become constants. Then the config is tried: one epoch on six rows
    of random numbers, with each kind of labels that the prediction may have until one fits.

    Args:
        path: the .onnx file.

    Raises:
        ModelError: the file is missing or damaged.
    """
    file = examine(Path(path))
    inspection = Inspection(Path(path), file)
    if inspection.unset:
        return inspection
    if not file.results:
        return dataclasses.replace(inspection, error=file.obstacle())
    try:
        rows, result = file.rows, file.prediction(file.results[0])
    except (ConvertError, ModelError) as error:
        return dataclasses.replace(inspection, error=error)
    first = None
    for labels, settings in labels_of(result):
        outcome = _trial(dataclasses.replace(inspection, more=settings), {**rows, "y": labels})
        if not isinstance(outcome.error, ConvertError):
            return outcome
        first = first or outcome
    assert first is not None
    return first


def _trial(inspection: Inspection, arrays: Mapping[str, np.ndarray]) -> Inspection:
    """Train for one epoch with the config of the inspection, on some arrays."""
    inspection = dataclasses.replace(
        inspection,
        shapes={name: array.shape[1:] for name, array in arrays.items()},
        dtypes={name: "text" if array.dtype.kind == "U" else array.dtype.name for name, array in arrays.items()},
    )
    converted = list[Artifact]()

    def listen(event: Event) -> None:
        if isinstance(event, StageFinished) and event.name == "convert":
            converted.append(event.artifact)

    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, ROWS), **arrays)  # type: ignore[arg-type]
        experiment = Path(folder, "experiment", f"{NAME}.yaml")
        experiment.parent.mkdir()
        experiment.write_text(inspection.config, encoding="utf-8")
        try:
            config = Composition([f"experiment={NAME}", f"data.source.path={folder}/{ROWS}", *TRIAL], folder).config
            trained = run(plan_of(config), open_run(vars(config)), [listen])
        except OrtpipeError as error:
            return dataclasses.replace(inspection, error=error, facts=converted[0].facts if converted else None)
    return dataclasses.replace(inspection, facts=converted[0].facts, loss=trained.tensors["losses/train"][-1].item())
