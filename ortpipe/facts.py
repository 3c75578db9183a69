"""Facts about a model that its graph does not show; they are also stored in the model's metadata."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ortpipe.graph.core.protos import PREFIX

Task = Literal["regression", "binary", "multiclass", "multilabel"]
Form = Literal["log", "pairs", "quantiles", "risk", "survival"]  # see stages/add_loss/forms.py


@dataclass(frozen=True)
class HeadFacts:
    """The facts about a head, a further output with its own label and loss; the fields are as in `Facts`."""

    task: Task
    class_axis: int | None = None
    logits: str | None = None
    opposite: bool | None = None
    link: Form | None = None
    levels: tuple[float, ...] = ()
    classes: tuple[int | str, ...] | None = None
    label: str | None = None
    blank: int | None = None
    padding: int | float | str | None = None


@dataclass(frozen=True)
class Facts:
    """Facts about a model that its graph does not show and stages need.

    All but `lineage` are also written to the model's metadata, so that the .onnx file describes itself.
    """

    task: Task
    inputs: tuple[str, ...]  # the data inputs, rows first
    outputs: tuple[str, ...]  # the forward outputs, in the source's order
    prediction: str  # the float output for losses and metrics: values, or probabilities
    parameters: tuple[str, ...]  # the initializers that training may change; after derive, those that it changes
    constants: tuple[str, ...] = ()  # the float initializers that are trained only if the config names them
    class_axis: int | None = None  # the prediction's axis that holds the classes or columns; None: axis 1 of [N, K].
    # The number of axes: no axis holds them, and each number is a prediction of its own
    logits: str | None = None  # the value before the last Sigmoid or Softmax, if there is one
    members: str | None = None  # an ensemble's raw values [N, members, K]; prediction and loss: the means over members
    opposite: bool | None = None  # True: the logits are [−s, s] with the logit s
    link: Form | None = None  # of a regression that predicts something else than the label's values
    levels: tuple[float, ...] = ()  # of each column of the prediction: its quantile, or the time of its survival
    classes: tuple[int | str, ...] | None = None  # the label of each class index
    label: str | None = None  # the label input
    blank: int | None = None  # the blank class, if the label is a sequence for all steps (CTC)
    padding: int | float | str | None = None  # the label of elements to ignore
    objective: Mapping[str, Any] = field(default_factory=dict)  # the source's objective: {loss: {name: …},
    # penalty: {parameter: {l2: …}}, reduction: the one for these strengths, rows: N, weight: the mean row weight if the
    # source divides by it, class_weight: of each class, or [negatives', positives'] per column, missing: omitted parts}
    soft: bool | None = None  # True: class labels are the shares of all classes [N, K]
    calibration: Literal["temperature", "isotonic"] | None = None  # after training, in the graph
    threshold: float | None = None  # the least probability at which the second of two classes is predicted; None: 0.5
    class_weight: tuple[float, ...] = ()  # the factor of each class in the loss, from the data's setting
    sample_weight: str | None = None  # the per-row weight input
    loss: str | None = None  # the scalar loss output
    output_gradient: str | None = None  # the input that multiplies every gradient, the cotangent; 1 for a scalar loss
    reduction: Literal["sum", "mean"] | None = None  # how the loss reduces its rows
    gradients: Mapping[str, str] = field(default_factory=dict)  # parameter → its gradient output
    input_gradients: Mapping[str, str] = field(default_factory=dict)  # data input → its gradient output
    adapters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # weight → {left: L, right: R, scale: s}:
    # L and R of W + s · L·R are trained; train's result is the sum
    statistics: Mapping[str, str] = field(default_factory=dict)  # running statistic → the output of its next value
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # data input → the names of its columns
    prepared: Mapping[str, Any] = field(default_factory=dict)  # what the source of rows did to files before the model
    heads: Mapping[str, HeadFacts] = field(default_factory=dict)  # further outputs with their own label and loss
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # metric → state, such as trained
    lineage: tuple[Mapping[str, Any], ...] = ()  # one record per stage, oldest first; not part of the digest

    @property
    def measured_as(self) -> str:
        """The task by which metrics are chosen."""
        return "sequence" if self.blank is not None else self.task if self.link in (None, "log") else self.link

    @property
    def predictions(self) -> dict[str, Facts]:
        """The facts of the prediction, under "", and of each head by its output, as if it were the prediction."""
        bare = dataclasses.replace(self, members=None, objective={}, class_weight=(), threshold=None)
        heads = {name: dataclasses.replace(bare, prediction=name, **vars(head)) for name, head in self.heads.items()}
        return {"": self, **heads}

    @property
    def settings(self) -> str:
        """The config key of the settings of the prediction, or of the head that these facts describe."""
        return f"convert.source.heads.{self.prediction}" if self.prediction in self.heads else "convert.source"

    @property
    def labels(self) -> tuple[str, ...]:
        """The label inputs, the prediction's first."""
        return tuple(facts.label for facts in self.predictions.values() if facts.label is not None)

    def __repr__(self) -> str:
        """Return the facts that are set, shortened; `as_json` has them in full, and `lineage` the stages' records."""
        return f"Facts({', '.join(f'{name}={value!r:.100}' for name, value in self.as_json(lineage=False).items())})"

    def as_json(self, *, lineage: bool = True) -> dict[str, Any]:
        """Return the facts that are set, as plain JSON values."""
        facts = {name: value for name, value in self.fields().items() if lineage or name != "lineage"}
        return json.loads(json.dumps(facts, default=vars))

    def fields(self) -> dict[str, Any]:
        """Return the facts that are set, unconverted: `json.dumps(…, default=vars)` writes the same text as `as_json`.

        A lineage may hold a fitted estimator, hundreds of kilobytes as text.
        """
        return {k: v for k, v in vars(self).items() if k in REQUIRED or v not in (None, {}, ())}


REQUIRED = [f.name for f in dataclasses.fields(Facts) if f.default is f.default_factory]


def metadata_of(facts: Facts) -> list[tuple[str, str]]:
    """Return the facts without the lineage as entries of a model's metadata."""
    return sorted((PREFIX + k, json.dumps(v)) for k, v in facts.as_json(lineage=False).items())
