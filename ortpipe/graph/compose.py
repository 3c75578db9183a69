"""Putting graphs together and taking them apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Names
from ortpipe.graph.check import finish


def extract(model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the part of a model that computes these outputs; inputs that it does not read are gone."""
    own = ir.from_proto(model)
    graph = own.graph
    by_name = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
    graph.outputs[:] = [by_name[name] for name in outputs]
    needed = query.ancestors(graph.outputs)  # not value.uses(): a removed node's subgraphs still count as users there
    graph.inputs[:] = [value for value in graph.inputs if value in needed]
    for name, value in list(graph.initializers.items()):
        if value not in needed:
            del graph.initializers[name]
    dead = [node for node in graph if needed.isdisjoint(node.outputs)]
    graph.remove(dead)
    for node in dead:  # what they read is no longer used by them
        node.resize_inputs(0)
    return finish(own)


def between(model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the part of a model from these values, which become its inputs, to those."""
    own = ir.from_proto(model)
    graph = ir.convenience.extract(own.graph, inputs, outputs)
    graph.opset_imports.update(own.graph.opset_imports)
    return finish(ir.Model(graph, ir_version=own.ir_version))


def graft(model: onnx.ModelProto, source: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """Return `model` with more outputs, whose missing nodes are taken from `source`.

    Values of one name must hold the same in both models.
    """
    own = onnx.ModelProto()
    own.CopyFrom(model)
    graph = own.graph
    present = {name for node in graph.node for name in node.output if name}
    present |= {v.name for v in (*graph.input, *graph.initializer)}
    needed, missing = set(outputs) - present, []
    for node in reversed(source.graph.node):
        if needed & set(node.output):
            missing.append(node)
            needed |= _read(node) - present
    graph.node.extend(reversed(missing))
    graph.initializer.extend(t for t in source.graph.initializer if t.name in needed and t.name not in present)
    graph.input.extend(v for v in source.graph.input if v.name in needed and v.name not in present)
    taken = {o.name for o in graph.output}
    graph.output.extend(o for o in source.graph.output if o.name in outputs and o.name not in taken)
    known = {o.domain for o in own.opset_import}
    own.opset_import.extend(o for o in source.opset_import if o.domain not in known)
    return finish(ir.from_proto(own))


def with_named_dimensions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a name for every nameless dimension of its inputs; the first input's rows are `N`.

    Different names, because nothing says that two dimensions are equal; with names, fewer shapes are computed at run
    time (33 nodes of a gradient become 14).
    """
    own = onnx.ModelProto()
    own.CopyFrom(model)
    values, held = (*own.graph.input, *own.graph.output, *own.graph.value_info), {t.name for t in own.graph.initializer}
    names = Names(d.dim_param for v in values for d in v.type.tensor_type.shape.dim)
    for value in own.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if value.name not in held and not dim.HasField("dim_value") and not dim.dim_param:
                first = axis == 0 and value.name == own.graph.input[0].name
                dim.dim_param = names.fresh("N" if first else f"{value.name}_{axis}")
    return own


def _read(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node and its subgraphs, however deep, read."""
    inner = [n for a in node.attribute for g in (a.g, *a.graphs) for n in g.node]
    return set(node.input).union(*map(_read, inner))


def with_parameters(model: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return the model with other initializers of these names, cast to the model's types; they are no longer inputs."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    for tensor in own.graph.initializer:
        if tensor.name in values:
            array = values[tensor.name].astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type), copy=False)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    inputs = [i for i in own.graph.input if i.name not in values]
    del own.graph.input[:]
    own.graph.input.extend(inputs)
    return own


def opened(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Return the model with these initializers as inputs too, so that other values can be fed."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    present = {i.name for i in own.graph.input}
    for tensor in own.graph.initializer:
        if tensor.name in names and tensor.name not in present:
            own.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return own
