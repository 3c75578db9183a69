"""Inspect an .onnx file: the settings with which it trains, found by a short training on rows that are made here."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ortpipe.app.assemble import open_run, plan_of
from ortpipe.app.compose import Composition
from ortpipe.app.table import section
from ortpipe.artifact import Artifact
from ortpipe.errors import ConvertError, ModelError, OrtpipeError
from ortpipe.facts import Facts
from ortpipe.pipeline.events import Event, StageFinished
from ortpipe.pipeline.run import run
from ortpipe.stages.convert.inspection import OPEN, Examined, examine, labels_of

HEADER = """# @package _global_
# {title}
# ortpipe --config-dir FOLDER experiment={name}, with this file as FOLDER/experiment/{name}.yaml
# {rows}
defaults:
  - override /data: npz
  - override /convert: onnx
  - override /add_loss: auto
  - override /train/optimizer: adam

"""
SCORES = (
    "if the prediction holds raw scores of K classes, give labels 0 to K − 1 without the axis of the classes; if each\n"
    "  of its numbers is a class of its own, give 0 or 1, and set convert.source.task=multilabel scores=logits"
)
CTC = "for labels shorter than the {} steps, whose places are unknown, such as the letters of a text, set add_loss=ctc"
RATE = 1e-4  # small, because the weights are trained already
LABELS = {
    "regression": "what the model predicts",
    "binary": "0 or 1",
    "multiclass": "the index of the class",
    "multilabel": "0 or 1 for each column",
}
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


@dataclass(frozen=True)
class Inspection:
    """The settings with which an .onnx file trains, and the evidence for them.

    Attributes:
        path: the file.
        file: its inputs and outputs.
        more: settings of convert.source that the prediction needs.
        shapes: the shape of a row of each array of the trial, and of its labels (`y`).
        dtypes: the types of these arrays.
        facts: the facts of the converted model; None: convert failed.
        error: the reason why the trial failed.
        loss: training loss of the trial.
    """

    path: Path
    file: Examined
    more: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    facts: Facts | None = None
    error: OrtpipeError | None = None
    loss: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of convert.source, as the config sets them."""
        settings: dict[str, Any] = {"path": str(self.path)} | ({"fixed": self.file.fixed} if self.file.fixed else {})
        return settings | ({"prediction": self.file.results[0]} if len(self.file.results) > 1 else {}) | {**self.more}

    @property
    def unset(self) -> list[str]:
        """The keys that only the user can set."""
        return [f"convert.source.fixed.{name}" for name, value in self.file.fixed.items() if value == OPEN]

    @property
    def name(self) -> str:
        """The name of the experiment; no packaged one has it."""
        return f"train_{self.path.stem}"

    @property
    def config(self) -> str:
        """The YAML of an experiment that trains the file."""
        tree: dict[str, Any] = {"data": {"source": {"path": "rows.npz"}}, "convert": {"source": self.settings}}
        tree["train"] = {"optimizer": {"lr": RATE}}
        head = HEADER.format(title=f"Train {self.path.name} as it is.", name=self.name, rows=_rows(self))
        return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)

    @property
    def text(self) -> str:
        """The inspection for the screen."""
        inputs = [[name, kind, self.file.roles[name].reason] for name, kind in self.file.inputs.items()]
        lines = [f"{self.path}", *section("inputs", inputs), *section("outputs", _outputs(self))]
        if self.facts is not None:
            lines += ["", "convert", *(f"  {note}" for note in self.facts.lineage[0]["notes"])]
        lines += ["", "trial", *_outcome(self)]
        if self.facts is not None and self.facts.task == "regression" and len(self.shapes["y"]):
            lines.append(f"  {SCORES}")
        if self.facts is not None and self.facts.task == "multiclass" and len(self.shapes["y"]) == 1:
            lines.append(f"  {CTC.format(self.shapes['y'][0])}")
        config = f"ortpipe inspect {self.path} --config > my/experiment/{self.name}.yaml"
        run = f"ortpipe --config-dir my experiment={self.name}"
        lines += section("to train it", [["rows", _rows(self)], ["config", config], ["run", run]])
        return "\n".join(lines) + "\n"


def _outputs(inspection: Inspection) -> list[list[str]]:
    chosen, *others = inspection.file.results or [""]
    prediction = "prediction" if inspection.facts is None else f"prediction: {inspection.facts.task}"
    about = {chosen: prediction, **{name: f"or train this one: prediction: {name}" for name in others}}
    return [[name, kind, about.get(name, "")] for name, kind in inspection.file.outputs.items()]


def _outcome(inspection: Inspection) -> list[str]:
    if inspection.unset:
        return [f"  not tried: set {', '.join(inspection.unset)} in the config"]
    if inspection.error is not None:
        return [f"  {line}" for line in str(inspection.error).splitlines()]
    return [f"  trains: one epoch on 4 rows of random numbers, loss {inspection.loss:.4g}"]


def _rows(inspection: Inspection) -> str:
    """Return a description of the arrays of rows.npz."""
    arrays = [
        f"{name} {inspection.dtypes[name]}[{', '.join(map(str, ('N', *s)))}]" for name, s in inspection.shapes.items()
    ]
    if not arrays:
        names = [name for name, role in inspection.file.roles.items() if role.constant is None]
        return f"rows.npz with {', '.join(names)}, and the labels y"
    size = inspection.file.size
    free = "" if size is None else f"; the file leaves sizes free, {size} in the trial"
    return (
        f"rows.npz with {', '.join(arrays)}"
        + (f"; y is {LABELS[inspection.facts.task]}" if inspection.facts else "")
        + free
    )


def inspect(path: str | Path) -> Inspection:
    """Return the settings with which an .onnx file trains, from the file alone.

    Inputs that are states, flags or single numbers become constants. Then the config is tried: one epoch on six rows
    of random numbers, with each kind of labels that the prediction may have until one fits.

    Args:
        path: the .onnx file.

    Raises:
        ConvertError: the file holds trees, and no weights.
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
