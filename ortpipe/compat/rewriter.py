"""Replace an operator by a graph, and query a ModelProto; known from `onnxcustom.utils`."""

from typing import Any

import numpy as np
import onnx

from ortpipe.errors import ConfigError, nearest
from ortpipe.graph.core.query import all_nodes

DOMAIN = "ortpipe.rewritten"  # the domain of the function that replaces an operator until it is inlined


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
    if domain not in versions:
        raise ConfigError("A model must import the domain.", got=repr(domain), fix=nearest(domain, versions))
    return versions[domain]


def proto_type_to_dtype(proto_type: int | str) -> type[np.generic]:
    """Return the NumPy type, float32 or float64, of a TensorProto type number or of a session's `tensor(…)`.

    >>> proto_type_to_dtype(1).__name__, proto_type_to_dtype("tensor(double)").__name__
    ('float32', 'float64')
    """
    types: dict[int | str, type[np.generic]] = {
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
    if name not in names:
        raise ConfigError("dtype must be float32, float64, int32 or int64.", got=name, fix=nearest(name, names))
    return getattr(data_types, f"{names[name]}TensorType")
