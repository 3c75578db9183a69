"""Weights, names, inputs and outputs of an ONNX model.

They are known from `onnxcustom.utils.orttraining_helper`, `onnxcustom.utils.onnx_helper`,
`experimental_experiment.gradient.loss_helper` and mlprodict's `onnx_manipulations`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import DTypeLike

from ortpipe.artifact import without_metadata
from ortpipe.errors import ModelError, nearest
from ortpipe.graph import query
from ortpipe.graph.builder import Names, used_names
from ortpipe.graph.check import checked
from ortpipe.graph.compose import extract, with_parameters
from ortpipe.graph.parameters import trainable
from ortpipe.graph.query import FLOATS, all_nodes
from ortpipe.stages.convert.standardize import without_zip_map

Overwrite = Mapping[str, "tuple[DTypeLike, Sequence[int | str | None]]"]
RENAMED_FACTS = ("parameters", "gradients", "statistics")  # those that name initializers


def get_train_initializer(onx: onnx.ModelProto) -> dict[str, tuple[np.ndarray, onnx.TensorProto]]:
    """Return the initializers that are trained by default as {name: (array, tensor)}, in graph order.

    They are the weights, biases and embeddings that a float output depends on, in any float type.

    Where the original differs: it returned every float initializer, masks and numbers of formulas included.

    >>> import onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N,2] X) => (float[N,1] Y) <float[2,1] coef = {1, 2}> { Y = MatMul(X, coef) }''')
    >>> {name: array.tolist() for name, (array, _) in get_train_initializer(model).items()}
    {'coef': [[1.0], [2.0]]}
    """
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(onx)).graph
    names = {name for output in graph.outputs if output.dtype in FLOATS for name in trainable(graph, output)}
    return {t.name: (onnx.numpy_helper.to_array(t), t) for t in onx.graph.initializer if t.name in names}


def unique_name(existing_names: set[str], name: str, add: bool = True) -> str:
    """Return `name`, or `name_2`, `name_3` … if it exists, and add it to the existing ones.

    >>> names = {"label"}
    >>> unique_name(names, "label"), unique_name(names, "label"), sorted(names)
    ('label_2', 'label_3', ['label', 'label_2', 'label_3'])
    """
    unique = Names({*existing_names, f"{name}_1"}).fresh(name)  # the originals count from 2
    if add:
        existing_names.add(unique)
    return unique


def onnx_rename_weights(onx: onnx.ModelProto) -> onnx.ModelProto:
    """Rename the initializers so that their alphabetical order is the graph's: `I0_<name>`, `I1_<name>` …

    The model is changed in place, and returned. Nothing in ortpipe needs this; the training build's builder does.

    Where the original (`onnxcustom.utils.onnx_helper`) differs: it failed without initializers and left what subgraphs
    read from around them under the old name.

    >>> import onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N,2] X) => (float[N,1] Y) <float[2,1] w = {1, 2}, float[1] b = {3}> { Y = Gemm(X, w, b) }''')
    >>> [t.name for t in onnx_rename_weights(model).graph.initializer]
    ['I0_w', 'I1_b']
    """
    graph, nodes = onx.graph, all_nodes(onx.graph)
    held = [t.name for t in graph.initializer]
    names = Names([*held, *(i.name for i in graph.input), *(name for n in nodes for name in (*n.input, *n.output))])
    width = len(str(len(held)))
    new = {name: names.fresh(f"I{number:0{width}}_{name}") for number, name in enumerate(held)}
    for value in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        value.name = new.get(value.name, value.name)
    for node in nodes:
        node.input[:] = [new.get(name, name) for name in node.input]
    for entry in onx.metadata_props:
        if entry.key.removeprefix("ortpipe.") in RENAMED_FACTS:
            entry.value = json.dumps(_renamed(json.loads(entry.value), new))
    return onx


def replace_initializers_into_onnx(model: onnx.ModelProto, results: Mapping[str, Any]) -> onnx.ModelProto:
    """Return the model with other values for these initializers, usually trained ones.

    Args:
        model: left as it is.
        results: initializer name → array, OrtValue or TensorProto, of the initializer's own shape.

    Raises:
        ModelError: no such initializer, or another shape.

    Known from `onnxcustom.utils.onnx_helper`. An initializer that was an input too is one no longer.

    >>> import numpy as np, onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N,2] X) => (float[N,1] Y) <float[2,1] coef = {1, 2}> { Y = MatMul(X, coef) }''')
    >>> trained = replace_initializers_into_onnx(model, {"coef": np.array([[3], [4]], np.float32)})
    >>> get_train_initializer(trained)["coef"][0].tolist()
    [[3.0], [4.0]]
    """
    held = {t.name: tuple(t.dims) for t in model.graph.initializer}
    values = {}
    for name, value in results.items():
        if name not in held:
            raise ModelError("Only initializers can be replaced.", got=repr(name), fix=nearest(name, held))
        array = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
        values[name] = np.array(array.numpy() if hasattr(array, "numpy") else array)
        if values[name].shape != held[name]:
            raise ModelError(
                "A new value must have the initializer's shape.",
                got=f"{list(values[name].shape)} for {name!r} of shape {list(held[name])}",
                fix="Reshape it.",
            )
    return with_parameters(model, values)


def select_model_inputs_outputs(
    model: onnx.ModelProto,
    outputs: Sequence[str] | str | None = None,
    inputs: Sequence[str] | str | None = None,
    infer_shapes: bool = True,
    overwrite: Overwrite | None = None,
    remove_unused: bool = True,
    verbose: int = 0,
) -> onnx.ModelProto:
    """Return the part of a model between these inputs and outputs, any values inside it: raw scores, for example.

    A ZipMap (one dict per row) gives way to the tensor that it zips.

    Args:
        model: left as it is.
        outputs: the new outputs; by default the model's own.
        inputs: the new inputs, in order; by default the model's own, as far as they are still read.
        infer_shapes: find the types and shapes of inner values first.
        overwrite: name → (numpy type, shape) of inputs or outputs, where the model does not say.
        remove_unused: leave out the nodes and initializers that the outputs do not depend on.
        verbose: print what was selected.

    Raises:
        ModelError: no such value, one whose type is not known, or outputs that depend on more than the inputs.

    Known from mlprodict and onnx-array-api.

    >>> import onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N,2] X) => (float[N,1] p) <float[2,1] w = {1, 2}> { z = MatMul(X, w) p = Sigmoid(z) }''')
    >>> scores = select_model_inputs_outputs(model, "z")
    >>> [node.op_type for node in scores.graph.node], [o.name for o in scores.graph.output]
    (['MatMul'], ['z'])
    """
    model, _ = without_zip_map(model)
    own = ir.from_proto(onnx.shape_inference.infer_shapes(model) if infer_shapes else model)
    graph = own.graph
    by_name = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
    wanted_outputs = _names(outputs, [str(o.name) for o in graph.outputs])
    wanted_inputs = _names(inputs, [str(i.name) for i in graph.inputs])
    for name in (*wanted_outputs, *wanted_inputs, *(overwrite or {})):
        if name not in by_name:
            raise ModelError("Only values of the model can be selected.", got=repr(name), fix=nearest(name, by_name))
    for name, (dtype, shape) in (overwrite or {}).items():
        by_name[name].type = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
        by_name[name].shape = ir.Shape(shape)
    graph.outputs[:] = [by_name[name] for name in wanted_outputs]
    for name in wanted_inputs:
        _open(graph, by_name[name])
    for value in (*graph.inputs, *graph.outputs):
        if value.type is None and (inputs is not None or value in graph.outputs):
            raise ModelError(
                "A selected value must have a known type.",
                got=repr(value.name),
                fix=f"Say it: overwrite={{{value.name!r}: (numpy.float32, [None, 1])}}.",
            )
    if inputs is not None:
        _check_enough(graph, wanted_inputs)
        chosen = {str(i.name): i for i in graph.inputs}
        graph.inputs[:] = [chosen[name] for name in wanted_inputs]
    if verbose:
        print(f"select_model_inputs_outputs: {', '.join(wanted_inputs)} → {', '.join(wanted_outputs)}")
    proto = without_metadata(ir.to_proto(own))
    return extract(proto, wanted_outputs) if remove_unused else checked(proto)


def _renamed(fact: Any, new: Mapping[str, str]) -> Any:
    """Return a fact with its initializers, keys or items, under their new names."""
    if isinstance(fact, dict):
        return {new.get(name, name): value for name, value in fact.items()}
    return [new.get(name, name) for name in fact]


def _names(given: Sequence[str] | str | None, default: list[str]) -> list[str]:
    return default if given is None else [given] if isinstance(given, str) else list(given)


def _open(graph: ir.Graph, value: ir.Value) -> None:
    """Make a value that a node computes an input of the same name."""
    if value.producer() is None:
        return
    name, taken = str(value.name), used_names(graph)
    value.name = Names(taken).fresh(f"{name}/computed")
    given = ir.Value(name=name, type=value.type, shape=value.shape)
    graph.inputs.append(given)
    ir.convenience.replace_all_uses_with(value, given)


def _check_enough(graph: ir.Graph, inputs: Sequence[str]) -> None:
    """Refuse outputs that depend on an input that is not among the chosen ones."""
    needed = query.ancestors(graph.outputs)
    missing = [str(i.name) for i in graph.inputs if i in needed and not i.is_initializer() and i.name not in inputs]
    if missing:
        raise ModelError(
            "The outputs must follow from the inputs.",
            got=f"they depend on {', '.join(missing)} too",
            fix="Add it to the inputs, or choose outputs behind them.",
        )
