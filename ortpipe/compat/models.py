"""Convert a user's model to the form that the stages need, and graphs back to the originals' form."""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe import Artifact, Facts, TrainConfig
from ortpipe.autodiff import active
from ortpipe.compat.parameters import check_known
from ortpipe.errors import ConfigError, DeriveError
from ortpipe.graph import Builder, choose, infer, lowered, name_batch, name_dimensions, parsed, query
from ortpipe.stages import random_parameters, standardize, without_zip_map


class FolderError(ConfigError, FileNotFoundError):
    """A folder that does not exist (a FileNotFoundError, as in the original)."""


def prepared(onx: onnx.ModelProto, *, one_batch: bool = True, any_rows: bool = False) -> ir.Model:
    """Return a copy in an opset that the runtime loads, in standard operators, with named dimensions.

    With `one_batch` the rows of every input are N; without, unnamed dimensions get different names. With `any_rows` a
    fixed number of rows becomes N, too, if the outputs follow it.

    Raises:
        ModelError: the model is not valid, or has no equivalent in such an opset.
    """
    plain, _ = without_zip_map(lowered(_shaped(onx)))
    model = parsed(plain)
    if not one_batch:
        name_dimensions(model)
    standardize(model.graph)
    if any_rows and (dynamic := _with_dynamic_rows(model)) is not None:
        return dynamic
    if one_batch:
        return name_batch(model)
    infer(model)
    return model


def shape_inputs(graph: ir.Graph) -> None:
    """Give inputs without a shape the shape [N, K], for onnx.checker and gradients need one."""
    for value in query.data_inputs(graph):
        if value.shape is None:
            value.shape = ir.Shape([None, None])


def _shaped(onx: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose inputs all have a shape: the same model if they have one already."""
    types = [i.type.tensor_type for i in onx.graph.input if i.type.HasField("tensor_type")]
    if all(tensor.HasField("shape") for tensor in types):
        return onx
    model = parsed(onx)
    shape_inputs(model.graph)
    return ir.to_proto(model)


def as_table(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Return a value flattened to [N, K], as a new output of the graph, or itself if it has that shape."""
    if value.shape is not None and value.shape.rank() == 2:
        return value
    rows, *inner_dims = list(value.shape) if value.shape is not None and value.shape.rank() else ["N", None]
    op = Builder(graph, "table")
    table = op.Reshape(value, [0, -1])
    sizes = [d for d in inner_dims if isinstance(d, int)]
    table.shape = ir.Shape([rows, math.prod(sizes) if len(sizes) == len(inner_dims) else None])
    graph.outputs.append(table)
    return table


def labels_as_table(graph: ir.Graph, name: str, shape: Sequence[int]) -> None:
    """Replace a label input of more than two dimensions by a table [N, K], the form of labels in rows.

    `shape` supplies sizes that the graph does not declare; if sizes remain unknown, nothing changes.
    """
    labels = query.value(graph, name)
    rows, *inner_dims = list(labels.shape or ["N"])
    sizes = [d if isinstance(d, int) else n for d, n in itertools.zip_longest(inner_dims, shape[1:])][: len(inner_dims)]
    if len(sizes) < 2 or not all(isinstance(size, int) for size in sizes):
        return
    table = ir.Value(name=name, type=labels.type, shape=ir.Shape([rows, math.prod(sizes)]))
    graph.inputs[graph.inputs.index(labels)] = table
    op = Builder(graph, "label", before=graph[0])
    op.rename(labels, f"{name}/labels")
    ir.convenience.replace_all_uses_with(labels, op.Reshape(table, [-1, *sizes]))


def _with_dynamic_rows(model: ir.Model) -> ir.Model | None:
    """Return a model of a fixed number of rows with a dynamic one instead, or None if no output follows it."""
    dynamic = model.clone()
    inputs = query.data_inputs(dynamic.graph)
    fixed = {value.shape[0] if value.shape is not None and value.shape.rank() else None for value in inputs}
    if len(fixed) != 1 or not isinstance(next(iter(fixed)), int):
        return None
    for value in inputs:
        value.shape = ir.Shape(["N", *list(value.shape or ())[1:]])
    name_batch(dynamic)
    first = [value.shape[0] for value in dynamic.graph.outputs if value.shape is not None and value.shape.rank()]
    return dynamic if not first or any(isinstance(d, ir.SymbolicDim) and d.value == "N" for d in first) else None


def trained_by_default(graph: ir.Graph, outputs: Iterable[ir.Value]) -> list[str]:
    """Return the weights, biases and embeddings that an output depends on, in the graph's order."""
    names = {name for output in outputs if output.dtype in query.FLOATS for name in choose(graph, output).trained}
    return [name for name in graph.initializers if name in names]


def reaching(graph: ir.Graph, values: Iterable[ir.Value], outputs: Collection[ir.Value]) -> list[str]:
    """Return the names of the float values that one of the outputs depends on through floats."""
    return [str(v.name) for v in values if v.dtype in query.FLOATS and not active(graph, [v]).isdisjoint(outputs)]


def artifact_of(model: ir.Model, parameters: Iterable[str], **facts: Any) -> Artifact:
    """Return a model as an artifact, by default with all inputs as data inputs and all outputs but the loss."""
    outputs = tuple(str(o.name) for o in model.graph.outputs if o.name != facts.get("loss"))
    defaults = {
        "task": "regression",
        "inputs": tuple(str(v.name) for v in query.data_inputs(model.graph)),
        "outputs": outputs,
        "prediction": outputs[0] if outputs else facts.get("loss"),
    }
    return Artifact(model, Facts(**{**defaults, **facts, "parameters": tuple(parameters)}))


def exact(names: Iterable[str], choices: Collection[str], kind: str) -> tuple[str, ...]:
    """Return these exact names; DeriveError: one is not among the choices."""
    names = tuple(names)
    for name in names:
        check_known(name, choices, f"Every {kind} must be given by its exact name.", DeriveError)
    return names


def as_one_element(model: ir.Model, loss: str) -> None:
    """Give a scalar loss the shape [1, 1] that it has in the originals."""
    scalar = query.value(model.graph, loss)
    op = Builder(model.graph, "loss")
    matrix = op.Reshape(scalar, [1, 1])
    matrix.shape = ir.Shape([1, 1])
    model.graph.outputs[model.graph.outputs.index(scalar)] = matrix
    op.rename(scalar, f"{loss}/scalar")
    matrix.name = loss


def first_weights(artifact: Artifact, config: TrainConfig) -> dict[str, np.ndarray]:
    """Return the initial weights of training: the model's, or random ones."""
    weights = {name: artifact.initializers[name] for name in artifact.facts.parameters}
    return weights if config.init == "keep" else random_parameters(artifact.ir_model().graph, weights, config.seed)


def short(name: str) -> str:
    """Return a class's name as in the names of the originals' files.

    >>> short("OrtGradientForwardBackwardOptimizer")
    'GradFBOptimizer'
    """
    return name.replace("Learning", "L").replace("OrtGradient", "Grad").replace("ForwardBackward", "FB")


def saved(
    parts: Mapping[str, Any], folder: Any, name: str, prefix: str | None = None, suffix: str | None = None
) -> dict[str, Any]:
    """Write the models among `parts` into a folder as `<prefix><name><suffix>.<part>.onnx`; return their paths.

    A part with its own method `save_onnx_graph` gets a nested dictionary. If `folder` is the type `bytes`, the models
    are returned as bytes.

    Raises:
        FolderError: the folder does not exist.
    """
    if folder is not bytes and not Path(folder).is_dir():
        raise FolderError("The folder to save graphs into must exist.", got=folder, fix="Create it first.")
    results: dict[str, Any] = {}
    for key, part in parts.items():
        if hasattr(part, "save_onnx_graph"):
            results[key] = part.save_onnx_graph(folder, prefix, f"{suffix or ''}.{key}")
        elif isinstance(part, onnx.ModelProto):
            content = part.SerializeToString(deterministic=True)
            path = None if folder is bytes else Path(folder) / f"{prefix or ''}{name}{suffix or ''}.{key}.onnx"
            if path is not None:
                path.write_bytes(content)
            results[key] = content if path is None else str(path)
    return results
