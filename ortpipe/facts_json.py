"""Read the facts that ortpipe wrote as JSON, and check their types."""

import json
from collections.abc import Mapping
from typing import Any, Required, TypedDict

import onnx

from ortpipe.bounded import parse_json
from ortpipe.errors import ConfigError, ModelError
from ortpipe.facts import REQUIRED, Facts, HeadFacts, metadata_of
from ortpipe.graph.core.protos import PREFIX
from ortpipe.settings import checked, fields_of

REBUILD = "Read it with the version that wrote it, or run the stages again."


class _Column(TypedDict):
    kind: str
    of: str | None


class _Init(TypedDict):
    weights: Mapping[str, str]


class _KeptEpoch(TypedDict):
    epoch: int


class _Table(TypedDict):
    columns: Mapping[str, _Column]
    row: Mapping[str, float | str | None]


class _Origin(TypedDict, total=False):  # of a parameter: see graph/core/origins.py
    node: str
    attribute: str
    input: int
    initializer: str
    step: tuple[int | str, ...]
    index: int | str
    transform: tuple[tuple[Any, ...], ...]
    state_dict: tuple[str, ...]


class LineageRecord(TypedDict, total=False):
    """The entries of a stage's lineage record that ortpipe reads; it may have more."""

    stage: Required[str]
    version: Required[int]
    source: str
    notes: tuple[str, ...]
    rows: Mapping[str, tuple[int, ...]]  # input → the shape of a row
    table: _Table  # the raw columns that the model reads, and a made-up row
    origins: Mapping[str, _Origin]
    init: _Init  # name in the model → name in the file of weights
    early_stop: _KeptEpoch  # the epoch whose weights training kept
    validation: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    importance: Mapping[str, Mapping[str, tuple[float, float]]]
    sensitivity: Mapping[str, float]


def read_facts(facts: Mapping[str, Any]) -> Facts:
    """Return the facts that `as_json` wrote."""
    if unknown := set(facts) - set(fields_of(Facts)):
        raise ModelError(
            "An artifact's facts must be of this version of ortpipe.",
            got=f"unknown: {', '.join(sorted(unknown))}",
            fix=REBUILD,
        )
    if missing := [name for name in REQUIRED if name not in facts]:
        raise ModelError("An artifact's facts must be complete.", got=f"no {', '.join(missing)}", fix=REBUILD)
    return Facts(**_typed(Facts, facts))


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


def in_metadata(model: onnx.ModelProto, facts: Facts) -> bool:
    """Return whether the ortpipe entries of a model's metadata are exactly these facts."""
    ours = [(p.key, p.value) for p in model.metadata_props if p.key.startswith(PREFIX)]
    return ours == metadata_of(facts)


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
