"""Split a loss model's loss into the rows' losses; known from `onnxcustom.utils.onnx_rewriter`."""

import onnx
import onnx_ir as ir

from ortpipe.artifact import read_metadata, without_metadata
from ortpipe.errors import LossError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import finish, parsed
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.operators import having
from ortpipe.graph.importing.opsets import at_opset

SAME = having("view") | {"Add"}  # a term that is added does not depend on the rows


def unreduced_onnx_loss(onx: onnx.ModelProto, output_name: str = "score") -> onnx.ModelProto:
    """Return the model of every row's loss, [N, 1] in row order, from a loss model.

    The sum of the result (the mean, for a loss that averages) is the loss without its penalties, which belong to no
    row. Row weights are included.

    Args:
        onx: a model from `add_loss_output`, or any whose loss is a sum or mean over rows, times constants, plus terms
            that do not depend on the rows; it does not change.
        output_name: the only output (`<output_name>_1` if the model has a value of that name).

    Raises:
        LossError: the loss has another form.

    Where the original (`onnxcustom.utils.onnx_rewriter`) differs: it rejected the log loss, penalties and models with
    another reduction, and did not add up the columns of several outputs.

    >>> import numpy as np, onnx
    >>> from ortpipe.compat import add_loss_output
    >>> from ortpipe.runtime.session import Session
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N,2] X) => (float[N,1] Y) <float[2,1] coef = {1, 2}> { Y = MatMul(X, coef) }''')
    >>> score = unreduced_onnx_loss(add_loss_output(model))
    >>> x, y = np.eye(2, dtype=np.float32), np.zeros((2, 1), np.float32)
    >>> Session(score).run({"X": x, "label": y})
    [array([[1.],
           [4.]], dtype=float32)]
    """
    model = parsed(at_opset(onx))
    graph = model.graph
    loss = query.value(graph, read_metadata(onx).get("loss", onx.graph.output[0].name))
    data = set(query.data_inputs(graph))
    reduction, after = _reduction(loss, data)
    op = Builder(graph, "score")
    terms = op.Reshape(reduction.inputs[0], [0, -1])  # [N, K]
    if reduction.op_type != "ReduceMean":  # sums, but not by a reduction, whose absence users check
        parts = (terms,) if reduction.op_type == "ReduceSum" else (terms, terms)
        rows = op.Einsum(*parts, equation=f"{','.join(['nk'] * len(parts))}->n")
        score = op.Unsqueeze(rows, [1])
    else:
        score = op.ReduceMean(terms, [1])
    for node, place in reversed(after):
        inputs = [score if i == place else x for i, x in enumerate(node.inputs)]
        score = getattr(op, node.op_type)(*inputs)
    count = reduction.inputs[0].shape[0] if reduction.inputs[0] is not None and reduction.inputs[0].shape else None
    score.type, score.shape = loss.type, ir.Shape([count, 1])
    op.rename(score, output_name)
    graph.outputs[:] = [score]
    keep_outputs(model, [str(score.name)])
    return without_metadata(finish(model))


def _reduction(loss: ir.Value, data: set[ir.Value]) -> tuple[ir.Node, list[tuple[ir.Node, int]]]:
    """Return the node that reduces the rows, and the factors after it, last first, with their data operand's index."""

    node, after = loss.producer(), list[tuple["ir.Node", int]]()
    while node is not None and not node.op_type.startswith("Reduce"):
        places = [i for i, x in enumerate(node.inputs) if x is not None and query.ancestors([x]) & data]
        is_factor = node.op_type in ("Div", "Mul", "Neg")
        if len(places) != 1 or not (is_factor or node.op_type in SAME):
            break
        if is_factor:
            after.append((node, places[0]))
        value = node.inputs[places[0]]
        node = value.producer() if value is not None else None
    if node is None or node.op_type not in ("ReduceMean", "ReduceSum", "ReduceSumSquare"):
        actual = "an input" if node is None else f"{node.op_type} at node {node.name or node.outputs[0].name!r}"
        raise LossError(
            "A loss to be split by rows must be a sum or a mean over rows, times constants.",
            got=f"{loss.name!r}, which comes from {actual}",
            fix="Give a model from add_loss_output.",
        )
    return node, after
