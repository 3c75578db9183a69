"""Replacing a network's head: the graph is cut at a value, and new layers are added behind it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.errors import ConvertError, under
from ortpipe.graph.choice.choice import some
from ortpipe.graph.choice.parameters import choose
from ortpipe.graph.core import globs, query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.stages.convert.changes.new_head import PLAIN, POOLS, text_of
from ortpipe.stages.convert.config import NewHead
from ortpipe.stages.convert.forward import Converted, Meaning, facts_of
from ortpipe.stages.convert.prediction.meaning import FITTING
from ortpipe.stages.convert.sources import Layers

SHOWN = 8  # candidates in an error


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
    layers = text_of(head.parts)
    stack = _LayerStack(model.graph, value, head.seed or 0)
    scores = value
    for place, (name, setting) in enumerate(head.parts):
        scores = stack.value
        stack.add(place, name, setting)
    if len(stack.dims) != 2:
        fix = "Add {pool: mean} or flatten to {key}, and {linear: …} for another width."
        raise ConvertError("A head must end with shape [N, K].", key="layers", got=f"shape {stack.shown}", fix=fix)
    prediction = stack.op.rename(stack.value, "prediction")
    model.graph.outputs.append(prediction)
    meaning = _meaning(head.parts[-1][0], stack.dims[1], str(prediction.name), str(scores.name), task, classes)
    keep_outputs(model, [str(prediction.name)])
    new = f"new weights {some(stack.parameters)}" if stack.parameters else "no new weights"
    note = f"cuts at {value.name!r} {_shape_text(query.sizes(value))}; behind it {layers}: {new}; {meaning.task}"
    choice = choose(model.graph, prediction, declared=converted.forward.untrained_reasons)
    facts, before = facts_of(model.graph, str(prediction.name), choice), converted.facts
    columns = {name: columns for name, columns in before.columns.items() if name in facts.inputs}
    return converted.next(
        note,
        record={"head": {"cut": str(value.name), "layers": layers, "seed": head.seed}},
        choice=choice,
        facts=dataclasses.replace(facts, columns=columns, prepared=before.prepared),
        source_weights={},
        unset=[name for name in choice.trained if name not in stack.parameters],
        finished=None,
        objective=None,
        meaning=meaning,
    )


class _LayerStack:
    """Layers added behind a value one after another."""

    def __init__(self, graph: ir.Graph, value: ir.Value, seed: int) -> None:
        self.op = Builder(graph, "head")
        self.value, self.parameters = value, list[str]()
        assert value.dtype is not None
        self._dtype, self._layers = value.dtype, Layers(self.op, value.dtype.numpy(), seed)
        self.dims: tuple[Any, ...] = tuple(query.sizes(value) or ())  # None: unknown

    @property
    def shown(self) -> str:
        return _shape_text(self.dims)

    def add(self, place: int, name: str, setting: Any) -> None:
        """Add one layer."""
        op, x = self.op, self.value
        if name == "linear":
            self._linear(place, setting)
        elif name == "pool":
            if len(self.dims) < 3 or self.dims[1] is None:
                raise self._misfit("pool", "[N, C, …] with a known number of channels C", "Leave it out of {key}.")
            self.value, self.dims = op.Flatten(getattr(op, POOLS[setting])(x), axis=1), self.dims[:2]
        elif name == "flatten":
            if None in self.dims[1:]:
                raise self._misfit("flatten", "a known number of positions", "Write {pool: mean} in its place.")
            self.value, self.dims = op.Flatten(x, axis=1), (None, math.prod(self.dims[1:]))
        elif name == "dropout":
            self.value = op.Dropout(x, op.const(np.float32(setting)), op.const(np.bool_(True)))
        elif name == "gelu":
            with op.formulas():
                self.value = x * 0.5 * (1 + op.Erf(x * math.sqrt(0.5)))
        elif name == "softmax":
            if len(self.dims) != 2:
                raise self._misfit("softmax", "[N, K]", "Add {pool: mean} or flatten in front of it.")
            self.value = op.Softmax(x, axis=-1)
        else:
            self.value = getattr(op, PLAIN[name])(x)
        self.value.type = ir.TensorType(self._dtype)  # where inference finds no type
        if len(self.dims) == 2 and self.dims[1] is not None:
            self.value.shape = ir.Shape(["N", self.dims[1]])

    def _linear(self, place: int, width: int) -> None:
        if len(self.dims) != 2 or self.dims[1] is None:
            raise self._misfit("linear", "[N, F]", "Add {pool: mean} or flatten in front of it, or cut elsewhere.")
        fan_in = self.dims[1]
        weight = self._layers.weight(f"head/{place}/weight", [width, fan_in])
        parameters = [weight, self._layers.bias(f"head/{place}/bias", width, fan_in)]
        self.parameters += [str(parameter.name) for parameter in parameters]
        self.value, self.dims = self.op.Gemm(self.value, *parameters, transB=1), (None, width)

    def _misfit(self, layer: str, expected: str, fix: str) -> ConvertError:
        return ConvertError(f"A layer {layer} reads {expected}.", key="layers", got=f"shape {self.shown}", fix=fix)


def _value_to_cut(graph: ir.Graph, output: ir.Value, cut: str | None) -> ir.Value:
    """Return the value that a name or glob matches."""
    values = {str(y.name): y for node in graph for y in node.outputs if y.name}
    matches = [] if cut is None else globs.matches(cut, list(values))
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
