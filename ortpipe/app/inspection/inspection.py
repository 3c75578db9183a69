"""An inspection of an .onnx file: for the screen, and as a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ortpipe.app.table import section
from ortpipe.errors import OrtpipeError
from ortpipe.facts import Facts
from ortpipe.stages.convert.inspection import OPEN, Examined

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
RATE = 1e-4  # small, because the weights are trained already
LABELS = {
    "regression": "what the model predicts",
    "binary": "0 or 1",
    "multiclass": "the index of the class",
    "multilabel": "0 or 1 for each column",
}


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
        lines += ["", "trial", *_trial(self)]
        if self.facts is not None and self.facts.task == "regression" and len(self.shapes["y"]):
            lines.append(f"  {SCORES}")
        config = f"ortpipe inspect {self.path} --config > my/experiment/{self.name}.yaml"
        run = f"ortpipe --config-dir my experiment={self.name}"
        lines += section("to train it", [["rows", _rows(self)], ["config", config], ["run", run]])
        return "\n".join(lines) + "\n"


def _outputs(inspection: Inspection) -> list[list[str]]:
    chosen, *others = inspection.file.results or [""]
    prediction = "prediction" if inspection.facts is None else f"prediction: {inspection.facts.task}"
    about = {chosen: prediction, **{name: f"or train this one: prediction: {name}" for name in others}}
    return [[name, kind, about.get(name, "")] for name, kind in inspection.file.outputs.items()]


def _trial(inspection: Inspection) -> list[str]:
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
        return "rows.npz with an array for each input, and the labels y"
    size = inspection.file.size
    free = "" if size is None else f"; the file leaves sizes free, {size} in the trial"
    return (
        f"rows.npz with {', '.join(arrays)}"
        + (f"; y is {LABELS[inspection.facts.task]}" if inspection.facts else "")
        + free
    )
