"""What a stage must know about a model and cannot read off its graph; kept in the model's metadata too."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import onnx

from ortpipe.errors import ConfigError, ModelError
from ortpipe.settings import checked, fields_of

Task = Literal["regression", "binary", "multiclass", "multilabel"]
PREFIX = "ortpipe."
AGAIN = "Read it with the version that wrote it, or make it again."


@dataclass(frozen=True)
class HeadFacts:
    """What `Facts` says of its prediction, said of a further output that has a label and a loss of its own."""

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
    """What a stage must know about a model and cannot read off its graph.

    All but `lineage` are also written in the model's metadata, so that the bare .onnx file explains itself.
    """

    task: Task
    inputs: tuple[str, ...]  # the data inputs, rows first
    outputs: tuple[str, ...]  # the forward outputs, in the source's order
    prediction: str  # the float output that losses and metrics read: values, or probabilities
    parameters: tuple[str, ...]  # the initializers that training may change; after derive, those it does change
    constants: tuple[str, ...] = ()  # the float initializers that are trained only where they are named
    class_axis: int | None = None  # of the prediction, where its classes or columns are; its rank: nowhere, each number
    # stands for itself; None: the last, of [N, K]
    logits: str | None = None  # the value before the last Sigmoid or Softmax, where there is one
    members: str | None = None  # what the loss reads, [N, members, K] of raw scores or values: the prediction is the
    # mean of what they predict, the loss that of theirs
    opposite: bool | None = None  # True: the logits are one score twice, [−s, s], of which s is the logit
    link: Literal["log"] | None = None  # of a regression: the prediction is the logarithm of the values
    classes: tuple[int | str, ...] | None = None  # label of each class index
    label: str | None = None  # the label input
    blank: int | None = None  # the class that means nothing, where the label is a sequence that all steps read (CTC)
    padding: int | float | str | None = None  # the label of elements that count nothing
    objective: Mapping[str, Any] = field(default_factory=dict)  # what the source was fitted by: {loss: {name: …},
    # penalty: {parameter: {l2: …}}, reduction: that these strengths are for, rows: N, weight: their mean where the
    # source divides by it, missing: what is not in it}
    sample_weight: str | None = None  # the per-row weight input
    loss: str | None = None  # the scalar loss output
    output_gradient: str | None = None  # the input that every gradient is multiplied by; a scalar loss has 1 there
    reduction: Literal["sum", "mean"] | None = None  # how the loss joins its rows
    gradients: Mapping[str, str] = field(default_factory=dict)  # parameter → its gradient output
    input_gradients: Mapping[str, str] = field(default_factory=dict)  # data input → its gradient output
    adapters: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # weight → {left: L, right: R, scale: s}: of
    # W + s · L·R, L and R are trained; what train gives is that sum
    statistics: Mapping[str, str] = field(default_factory=dict)  # running statistic → the output of its next value
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # data input → the names of its columns
    categories: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # column of text → value of each code
    heads: Mapping[str, HeadFacts] = field(default_factory=dict)  # further outputs with a label and a loss of their own
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # metric → before/trained/int8/source
    lineage: tuple[Mapping[str, Any], ...] = ()  # one record per stage, oldest first; not part of the digest

    @property
    def measured_as(self) -> str:
        """The task that metrics fit."""
        return self.task if self.blank is None else "sequence"

    @property
    def predictions(self) -> dict[str, Facts]:
        """What is known of the prediction, under "", and of each head by its output, as if it were the prediction."""
        bare = dataclasses.replace(self, members=None, objective={})
        heads = {name: dataclasses.replace(bare, prediction=name, **vars(head)) for name, head in self.heads.items()}
        return {"": self, **heads}

    @property
    def settings(self) -> str:
        """Where a config says what the prediction means, or the head that these facts of `predictions` are of."""
        return f"convert.source.heads.{self.prediction}" if self.prediction in self.heads else "convert.source"

    @property
    def labels(self) -> tuple[str, ...]:
        """The label inputs, the prediction's first."""
        return tuple(own.label for own in self.predictions.values() if own.label is not None)

    def __repr__(self) -> str:
        """Say what is set, each in a few words; `as_json` has all, and `lineage` what each stage did."""
        return f"Facts({', '.join(f'{name}={value!r:.100}' for name, value in self.as_json(lineage=False).items())})"

    def as_json(self, *, lineage: bool = True) -> dict[str, Any]:
        """Return the facts that are set, as plain JSON values."""
        left_out = () if lineage else ("lineage",)
        facts = {k: v for k, v in vars(self).items() if k in _REQUIRED or v not in (None, {}, ())}
        return json.loads(json.dumps({k: v for k, v in facts.items() if k not in left_out}, default=vars))

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Facts:
        """Return the facts that `as_json` wrote."""
        if unknown := set(facts) - set(fields_of(Facts)):
            raise ModelError(
                "An artifact's facts must be of this version of ortpipe.",
                got=f"unknown: {', '.join(sorted(unknown))}",
                fix=AGAIN,
            )
        if missing := [name for name in _REQUIRED if name not in facts]:
            raise ModelError("An artifact's facts are all there.", got=f"no {', '.join(missing)}", fix=AGAIN)
        return cls(**_typed(cls, facts))


_REQUIRED = [f.name for f in dataclasses.fields(Facts) if f.default is f.default_factory]


def _typed(cls: type, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts in JSON that `Facts`, or those of a head, has as their types."""
    values = {}
    for name, (_, hint) in fields_of(cls).items():
        if name in facts:
            try:
                if cls is Facts and name == "heads":
                    heads = checked(facts[name], Mapping[str, Mapping[str, Any]], name)
                    values[name] = {output: HeadFacts(**_typed(HeadFacts, head)) for output, head in heads.items()}
                else:
                    values[name] = checked(facts[name], hint, name)
            except (ConfigError, TypeError) as error:
                got = f"{name}: {json.dumps(facts[name])[:200]}"
                raise ModelError(
                    "An artifact's facts have the types that ortpipe writes.", got=got, fix=AGAIN
                ) from error
    return values


def write_metadata(model: onnx.ModelProto, facts: Facts) -> None:
    """Put the facts, but for the lineage, in a model's metadata, behind those of others."""
    others = [(p.key, p.value) for p in model.metadata_props if not p.key.startswith(PREFIX)]
    del model.metadata_props[:]
    for key, value in (*others, *_as_metadata(facts)):
        model.metadata_props.add(key=key, value=value)


def in_metadata(model: onnx.ModelProto, facts: Facts) -> bool:
    """Return whether a model's metadata hold these facts to the byte, and no other ones of ours."""
    ours = [(p.key, p.value) for p in model.metadata_props if p.key.startswith(PREFIX)]
    return ours == _as_metadata(facts)


def _as_metadata(facts: Facts) -> list[tuple[str, str]]:
    return sorted((PREFIX + k, json.dumps(v)) for k, v in facts.as_json(lineage=False).items())


def read_metadata(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the facts in a model's metadata (empty for a model that ortpipe has not seen).

    Raises:
        ModelError: they are no JSON, or of another type than `Facts` has.
    """
    ours = {p.key.removeprefix(PREFIX): p.value for p in model.metadata_props if p.key.startswith(PREFIX)}
    facts = {}
    for name, text in ours.items():
        try:
            facts[name] = json.loads(text)
        except (ValueError, RecursionError) as error:
            got = f"{PREFIX}{name}: {text[:200]!r}"
            raise ModelError("ortpipe's facts in a model's metadata are JSON.", got=got, fix=AGAIN) from error
    _typed(Facts, facts)
    return facts


def without_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without ortpipe's facts, which no longer hold; metadata of others stays."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.metadata_props[:]
    bare.metadata_props.extend(p for p in model.metadata_props if not p.key.startswith(PREFIX))
    return bare
