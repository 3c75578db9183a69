"""New layers in place of the end of a network."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.errors import ConfigError, ConvertError, nearest, under
from ortpipe.graph.choice.parameters import choose
from ortpipe.graph.core import query, selection
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.selection import some
from ortpipe.stages.convert.changes.config import NewHead
from ortpipe.stages.convert.forward import Converted, Meaning, facts_of
from ortpipe.stages.convert.prediction.meaning import FITTING
from ortpipe.stages.convert.sources import Layers

SHOWN = 8  # candidates in an error
POOLS = {"mean": "GlobalAveragePool", "max": "GlobalMaxPool"}
PLAIN = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
SETTINGS = {"linear": "a width, as in {linear: 10}", "dropout": "a share, as in {dropout: 0.1}", "pool": "mean or max"}
LAYERS = (*SETTINGS, *PLAIN, "gelu", "flatten", "softmax")


def parse_layers(layers: Sequence[str | Mapping[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Return layers, each by its name and its setting (None where it has none)."""
    return tuple(map(_parse_layer, layers))


def text_of(parts: Iterable[tuple[str, Any]]) -> str:
    """Return layers as text.

    >>> text_of([("linear", 10), ("softmax", None)])
    'linear 10, softmax'
    """
    return ", ".join(name if setting is None else f"{name} {setting}" for name, setting in parts)


def _parse_layer(entry: str | Mapping[str, Any]) -> tuple[str, Any]:
    setting_by_name = {entry: None} if isinstance(entry, str) else entry
    name, setting = next(iter(setting_by_name.items()), ("", None))
    if len(setting_by_name) != 1 or name not in LAYERS:
        raise ConfigError(
            "Each entry of {key} must be a layer, with its setting if it has one: {linear: 10}.",
            key="layers",
            got=repr(entry),
            fix=nearest(str(name), LAYERS),
        )
    is_valid = {
        "linear": type(setting) is int and setting > 0,
        "dropout": isinstance(setting, float) and 0 < setting < 1,
        "pool": setting in POOLS,
    }
    if not is_valid.get(name, setting is None):
        rule = f"A layer {name} has {SETTINGS.get(name, 'no setting')}."
        raise ConfigError(rule, key="layers", got=repr(entry), fix="Correct it in {key}.")
    return name, setting


def with_new_head(converted: Converted, head: NewHead, source: Any) -> Converted:
    """Add new layers behind a value of a model and make them its only output, in place.

    A linear layer is y = x · weightᵀ + bias with weight [K, F] and bias [K] from U(±1/√F), PyTorch's default (its
    Kaiming-uniform with a = √5).

    The source's task counts where the layers do not determine one. The result has no weights to compare with a source.

    Raises:
        ConvertError: `cut` names no single value, or a layer does not fit its input.
    """
    with under("head"):
        return _replaced(converted, head, getattr(source, "task", None), getattr(source, "classes", None))


def _replaced(converted: Converted, head: NewHead, task: Task | None, classes: Any) -> Converted:
    model = converted.forward.model
    value = _value_to_cut(model.graph, query.value(model.graph, converted.forward.prediction), head.cut)
    new_layers, values, old_weights = text_of(head.parts), [value], set(model.graph.initializers)
    layers = Layers(Builder(model.graph, "head"), value.dtype.numpy(), head.seed or 0)  # type: ignore[union-attr]
    with layers.op.formulas():
        for place, (name, setting) in enumerate(head.parts):
            values.append(_layer_behind(layers, values[-1], place, name, setting))
    scores, last = values[-2:]
    sizes: list[Any] = query.sizes(last) or []
    if len(sizes) != 2:
        fix = "Add {pool: mean} or flatten to {key}, and {linear: …} for another width."
        rule, actual = "A head must end with shape [N, K].", f"shape {_shape_text(sizes)}"
        raise ConvertError(rule, key="layers", got=actual, fix=fix)
    prediction = layers.op.rename(last, "prediction")
    model.graph.outputs.append(prediction)
    meaning = _meaning(head.parts[-1][0], sizes[1], str(prediction.name), str(scores.name), task, classes)
    keep_outputs(model, [str(prediction.name)])
    parameters = [name for name in model.graph.initializers if name not in old_weights]
    new = f"new weights {some(parameters)}" if parameters else "no new weights"
    note = f"cuts at {value.name!r} {_shape_text(query.sizes(value))}; behind it {new_layers}: {new}; {meaning.task}"
    choice = choose(model.graph, prediction, declared=converted.forward.untrained_reasons)
    facts, before = facts_of(model.graph, str(prediction.name), choice), converted.facts
    columns = {name: columns for name, columns in before.columns.items() if name in facts.inputs}
    return converted.next(
        note,
        record={"head": {"cut": str(value.name), "layers": new_layers, "seed": head.seed}},
        choice=choice,
        facts=dataclasses.replace(facts, columns=columns, prepared=before.prepared),
        source_weights={},
        unset=[name for name in choice.trained if name not in parameters],
        finished=None,
        objective=None,
        meaning=meaning,
    )


NEEDS: dict[str, tuple[Callable[[Sequence[int | None]], bool], str, str]] = {  # layer → its input, in words, and a fix
    "flatten": (lambda d: None not in d[1:], "a known number of positions", "Write {pool: mean} in its place."),
    "linear": (
        lambda d: len(d) == 2 and d[1] is not None,
        "[N, F]",
        "Add {pool: mean} or flatten in front of it, or cut elsewhere.",
    ),
    "pool": (
        lambda d: len(d) > 2 and d[1] is not None,
        "[N, C, …] with a known number of channels C",
        "Leave it out of {key}.",
    ),
    "softmax": (lambda d: len(d) == 2, "[N, K]", "Add {pool: mean} or flatten in front of it."),
}


def _layer_behind(layers: Layers, x: ir.Value, place: int, name: str, setting: Any) -> ir.Value:
    """Write a layer behind a value [N, …]."""
    op = layers.op
    sizes: list[Any] = query.sizes(x) or []
    fits, expected, fix = NEEDS.get(name, (bool, "", ""))
    if not fits(sizes):
        rule, actual = f"A layer {name} reads {expected}.", f"shape {_shape_text(sizes)}"
        raise ConvertError(rule, key="layers", got=actual, fix=fix)
    if name == "linear":
        weight = layers.weight(f"head/{place}/weight", [setting, sizes[1]])
        y = op.Gemm(x, weight, layers.bias(f"head/{place}/bias", setting, sizes[1]), transB=1)
        sizes = [None, setting]
    elif name == "pool":
        y, sizes = op.Flatten(getattr(op, POOLS[setting])(x), axis=1), sizes[:2]
    elif name == "flatten":
        y, sizes = op.Flatten(x, axis=1), [None, math.prod(sizes[1:])]
    elif name == "dropout":
        y = op.Dropout(x, op.const(np.float32(setting)), op.const(np.bool_(True)))
    elif name == "gelu":
        y = x * 0.5 * (1 + op.Erf(x * math.sqrt(0.5)))
    else:
        y = op.Softmax(x, axis=-1) if name == "softmax" else getattr(op, PLAIN[name])(x)
    y.type, y.shape = x.type, ir.Shape(["N", *sizes[1:]])
    return y


def _value_to_cut(graph: ir.Graph, output: ir.Value, cut: str | None) -> ir.Value:
    """Return the value that a name or glob matches."""
    values = {str(y.name): y for node in graph for y in node.outputs if y.name}
    matches = [] if cut is None else selection.matches(cut, list(values))
    if len(matches) == 1:
        value, sizes = values[matches[0]], query.sizes(values[matches[0]])
        if value.dtype in query.FLOATS and sizes is not None and len(sizes) > 1 and sizes[0] is None:
            return value
        actual = f"{value.name!r} of type {value.dtype} and shape {_shape_text(sizes)}"
        rule = "A network can be cut at a float value with one entry per row, [N, F] or [N, C, …]."
        raise ConvertError(rule, key="cut", got=actual, fix=f"Nearest the end: {_candidates(graph, output)}.")
    raise ConvertError(
        "{key} must match exactly one value, which the new layers read.",
        key="cut",
        got=f"{cut!r}, which matches {len(matches) or 'no'} values: {some(matches) or 'none'}" if cut else "none",
        fix=f"Nearest the end: {_candidates(graph, output)}.",
    )


def _candidates(graph: ir.Graph, output: ir.Value) -> str:
    """Return the last values that a head can be added behind, the last one first."""
    needed, row_dependent, candidates = query.ancestors([output]), {*query.data_inputs(graph)}, list[str]()
    for node in graph:
        if row_dependent.isdisjoint((*node.inputs, *query.captured(node))):
            continue
        row_dependent.update(node.outputs)
        for value in node.outputs:
            sizes = query.sizes(value)
            if value in needed and value.dtype in query.FLOATS and sizes and len(sizes) > 1 and sizes[0] is None:
                candidates += [f"{value.name} {_shape_text(sizes)}"] if sizes[1] not in (None, 1) else []
    return ", ".join(candidates[: -SHOWN - 1 : -1]) or "none"


def _shape_text(sizes: Sequence[int | None] | None) -> str:
    """Return a shape as text.

    >>> _shape_text([None, 64, None, 7])
    '[N, 64, ?, 7]'
    """
    if sizes is None:
        return "unknown"
    return f"[{', '.join('N' if i == 0 and d is None else '?' if d is None else str(d) for i, d in enumerate(sizes))}]"


def _meaning(last: str, width: int, name: str, scores: str, task: Task | None, classes: Any) -> Meaning:
    """Return a head's meaning, by its last layer, else by the task in the config."""
    tasks = FITTING.get(last)
    kind = task or ("regression" if tasks is None else "binary" if last == "sigmoid" and width == 1 else tasks[0])
    columns = {"softmax": 2, "sigmoid": 1}.get(last) if kind == "binary" else None
    fits = width in ((columns,) if columns else (1, 2)) if kind == "binary" else kind != "multiclass" or width > 1
    if (tasks is not None and kind not in tasks) or not fits:
        raise ConvertError(
            "A head must end as its task needs: multiclass in a softmax, multilabel in a sigmoid, binary in a sigmoid "
            "of one column or a softmax of two; or without these layers in as many raw scores.",
            key="layers",
            got=f"{width} columns behind {last} of a {kind} model",
            fix="Correct {key}, or {@convert.source.task}.",
        )
    count = {"binary": 2, "multiclass": width}.get(kind)
    labels = None if count is None else tuple(classes or range(count))
    if labels is not None and len(labels) != count:
        actual, fix = f"{len(labels)} labels, {count} classes", "Correct {@convert.source.classes}, or the last width."
        raise ConvertError("A classifier must have one label per class.", key="layers", got=actual, fix=fix)
    return Meaning(kind, None if kind == "regression" else scores if tasks else name, labels)  # type: ignore[arg-type]
