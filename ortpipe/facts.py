"""Facts about a model that its graph does not show; they are also stored in the model's metadata."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import onnx

from ortpipe.doors import later
from ortpipe.errors import ConfigError, ModelError
from ortpipe.graph.core.metadata import PREFIX
from ortpipe.settings import checked, fields_of

if TYPE_CHECKING:
    from ortpipe.bounded import parse_json
else:
    later(__name__)

Task = Literal["regression", "binary", "multiclass", "multilabel"]
REBUILD = "Read it with the version that wrote it, or run the stages again."


class TableColumn(TypedDict):
    """A raw column of a table that the model reads."""

    kind: str
    of: str | None


class Table(TypedDict):
    """Such columns, and a made-up row."""

    columns: Mapping[str, TableColumn]
    row: Mapping[str, float | str | None]


class OriginRecord(TypedDict, total=False):
    """The origin of a parameter: see `graph/core/origins.py`."""

    node: str
    attribute: str
    input: int
    initializer: str
    step: tuple[int | str, ...]
    index: int | str
    transform: tuple[tuple[Any, ...], ...]
    state_dict: tuple[str, ...]


class KeptEpoch(TypedDict):
    """The epoch whose weights training kept."""

    epoch: int


class Init(TypedDict):
    """Weights of another file: name in the model → name in the file."""

    weights: Mapping[str, str]


class StageVersion(TypedDict):
    """The stage of a lineage record."""

    stage: str
    version: int


class LineageRecord(StageVersion, total=False):
    """The entries of a stage's lineage record that ortpipe reads; it may have more."""

    source: str
    notes: tuple[str, ...]
    rows: Mapping[str, tuple[int, ...]]  # input → the shape of a row
    table: Table
    origins: Mapping[str, OriginRecord]
    init: Init
    early_stop: KeptEpoch
    validation: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    importance: Mapping[str, Mapping[str, tuple[float, float]]]
    sensitivity: Mapping[str, float]


@dataclass(frozen=True)
class HeadFacts:
    """The facts about a head, a further output with its own label and loss; the fields are as in `Facts`."""

    task: Task
    class_axis: int | None = None
    logits: str | None = None
    opposite: bool | None = None
    link: Literal["log"] | None = None
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
    class_axis: int | None = None  # the prediction's axis of classes or columns; its rank: there is none, each number
    # is a prediction; None: the last axis of [N, K]
    logits: str | None = None  # the value before the last Sigmoid or Softmax, if there is one
    members: str | None = None  # an ensemble's raw scores or values [N, members, K]: the prediction is the mean of the
    # members' predictions, the loss the mean of their losses
    opposite: bool | None = None  # True: the logits are [−s, s] with the logit s
    link: Literal["log"] | None = None  # for a regression whose prediction is the logarithm of the values
    classes: tuple[int | str, ...] | None = None  # the label of each class index
    label: str | None = None  # the label input
    blank: int | None = None  # the blank class, if the label is a sequence for all steps (CTC)
    padding: int | float | str | None = None  # the label of elements to ignore
    objective: Mapping[str, Any] = field(default_factory=dict)  # the source's objective: {loss: {name: …},
    # penalty: {parameter: {l2: …}}, reduction: the one for these strengths, rows: N, weight: the mean row weight if the
    # source divides by it, class_weight: of each class, or [negatives', positives'] of each column, missing: the parts
    # that are left out}
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
    heads: Mapping[str, HeadFacts] = field(default_factory=dict)  # further outputs with their own label and loss
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # metric → before/trained/int8/source
    lineage: tuple[Mapping[str, Any], ...] = ()  # one record per stage, oldest first; not part of the digest

    @property
    def measured_as(self) -> str:
        """The task by which metrics are chosen."""
        return self.task if self.blank is None else "sequence"

    @property
    def predictions(self) -> dict[str, Facts]:
        """The facts of the prediction, under "", and of each head by its output, as if it were the prediction."""
        bare = dataclasses.replace(self, members=None, objective={}, class_weight=())
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
        return {k: v for k, v in vars(self).items() if k in _REQUIRED or v not in (None, {}, ())}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Facts:
        """Return the facts that `as_json` wrote."""
        if unknown := set(facts) - set(fields_of(Facts)):
            raise ModelError(
                "An artifact's facts must be of this version of ortpipe.",
                got=f"unknown: {', '.join(sorted(unknown))}",
                fix=REBUILD,
            )
        if missing := [name for name in _REQUIRED if name not in facts]:
            raise ModelError("An artifact's facts must be complete.", got=f"no {', '.join(missing)}", fix=REBUILD)
        return cls(**_typed(cls, facts))


_REQUIRED = [f.name for f in dataclasses.fields(Facts) if f.default is f.default_factory]


def _typed(cls: type, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON facts of `Facts` or `HeadFacts` as their fields' types."""
    values = {}
    for name, (_, hint) in fields_of(cls).items():
        if name in facts:
            try:
                if cls is Facts and name == "heads":
                    heads = checked(facts[name], Mapping[str, Mapping[str, Any]], name)
                    values[name] = {output: HeadFacts(**_typed(HeadFacts, head)) for output, head in heads.items()}
                else:
                    values[name] = checked(facts[name], hint, name)
                if name == "lineage":
                    checked(facts[name], tuple[LineageRecord, ...], name)
            except (ConfigError, TypeError) as error:
                actual = f"{name}: {json.dumps(facts[name])[:200]}"
                if isinstance(error, ConfigError):
                    actual = f"{error.key}: {error.got}"
                raise ModelError(
                    "An artifact's facts must have the types that ortpipe writes.", got=actual, fix=REBUILD
                ) from error
    return values


def write_metadata(model: onnx.ModelProto, facts: Facts) -> None:
    """Write the facts without the lineage to a model's metadata, after entries of other tools."""
    foreign = [(p.key, p.value) for p in model.metadata_props if not p.key.startswith(PREFIX)]
    del model.metadata_props[:]
    for key, value in (*foreign, *_as_metadata(facts)):
        model.metadata_props.add(key=key, value=value)


def in_metadata(model: onnx.ModelProto, facts: Facts) -> bool:
    """Return whether the ortpipe entries of a model's metadata are exactly these facts."""
    ours = [(p.key, p.value) for p in model.metadata_props if p.key.startswith(PREFIX)]
    return ours == _as_metadata(facts)


def _as_metadata(facts: Facts) -> list[tuple[str, str]]:
    return sorted((PREFIX + k, json.dumps(v)) for k, v in facts.as_json(lineage=False).items())


def read_metadata(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the facts in a model's metadata ({} for a model that ortpipe did not write).

    Raises:
        ModelError: they are not JSON, or not of the types of `Facts`.
    """
    ours = {p.key.removeprefix(PREFIX): p.value for p in model.metadata_props if p.key.startswith(PREFIX)}
    facts = {}
    for name, text in ours.items():
        try:
            facts[name] = parse_json(text)
        except ValueError as error:
            actual = f"{PREFIX}{name}: {text[:200]!r}"
            raise ModelError("ortpipe's facts in a model's metadata must be JSON.", got=actual, fix=REBUILD) from error
    _typed(Facts, facts)
    return facts
