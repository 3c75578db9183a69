"""Losses and penalties as initializers and nodes, for a user's own graph.

They are known from `onnxcustom.utils.orttraining_helper`, where the losses are private.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import DTypeLike

from ortpipe.errors import PenaltyError
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.files.serial import OPSET
from ortpipe.stages.add_loss.losses import LOSSES, Scores
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.penalties import charges

Nodes = tuple[list[onnx.TensorProto], list[onnx.NodeProto]]
Loss = tuple[list[onnx.TensorProto], list[onnx.ValueInfoProto], list[onnx.NodeProto], list[onnx.ValueInfoProto]]


def penalty_loss_onnx(
    name: str,
    dtype: DTypeLike,
    l1: float | None = None,
    l2: float | None = None,
    existing_names: set[str] | None = None,
) -> Nodes:
    """Return the initializers and nodes that compute Σ l1·|v| + l2·v² of a tensor v.

    Args:
        name: the tensor.
        dtype: its numpy type.
        l1: the strength of Σ |v|.
        l2: the strength of Σ v².
        existing_names: names to avoid; the new names are added to the set.

    Returns:
        The strengths as initializers, and the nodes; the last node's output is the penalty, a scalar.

    Raises:
        PenaltyError: both strengths are 0 or None.
        ConfigError: a strength is negative or not finite.

    >>> import numpy as np
    >>> initializers, nodes = penalty_loss_onnx("coef", np.float32, l1=0.5)
    >>> [t.name for t in initializers], [node.op_type for node in nodes]
    (['penalty_coef/Constant'], ['Abs', 'ReduceSum', 'Mul'])
    """
    config = PenaltyConfig({name: strengths({"l1": l1, "l2": l2})})
    if not any(config.terms[name].values()):
        raise PenaltyError(
            "A penalty needs a strength.",
            got=f"l1={l1}, l2={l2} for {name!r}",
            fix="Give l1 or l2 a positive number, or leave this penalty out.",
        )
    value = ir.val(name, ir.DataType.from_numpy(np.dtype(dtype)))
    graph = ir.Graph([value], [], nodes=[], opset_imports={"": OPSET}, name="penalty")
    op = Builder(graph, f"penalty_{name}", names=Names({name, *(existing_names or ())}))
    functools.reduce(op.Add, charges(op, value, config.terms[name]))
    return _nodes(graph, {name}, existing_names)


def _loss(
    score: str,
    existing_names: set[str],
    elem: int,
    shape: Sequence[int | None],
    output_name: str,
    label_name: str,
    weight_name: str | None,
    loss_name: str,
    **settings: Any,
) -> Loss:
    """Return the initializers, inputs, nodes and output [1, 1] of an output's loss, as `add_loss_output` defines it.

    Args:
        score: a loss of the catalogue.
        existing_names: names to avoid; the new names are added to the set.
        elem: the output's type, a number of TensorProto.
        shape: the label's shape.
        output_name, label_name, weight_name, loss_name: the names of values.
        settings: the loss's settings.
    """
    public_names = {name for name in (output_name, label_name, weight_name, loss_name) if name}
    float_type, log = ir.DataType(elem), score == "log"
    output, label = ir.val(output_name, float_type, shape), ir.val(label_name, float_type, shape)
    if log:
        output, label.dtype = ir.val(output_name, float_type, [None, 2]), ir.DataType.INT64
    weight = ir.val(weight_name or "", float_type)
    graph = ir.Graph([output, label, weight], [], nodes=[], opset_imports={"": OPSET}, name="loss")
    op = Builder(graph, "loss", names=Names({*public_names, *existing_names}))
    terms = LOSSES[score](**settings)(op, label, Scores(output, None, 2 if log else None))
    if weight_name is not None:
        table = op.Reshape(terms, [0, -1])
        terms = op.Mul(table, op.Reshape(weight, [-1, 1]))
    total = (op.ReduceMean if log else op.ReduceSum)(terms, keepdims=0)
    op.Reshape(total, [1, 1]).name = loss_name
    initializers, nodes = _nodes(graph, public_names, existing_names)
    info = onnx.helper.make_tensor_value_info
    inputs = [info(label_name, int(label.dtype or elem), shape)]
    inputs += [info(weight_name, elem, [shape[0]])] if weight_name is not None else []
    return initializers, inputs, nodes, [info(loss_name, elem, [1, 1])]


_loss_l1, _loss_l2, _loss_elastic, _loss_log = (
    functools.partial(_loss, name) for name in ("l1", "l2", "elastic", "log")
)


def strengths(value: float | Mapping[str, float | None]) -> dict[str, float]:
    """Return the strengths of a penalty by kind; a number is the strength of l2."""
    named = value if isinstance(value, Mapping) else {"l2": value}
    return {kind: float(strength) for kind, strength in named.items() if strength is not None}


def _nodes(graph: ir.Graph, public_names: set[str], existing_names: set[str] | None) -> Nodes:
    """Return a graph's constants as initializers, and its other nodes; add their names to `existing_names`."""
    if existing_names is not None:
        existing_names |= used_names(graph) - public_names
    nodes = list(ir.to_proto(graph).node)
    constants = [node for node in nodes if node.op_type == "Constant"]
    for node in constants:
        node.attribute[0].t.name = node.output[0]
    return [node.attribute[0].t for node in constants], [node for node in nodes if node.op_type != "Constant"]
