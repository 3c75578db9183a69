"""Losses and penalties, written by the stages add_loss and penalty: added to a model, or as nodes for a user's graph.

They are known from `onnxcustom.utils.orttraining_helper`, where the losses as nodes are private,
`onnxcustom.utils.onnx_rewriter` and `experimental_experiment.gradient.loss_helper`.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import DTypeLike

from ortpipe import LOSSES, AddLossConfig, Artifact, Loss, PenaltyConfig, add_loss
from ortpipe import penalty as add_penalty
from ortpipe.compat.models import artifact_of, as_one_element, as_table, shape_inputs
from ortpipe.compat.parameters import check_known
from ortpipe.errors import LossError, PenaltyError, nearest, words
from ortpipe.graph import (
    OPSET,
    Builder,
    Names,
    at_opset,
    infer,
    keep_outputs,
    name_dimensions,
    parsed,
    query,
    used_names,
)
from ortpipe.stages import Scores, charges, without_zip_map

SCORES = {  # score_name → the loss of the catalogue, and how it joins rows
    "squared_error": ("l2", "sum"),
    "l2": ("l2", "sum"),
    "absolute_error": ("l1", "sum"),
    "l1": ("l1", "sum"),
    "elastic": ("elastic", "sum"),
    "log": ("log", "mean"),
}

Penalty = Mapping[str, "float | Mapping[str, float | None]"]


@words({"terms": "penalty"})
def add_loss_output(
    onx: onnx.ModelProto,
    score_name: str = "squared_error",
    loss_name: str = "loss",
    label_name: str = "label",
    weight_name: str | None = None,
    penalty: Penalty | None = None,
    output_index: int | str | None = None,
    **kwargs: Any,
) -> onnx.ModelProto:
    """Return the model with a label input and, in front of the chosen output, its loss.

    With ŷ [N, K] the chosen output, y the label and w the weights (1 without `weight_name`), the loss is

    - `squared_error` or `l2`: Σᵢ wᵢ · Σₖ (ŷᵢₖ − yᵢₖ)²
    - `absolute_error` or `l1`: Σᵢ wᵢ · Σₖ |ŷᵢₖ − yᵢₖ|
    - `elastic`: Σᵢ wᵢ · Σₖ (l1_weight·|ŷᵢₖ − yᵢₖ| + l2_weight·(ŷᵢₖ − yᵢₖ)²), both weights 0.5 by default
    - `log`: (1/N) Σᵢ wᵢ · −[(1 − yᵢ)·log(1 − pᵢ) + yᵢ·log pᵢ] where ŷ = [1 − p, p] is clipped to [eps, 1 − eps] and
      divided by its row's sum; eps is 1e-6 by default

    plus Σ l1·|v| + l2·v² over the penalised tensors v, once per batch.

    Args:
        onx: a model, which does not change. One below opset 18 comes back at 18, one above 21 at 21.
        score_name: one of the above.
        loss_name: the loss output, [1, 1]. A value inside the model with this name, or one of the next two, is renamed;
            an input, an initializer or the chosen output keeps it, and the new value becomes `<name>_1`.
        label_name: the label input: [N, K] of ŷ's float type; for `log` class indices [N, 1], int64, each 0 or 1.
        weight_name: the weight input [N] of ŷ's float type; None: no weights (runtimes that do not check the rank
            accept [N, 1], too).
        penalty: tensor name or glob → {"l1": a, "l2": b}, or a number b for {"l2": b}. Globs choose initializers.
        output_index: the output to score, by index or name; needed if there are several. For the output of a
            ZipMap, the tensor that it zips is used.
        **kwargs: the loss's settings, `l1_weight` and `l2_weight`, or `eps`.

    Returns:
        A model whose outputs are the loss, then the chosen one. Metadata, doc strings and named dimensions survive.

    Raises:
        LossError: an unknown score, an output that does not exist or is not a float tensor of the right
            width.
        ModelError: the model has no equivalent at these opsets.
        PenaltyError: a penalised tensor does not exist.
        ConfigError: an unknown setting, or one out of its range.

    Running the model on a label that is neither 0 nor 1 fails at a node whose name gives the reason.

    Where the originals differ: weights of shape [N] were broadcast to [N, N], which gave (Σ lᵢ)·(Σ wᵢ); an int as
    penalty was rejected; a value named `label` gave a broken model, and the caller's model was changed.

    >>> import numpy as np, onnx
    >>> from ortpipe.runtime.session import Session
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N,2] X) => (float[N,1] Y) <float[2,1] coef = {1, 2}> { Y = MatMul(X, coef) }''')
    >>> loss = add_loss_output(model, weight_name="weight", penalty={"coef": {"l1": 0.5}})
    >>> [i.name for i in loss.graph.input], [o.name for o in loss.graph.output]
    (['X', 'label', 'weight'], ['loss', 'Y'])
    >>> x, y = np.eye(2, dtype=np.float32), np.zeros((2, 1), np.float32)
    >>> Session(loss).run({"X": x, "label": y, "weight": np.array([1, 10], np.float32)})[0]
    array([[42.5]], dtype=float32)
    """
    loss, reduction = _loss(score_name, kwargs)
    onx, _ = without_zip_map(at_opset(onx))
    output = _output(onx, output_index)
    forward = parsed(onx)
    graph = forward.graph
    keep_outputs(forward, [output])
    shape_inputs(graph)
    name_dimensions(forward)
    infer(forward)
    _set_shape(score_name, graph.outputs[0])
    _rename_clashes(graph, {loss_name, label_name, weight_name or label_name}, output)
    shape, table = graph.outputs[0].shape, as_table(graph, graph.outputs[0])
    terms = {key: strengths(value) for key, value in (penalty or {}).items()}
    weights = [str(name) for name, value in graph.initializers.items() if value.dtype in query.FLOATS]
    inputs = [str(i.name) for i in query.data_inputs(graph) if i.name in terms and i.dtype in query.FLOATS]
    task: dict[str, Any] = {"task": "binary", "classes": (0, 1)} if score_name == "log" else {}
    config = AddLossConfig(
        loss,
        "mean" if reduction == "mean" else "sum",
        sample_weight=weight_name is not None,
        loss_name=loss_name,
        label_name=label_name,
        weight_name=weight_name or AddLossConfig.weight_name,
    )
    task |= {"outputs": (output,), "prediction": str(table.name)}
    scored = add_penalty(add_loss(artifact_of(forward, [*weights, *inputs], **task), config), PenaltyConfig(terms))
    facts = dataclasses.replace(scored.facts, parameters=tuple(weights), prediction=output)
    return Artifact(_as_documented(scored, shape), facts).model


def _loss(score_name: str, settings: Mapping[str, Any]) -> tuple[Loss, str]:
    check_known(score_name, SCORES, "score_name must be a known score.", LossError)
    name, reduction = SCORES[score_name]
    return LOSSES[name](**settings), reduction


def _output(onx: onnx.ModelProto, index: int | str | None) -> str:
    """Return the name of the output to score."""
    names = [o.name for o in onx.graph.output]
    if index is None and len(names) != 1:
        rule = "With several outputs, output_index must name the one to compare with the label."
        raise LossError(rule, got=f"outputs {', '.join(names)}", fix="Give output_index its name or its number.")
    place = names.index(index) if index in names else index or 0
    if not isinstance(place, int) or not -len(names) <= place < len(names):
        raise LossError("output_index must be an output of the model.", got=repr(index), fix=nearest(str(index), names))
    chosen = onx.graph.output[place]
    kind = chosen.type.WhichOneof("value")
    if kind != "tensor_type" or ir.DataType(chosen.type.tensor_type.elem_type) not in (
        *query.FLOATS,
        ir.DataType.UNDEFINED,
    ):
        actual = ir.DataType(chosen.type.tensor_type.elem_type).name if kind == "tensor_type" else kind
        rule = "A loss needs an output that is a float tensor."
        raise LossError(rule, got=f"{chosen.name!r}, {actual}", fix="Choose scores or probabilities with output_index.")
    return chosen.name


def _set_shape(score_name: str, prediction: ir.Value) -> None:
    """Set the prediction's shape to the one that the loss assumes, where the model does not declare it."""
    shape: list[int | str | None] = [None, None]
    if prediction.shape is not None and prediction.shape.rank():
        shape = [d if isinstance(d, int) else d.value for d in prediction.shape]
    if score_name == "log":
        if len(shape) != 2 or (isinstance(shape[1], int) and shape[1] != 2):
            raise LossError(
                "The log loss needs two columns of probabilities, [1 − p, p].",
                got=f"{prediction.name!r} of shape {prediction.shape}",
                fix="Join 1 − p and p to one output (Concat), or train with ortpipe.add_loss, which reads one column, "
                "too; for more than two classes use its cross_entropy.",
            )
        shape[1] = 2
    if shape[0] is None or str(shape[0]).startswith("unk__"):  # these need not be the input's rows
        shape[0] = "rows"
    prediction.shape = ir.Shape(shape)


def _rename_clashes(graph: ir.Graph, new_names: set[str], output: str) -> None:
    """Rename inner values of the graph that have one of the new names."""
    names = Names(used_names(graph) | new_names)
    for node in graph:
        for value in node.outputs:
            if value.name in new_names and value.name != output:
                value.name = names.fresh(str(value.name))


def _as_documented(artifact: Artifact, shape: ir.Shape | None) -> ir.Model:
    """Return the loss model with weights [N], labels of the output's shape, class indices checked, a loss [1, 1]."""
    facts, model = artifact.facts, artifact.ir_model()
    graph = model.graph
    op = Builder(graph, "loss", before=graph[0])
    if facts.sample_weight is not None:
        weight = query.value(graph, facts.sample_weight)
        column, uses = op.Reshape(weight, [-1, 1]), [*weight.uses()]
        column.type, column.shape = weight.type, weight.shape
        _read_instead(uses, column)
        assert weight.shape is not None
        weight.shape = ir.Shape([weight.shape[0]])
    if facts.classes is not None:
        label = query.value(graph, str(facts.label))
        uses = [*label.uses()]
        index = op.Max(label, op.Mul(label, -3))  # Gather would read −1 as the last class
        checked = op.Gather(op.const(np.array([0, 1])), index)
        checked.producer().name = f"every {facts.label} must be 0 or 1, the index of its class"
        checked.type, checked.shape = label.type, label.shape
        _read_instead(uses, checked)
    elif shape is not None and shape.rank() != 2:
        label = query.value(graph, str(facts.label))
        table, uses = op.Reshape(label, [0, -1]), [*label.uses()]
        table.type, table.shape, label.shape = label.type, label.shape, shape
        _read_instead(uses, table)
    graph.outputs[:] = [query.value(graph, str(name)) for name in (facts.loss, *facts.outputs)]
    as_one_element(model, str(facts.loss))
    return model


def _read_instead(uses: list[Any], value: ir.Value) -> None:
    for node, place in uses:
        if node is not value.producer():
            node.replace_input_with(place, value)


Nodes = tuple[list[onnx.TensorProto], list[onnx.NodeProto]]
LossNodes = tuple[list[onnx.TensorProto], list[onnx.ValueInfoProto], list[onnx.NodeProto], list[onnx.ValueInfoProto]]


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
        rule, fix = "A penalty needs a strength.", "Give l1 or l2 a positive number, or leave this penalty out."
        raise PenaltyError(rule, got=f"l1={l1}, l2={l2} for {name!r}", fix=fix)
    value = ir.val(name, ir.DataType.from_numpy(np.dtype(dtype)))
    graph = ir.Graph([value], [], nodes=[], opset_imports={"": OPSET}, name="penalty")
    op = Builder(graph, f"penalty_{name}", names=Names({name, *(existing_names or ())}))
    functools.reduce(op.Add, charges(op, value, config.terms[name]))
    return _nodes(graph, {name}, existing_names)


def _loss_as_nodes(
    score: str,
    existing_names: set[str],
    elem: int,
    shape: Sequence[int | None],
    output_name: str,
    label_name: str,
    weight_name: str | None,
    loss_name: str,
    **settings: Any,
) -> LossNodes:
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
    functools.partial(_loss_as_nodes, name) for name in ("l1", "l2", "elastic", "log")
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
