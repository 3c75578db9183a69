"""Replacing a network's head: the graph is cut at a value, and new layers are added behind it."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.errors import ConfigError, ConvertError, nearest
from ortpipe.graph.choice.parameters import some
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.settings import Config, Seed
from ortpipe.stages.convert.meaning import Meaning

SHOWN = 8  # candidates in an error
POOLS = {"mean": "GlobalAveragePool", "max": "GlobalMaxPool"}
PLAIN = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
SETTINGS = {"linear": "a width, as in {linear: 10}", "dropout": "a share, as in {dropout: 0.1}", "pool": "mean or max"}
LAYERS = (*SETTINGS, *PLAIN, "gelu", "flatten", "softmax")
FITTING = {"softmax": ("multiclass", "binary"), "sigmoid": ("multilabel", "binary")}  # last layer → tasks


@dataclass(frozen=True)
class NewHead(Config):
    """The layers that replace a network's end.

    Attributes:
        layers: `linear: width`, `dropout: share`, `pool: mean` or `max` (over all positions), and `flatten`, `relu`,
            `tanh`, `gelu`, `sigmoid`, `softmax`. A last sigmoid or softmax makes a classifier; without them the head
            predicts values, or raw scores if convert.source.task names such a task.
        cut: name or glob of the value that the first layer reads, [N, F], or [N, C, …] for pool and flatten.
        seed: of the new weights; by default convert's.
    """

    layers: tuple[str | Mapping[str, Any], ...]
    cut: str | None = None
    seed: Seed | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("A head has layers.", key="layers", got="none", fix="Write [{linear: 10}, softmax].")

    @functools.cached_property
    def parts(self) -> tuple[tuple[str, Any], ...]:
        """The layers, each by its name and its setting (None where it has none)."""
        return tuple(map(_parse_layer, self.layers))

    def __str__(self) -> str:
        return ", ".join(name if setting is None else f"{name} {setting}" for name, setting in self.parts)


@dataclass(frozen=True)
class HeadReplacement:
    """The new head, as `replace_head` built it."""

    cut: str
    prediction: ir.Value
    meaning: Meaning
    parameters: tuple[str, ...]  # the head's
    note: str


def replace_head(model: ir.Model, output: ir.Value, head: NewHead, task: Task | None, classes: Any) -> HeadReplacement:
    """Add new layers behind a value of a model and make them its only output, in place.

    A linear layer is y = x · weightᵀ + bias with weight [K, F] and bias [K] from U(±1/√F), PyTorch's default (its
    Kaiming-uniform with a = √5): those of layer i come from Philox with the key (seed, i), the weight first.

    Args:
        model: the network.
        output: the former prediction; candidates for the cut are its ancestors.
        head: where to cut, and the layers.
        task: the task, where the layers do not determine it.
        classes: the label of each class index; by default 0, 1, 2 …

    Raises:
        ConvertError: `cut` names no single value, or a layer does not fit its input.
    """
    value = _value_to_cut(model.graph, output, head.cut)
    stack = _LayerStack(model.graph, value, head.seed or 0)
    scores = value
    for place, (name, setting) in enumerate(head.parts):
        scores = stack.value
        stack.add(place, name, setting)
    if len(stack.dims) != 2:
        fix = "Add {pool: mean} or flatten to {key}, and {linear: …} for another width."
        raise ConvertError("A head must end with shape [N, K].", key="layers", got=f"shape {stack.shown}", fix=fix)
    prediction = stack.add_output("prediction")
    meaning = _meaning(head.parts[-1][0], stack.dims[1], str(prediction.name), str(scores.name), task, classes)
    keep_outputs(model, [str(prediction.name)])
    new = f"new weights {some(stack.parameters)}" if stack.parameters else "no new weights"
    note = f"cuts at {value.name!r} {_shape_text(query.sizes(value))}; behind it {head}: {new}; {meaning.task}"
    return HeadReplacement(str(value.name), prediction, meaning, tuple(stack.parameters), note)


class _LayerStack:
    """Layers added behind a value one after another."""

    def __init__(self, graph: ir.Graph, value: ir.Value, seed: int) -> None:
        self._graph, self._op, self._seed = graph, Builder(graph, "head"), seed
        self.value, self.parameters = value, list[str]()
        assert value.dtype is not None
        self._dtype = value.dtype
        self.dims: tuple[Any, ...] = tuple(query.sizes(value) or ())  # None: unknown

    @property
    def shown(self) -> str:
        return _shape_text(self.dims)

    def add(self, place: int, name: str, setting: Any) -> None:
        """Add one layer."""
        op, x = self._op, self.value
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
        bits = np.random.Philox(key=np.array([self._seed, place], np.uint64))
        parameters = []
        for part, shape in (("weight", (width, fan_in)), ("bias", (width,))):
            # raw bits, whose stream no version of NumPy changes, as 53 digits of [0, 1)
            unit = (bits.random_raw(math.prod(shape)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            array = ((2 * unit - 1) / math.sqrt(fan_in)).reshape(shape)
            parameters.append(self._op.parameter(f"head/{place}/{part}", array.astype(self._dtype.numpy())))
        self.parameters += [str(parameter.name) for parameter in parameters]
        self.value, self.dims = self._op.Gemm(self.value, *parameters, transB=1), (None, width)

    def add_output(self, name: str) -> ir.Value:
        """Return the last layer's result as an output of the graph."""
        value = self._op.rename(self.value, name)
        self._graph.outputs.append(value)
        return value

    def _misfit(self, layer: str, expected: str, fix: str) -> ConvertError:
        return ConvertError(f"A layer {layer} reads {expected}.", key="layers", got=f"shape {self.shown}", fix=fix)


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


def _value_to_cut(graph: ir.Graph, output: ir.Value, cut: str | None) -> ir.Value:
    """Return the value that a name or glob matches."""
    values = {str(y.name): y for node in graph for y in node.outputs if y.name}
    matches = [] if cut is None else query.matches(cut, list(values))
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
        got="none"
        if cut is None
        else f"{cut!r}, which matches {len(matches) or 'no'} values: {some(matches) or 'none'}",
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
