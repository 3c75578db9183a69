"""Weights, names, operators, inputs and outputs of an ONNX model, read and replaced.

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

from ortpipe.compat.devices import array_of
from ortpipe.compat.models import trained_by_default
from ortpipe.compat.parameters import check_known
from ortpipe.errors import ConfigError, ModelError
from ortpipe.graph import Names, all_nodes, checked, finish, keep_outputs, parsed, query, used_names, without_metadata
from ortpipe.stages import without_zip_map

Overwrite = Mapping[str, "tuple[DTypeLike, Sequence[int | str | None]]"]
DOMAIN = "ortpipe.rewritten"  # the domain of the function that replaces an operator until it is inlined
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
        check_known(name, tensors, "Only initializers can be replaced.", ModelError)
        tensor = tensors[name]
        array = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else array_of(value)
        if array.shape != tuple(tensor.dims):
            rule, fix = "A new value must have the initializer's shape.", "Reshape it."
            raise ModelError(rule, got=f"{list(array.shape)} for {name!r} of shape {list(tensor.dims)}", fix=fix)
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
        check_known(name, by_name, "Only values of the model can be selected.", ModelError)
    for name, (dtype, shape) in (overwrite or {}).items():
        by_name[name].type = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
        by_name[name].shape = ir.Shape(shape)
    graph.outputs[:] = [by_name[name] for name in wanted_outputs]
    for name in wanted_inputs:
        _open(graph, by_name[name])
    for value in (*graph.inputs, *graph.outputs):
        if value.type is None and (inputs is not None or value in graph.outputs):
            fix = f"Set it: overwrite={{{value.name!r}: (numpy.float32, [None, 1])}}."
            raise ModelError("A selected value must have a known type.", got=repr(value.name), fix=fix)
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


def onnx_rewrite_operator(
    onx: onnx.ModelProto, op_type: str, sub_onx: onnx.ModelProto, recursive: bool = True, debug_info: Any = None
) -> onnx.ModelProto:
    """Return the model with every node of an operator replaced by a graph.

    Args:
        onx: the model; it does not change.
        op_type: the operator; its attributes are dropped.
        sub_onx: the graph, with the operator's inputs and outputs in order; its initializers become Constant nodes,
            which are not trained. Its nodes are read in the model's opset.
        recursive: also in subgraphs.
        debug_info: not used, as in the original.

    Raises:
        ConfigError: a node of the operator has another number of inputs or outputs.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N] X) => (float[N] Y) { Y = Reciprocal(X) }''')
    >>> inverse = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N] X) => (float[N] Y) <float[1] one = {1}> { Y = Div(one, X) }''')
    >>> [node.op_type for node in onnx_rewrite_operator(model, "Reciprocal", inverse).graph.node]
    ['Constant', 'Div']
    """
    graph, copy = sub_onx.graph, onnx.ModelProto()
    copy.CopyFrom(onx)
    initializer_names = {t.name for t in graph.initializer}
    inputs, outputs = [i.name for i in graph.input if i.name not in initializer_names], [o.name for o in graph.output]
    for node in all_nodes(copy.graph) if recursive else copy.graph.node:
        if (node.op_type, node.domain) != (op_type, ""):
            continue
        if (len(node.input), len(node.output)) != (len(inputs), len(outputs)):
            raise ConfigError(
                "A node and the graph in its place must have as many inputs and outputs.",
                got=f"{node.op_type} node {node.name!r} of {len(node.input)} inputs and {len(node.output)} outputs,"
                f" a graph of {len(inputs)} and {len(outputs)}",
                fix="Give a graph of the node's inputs and outputs.",
            )
        node.domain = DOMAIN
        del node.attribute[:]
    constants = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    nodes = [*constants, *graph.node]
    copy.functions.append(onnx.helper.make_function(DOMAIN, op_type, inputs, outputs, nodes, copy.opset_import))
    copy.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    result = onnx.inliner.inline_selected_functions(copy, [(DOMAIN, op_type)], False)
    imports = [opset for opset in result.opset_import if opset.domain != DOMAIN]
    del result.opset_import[:]
    result.opset_import.extend(imports)
    return result


def _rewrite_op_no_grad(onx: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with Reciprocal(x) as 1 / x, for gradient builders without a rule for it; ortpipe has one."""
    opset = get_onnx_opset(onx)
    constant = "one = Constant<value_float=1.0>()"
    text = f"{constant} cast = CastLike(one, X) Y = Div(cast, X)" if opset >= 15 else f"{constant} Y = Div(one, X)"
    graph = f'<ir_version: 8, opset_import: ["": {opset}]> inverse (float[] X) => (float[] Y) {{ {text} }}'
    return onnx_rewrite_operator(onx, "Reciprocal", onnx.parser.parse_model(graph))


def get_onnx_opset(onx: onnx.ModelProto, domain: str = "") -> int:
    """Return the version of a domain's operators that a model uses; ConfigError: it does not import the domain."""
    versions = {"" if opset.domain == "ai.onnx" else opset.domain: opset.version for opset in onx.opset_import}
    check_known(domain, versions, "A model must import the domain.")
    return versions[domain]


def proto_type_to_dtype(proto_type: int | str) -> type[np.generic]:
    """Return the NumPy type, float32 or float64, of a TensorProto type number or of a session's `tensor(…)`.

    >>> proto_type_to_dtype(1).__name__, proto_type_to_dtype("tensor(double)").__name__
    ('float32', 'float64')
    """
    types: dict[int | str, Any] = {
        1: np.float32,
        11: np.float64,
        "tensor(float)": np.float32,
        "tensor(double)": np.float64,
    }
    if proto_type not in types:
        raise ConfigError("Only float32 and float64 are converted.", got=repr(proto_type), fix="Use 1 or 11.")
    return types[proto_type]


def dtype_to_var_type(dtype: Any) -> type:
    """Return skl2onnx's tensor type (the package must be installed) of float32, float64, int32 or int64."""
    from skl2onnx.common import data_types

    names = {"float32": "Float", "float64": "Double", "int32": "Int32", "int64": "Int64"}
    name = np.dtype(dtype).name
    check_known(name, names, "dtype must be float32, float64, int32 or int64.")
    return getattr(data_types, f"{names[name]}TensorType")
