"""Weights, names, inputs and outputs of an ONNX model.

They are known from `onnxcustom.utils.orttraining_helper`, `onnxcustom.utils.onnx_helper`,
`experimental_experiment.gradient.loss_helper` and mlprodict's `onnx_manipulations`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import DTypeLike

from ortpipe.artifact import without_metadata
from ortpipe.compat.devices import array_of
from ortpipe.compat.models import trained_by_default
from ortpipe.errors import ConfigError, ModelError, nearest
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Names, used_names
from ortpipe.graph.core.check import checked, finish, parsed
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.query import all_nodes
from ortpipe.stages.convert.dialects.standardize import without_zip_map

Overwrite = Mapping[str, "tuple[DTypeLike, Sequence[int | str | None]]"]
RENAMED_FACTS = ("parameters", "gradients", "statistics")  # facts with names of initializers


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
    names = trained_by_default(graph, graph.outputs)
    return {t.name: (onnx.numpy_helper.to_array(t), t) for t in onx.graph.initializer if t.name in names}


def unique_name(existing_names: set[str], name: str, add: bool = True) -> str:
    """Return `name`, or `name_2`, `name_3` … if it exists, and add the result to the existing names.

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

    Where the original (`onnxcustom.utils.onnx_helper`) differs: it failed without initializers, and did not rename what
    subgraphs read from the outer graph.

    >>> import onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N,2] X) => (float[N,1] Y) <float[2,1] w = {1, 2}, float[1] b = {3}> { Y = Gemm(X, w, b) }''')
    >>> [t.name for t in onnx_rename_weights(model).graph.initializer]
    ['I0_w', 'I1_b']
    """
    graph, nodes = onx.graph, all_nodes(onx.graph)
    old = [t.name for t in graph.initializer]
    names = Names([*old, *(i.name for i in graph.input), *(name for n in nodes for name in (*n.input, *n.output))])
    width = len(str(len(old)))
    new = {name: names.fresh(f"I{number:0{width}}_{name}") for number, name in enumerate(old)}
    for value in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        value.name = new.get(value.name, value.name)
    for node in nodes:
        node.input[:] = [new.get(name, name) for name in node.input]
    for entry in onx.metadata_props:
        if entry.key.removeprefix("ortpipe.") in RENAMED_FACTS:
            entry.value = json.dumps(_renamed(json.loads(entry.value), new))
    return onx


def replace_initializers_into_onnx(model: onnx.ModelProto, results: Mapping[str, Any]) -> onnx.ModelProto:
    """Return the model with new values for these initializers, usually trained ones.

    Args:
        model: the model; it does not change.
        results: initializer name → array, OrtValue or TensorProto, of the initializer's shape.

    Raises:
        ModelError: an unknown initializer, or a wrong shape.

    Known from `onnxcustom.utils.onnx_helper`. Replaced initializers are no longer inputs.

    >>> import numpy as np, onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N,2] X) => (float[N,1] Y) <float[2,1] coef = {1, 2}> { Y = MatMul(X, coef) }''')
    >>> trained = replace_initializers_into_onnx(model, {"coef": np.array([[3], [4]], np.float32)})
    >>> get_train_initializer(trained)["coef"][0].tolist()
    [[3.0], [4.0]]
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # a ModelProto, for onnx-ir does not support the maps of a ZipMap
    tensors = {t.name: t for t in copy.graph.initializer}
    for name, value in results.items():
        if name not in tensors:
            raise ModelError("Only initializers can be replaced.", got=repr(name), fix=nearest(name, tensors))
        tensor = tensors[name]
        array = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else array_of(value)
        if array.shape != tuple(tensor.dims):
            raise ModelError(
                "A new value must have the initializer's shape.",
                got=f"{list(array.shape)} for {name!r} of shape {list(tensor.dims)}",
                fix="Reshape it.",
            )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(dtype, copy=False), name))
    inputs = [i for i in copy.graph.input if i.name not in results]
    del copy.graph.input[:]
    copy.graph.input.extend(inputs)
    return copy


def add_initializer(model: onnx.ModelProto, name: str, value: np.ndarray) -> onnx.ModelProto:
    """Return the model with one more initializer; if it has the name of an input, it is the input's default value.

    Raises:
        ConfigError: there is an initializer of this name.
    """
    if name in {t.name for t in model.graph.initializer}:
        raise ConfigError("An initializer's name must be new.", got=repr(name), fix="Choose another name.")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return copy


def select_model_inputs_outputs(
    model: onnx.ModelProto,
    outputs: Sequence[str] | str | None = None,
    inputs: Sequence[str] | str | None = None,
    infer_shapes: bool = True,
    overwrite: Overwrite | None = None,
    remove_unused: bool = True,
    verbose: int = 0,
) -> onnx.ModelProto:
    """Return the part of a model between these inputs and outputs, which may be inner values such as raw scores.

    A ZipMap (one dict per row) is replaced by the tensor that it zips.

    Args:
        model: the model; it does not change.
        outputs: the new outputs; by default the model's.
        inputs: the new inputs, in order; by default those of the model that are still read.
        infer_shapes: infer the types and shapes of inner values first.
        overwrite: name → (numpy type, shape) of inputs or outputs, if the model does not declare them.
        remove_unused: remove the nodes and initializers that the outputs do not depend on.
        verbose: print the selected inputs and outputs.

    Raises:
        ModelError: an unknown value, one of unknown type, or outputs that depend on other inputs.

    Known from mlprodict and onnx-array-api.

    >>> import onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N,2] X) => (float[N,1] p) <float[2,1] w = {1, 2}> { z = MatMul(X, w) p = Sigmoid(z) }''')
    >>> scores = select_model_inputs_outputs(model, "z")
    >>> [node.op_type for node in scores.graph.node], [o.name for o in scores.graph.output]
    (['MatMul'], ['z'])
    """
    plain, _ = without_zip_map(model)
    part = parsed(onnx.shape_inference.infer_shapes(plain) if infer_shapes else plain)
    graph = part.graph
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
                fix=f"Set it: overwrite={{{value.name!r}: (numpy.float32, [None, 1])}}.",
            )
    if inputs is not None:
        _check_enough(graph, wanted_inputs)
        chosen = {str(i.name): i for i in graph.inputs}
        graph.inputs[:] = [chosen[name] for name in wanted_inputs]
    if verbose:
        print(f"select_model_inputs_outputs: {', '.join(wanted_inputs)} → {', '.join(wanted_outputs)}")
    if not remove_unused:
        return without_metadata(checked(ir.to_proto(part)))
    keep_outputs(part, wanted_outputs)
    return without_metadata(finish(part))


def _renamed(fact: Any, new: Mapping[str, str]) -> Any:
    """Return a fact with the names of initializers, its keys or items, replaced by the new ones."""
    if isinstance(fact, dict):
        return {new.get(name, name): value for name, value in fact.items()}
    return [new.get(name, name) for name in fact]


def _names(names: Sequence[str] | str | None, default: list[str]) -> list[str]:
    return default if names is None else [names] if isinstance(names, str) else list(names)


def _open(graph: ir.Graph, value: ir.Value) -> None:
    """Replace a value that a node computes by an input of the same name."""
    if value.producer() is None:
        return
    graph_input = ir.Value(name=value.name, type=value.type, shape=value.shape)
    value.name = Names(used_names(graph)).fresh(f"{value.name}/computed")
    graph.inputs.append(graph_input)
    ir.convenience.replace_all_uses_with(value, graph_input)


def _check_enough(graph: ir.Graph, inputs: Sequence[str]) -> None:
    """Reject outputs that depend on an input that is not among the chosen ones."""
    needed = query.ancestors(graph.outputs)
    missing = [str(i.name) for i in graph.inputs if i in needed and not i.is_initializer() and i.name not in inputs]
    if missing:
        raise ModelError(
            "The outputs must not depend on other inputs than the selected ones.",
            got=f"they depend on {', '.join(missing)} too",
            fix="Add it to the inputs, or choose other outputs.",
        )
