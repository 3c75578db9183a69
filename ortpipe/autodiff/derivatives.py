"""`gradient`: the derivatives of any graph as a graph, without loss, pipeline or rows.

Training always has rows; only these models take forms that an axis of size 0 may have, too (`allow_no_rows`).
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir import Graph, Node, Value
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from ortpipe.autodiff.expand import expanded
from ortpipe.autodiff.open_shapes import ranked
from ortpipe.autodiff.products import PRODUCTS
from ortpipe.autodiff.rules.linear import transposed
from ortpipe.autodiff.simplify import merge_repeated, without_identities
from ortpipe.autodiff.walk import named
from ortpipe.errors import DeriveError, nearest, words
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import attach, put_together
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import finish_apart
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.inference import infer, parsed
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.protos import Weights, without_metadata
from ortpipe.graph.core.rewrite import Rewrite, rewrite
from ortpipe.graph.core.types import equal
from ortpipe.graph.files.serial import read_apart
from ortpipe.graph.forms.modes import open_statistics
from ortpipe.graph.importing.batch import name_dimensions, plain_dimensions
from ortpipe.graph.importing.functions import called_alone
from ortpipe.graph.importing.lower import lowered
from ortpipe.graph.importing.sizes import take_branches

Kind = Literal["vjp", "jvp", "jacobian", "hvp"]
WORDS = {"freeze": "name a value behind it in wrt", "cut": "name a value in front of it in of", "sizes": "shape"}
MOVES = having("moves") | {"Concat"}


@words(WORDS)
def gradient(
    model: onnx.ModelProto | str | os.PathLike[str],
    of: str | Sequence[str],
    wrt: str | Sequence[str],
    *,
    kind: Kind = "vjp",
    ones: bool = False,
    value: bool = False,
    shape: Mapping[str, Sequence[int | None]] | None = None,
    function: str | None = None,
) -> onnx.ModelProto:
    """Return the derivatives of the values `of` with respect to the values `wrt`, as a model of standard operators.

    With y = f(x) and J = ∂y/∂x, summed over `of` (or over `wrt`) if there are several:

    - "vjp", vector-Jacobian product: `<x>_grad` = Jᵀȳ. The cotangent ȳ is the input `<y>_grad`; it defaults to 1 if y
      has one element. Costs about two runs of f, regardless of the size of x.
    - "jvp", Jacobian-vector product: `<y>_tangent` = J·v. The tangent v is the input `<x>_tangent`. Computed as the
      derivative of Jᵀȳ with respect to ȳ (the double-VJP trick); costs about three runs of f.
    - "jacobian": `<y>_<x>_jacobian` = J, of shape y's shape + x's shape: one VJP for each entry of y, in sequence.
    - "hvp", Hessian-vector product: `<x>_hvp` = ∂⟨Jᵀȳ, v⟩/∂x. Costs about two gradients.

    Args:
        model: a model or its path, not modified: opset 7 or later, inputs of any shape, including scalars.
        of: float outputs or inner values.
        wrt: float inputs, initializers or inner values. An initializer becomes an input with its value as default, and
            so do the running statistics of a training BatchNormalization, which onnxruntime overwrites.
        kind: the derivative to compute.
        ones: fix the cotangent to 1 instead of reading it from an input: the gradient of the sum of all entries of
            `of`. onnxruntime warns about inputs with a default (the cotangent of one element, an initializer) on load.
        value: also return the values `of`, before the derivatives.
        shape: sizes for symbolic input dimensions, None to leave one symbolic; a few operators need static sizes.
        function: differentiate one of the model's local functions, `Name` or `domain:Name`, between its inputs and
            outputs, instead of the graph.

    Raises:
        DeriveError: a name does not exist, is not a float, or is not depended on; or an operator in between has no
            gradient.

    >>> text = '<ir_version: 8, opset_import: ["": 18]> g (float[3] x) => (float y) { s = Mul(x, x) y = ReduceSum(s) }'
    >>> [o.name for o in gradient(onnx.parser.parse_model(text), "y", "x").graph.output]
    ['x_grad']
    """
    if not isinstance(model, onnx.ModelProto | str | os.PathLike):
        rule, fix = "A model is a ModelProto, or the path of an .onnx file.", "For an Artifact give its .model."
        raise DeriveError(rule, got=type(model).__name__, fix=fix)
    parsed, weights = (model, {}) if isinstance(model, onnx.ModelProto) else read_apart(Path(model))
    derivatives, weights_apart = gradient_apart(
        parsed, weights, of, wrt, kind=kind, ones=ones, value=value, shape=shape or {}, function=function
    )
    return put_together(derivatives, weights_apart) if weights_apart else derivatives


def gradient_apart(
    model: onnx.ModelProto,
    weights: Weights,
    of: str | Sequence[str],
    wrt: str | Sequence[str],
    *,
    kind: Kind,
    ones: bool,
    value: bool,
    shape: Mapping[str, Sequence[int | None]],
    function: str | None,
) -> tuple[onnx.ModelProto, Weights]:
    """Do the same for a model whose large weights are kept outside of it; return such a model."""
    if kind not in get_args(Kind):
        raise DeriveError("{key} is one of four.", key="kind", got=repr(kind), fix=nearest(str(kind), get_args(Kind)))
    if ones and kind not in ("vjp", "hvp"):
        rule = "{key} replaces the cotangent, which only vjp and hvp have."
        raise DeriveError(rule, key="ones", got=kind, fix="Leave it out.")
    ofs, wrts = (list(dict.fromkeys([names] if isinstance(names, str) else names)) for names in (of, wrt))
    undifferentiated = model if function is None else called_alone(put_together(model, weights), function)
    differentiated = _opened(undifferentiated, weights if function is None else {}, shape)
    inputs = _check(differentiated.graph, ofs, wrts)
    differentiated = _prepared(differentiated, ofs, wrts)
    by_name = query.values(differentiated.graph)
    results = PRODUCTS[kind](differentiated, [by_name[name] for name in ofs], [by_name[name] for name in wrts], ones)
    outputs = {**({name: by_name[name] for name in ofs} if value else {}), **results}
    differentiated.graph.outputs[:] = named(differentiated.graph, outputs).values()
    opened = [*(name for name in wrts if by_name[name].is_initializer()), *open_statistics(differentiated.graph)]
    _set_inputs(differentiated.graph, list(dict.fromkeys([*inputs, *opened])))
    allow_no_rows(differentiated)
    RemoveUnusedOpsetsPass()(differentiated)
    differentiated.producer_name = "ortpipe"
    return finish_apart(differentiated, deep=True)


def _opened(model: onnx.ModelProto, weights: Weights, shapes: Mapping[str, Sequence[int | None]]) -> ir.Model:
    """Return a model at an opset that has rules, with the given input shapes and those inferred from them."""
    opened = parsed(without_metadata(lowered(plain_dimensions(model), weights)))  # a size of -1 would be counted with
    attach(opened, weights)
    inputs = {str(value.name): value for value in query.data_inputs(opened.graph)}
    for name, sizes in shapes.items():
        if name not in inputs:
            raise DeriveError("{key} names inputs.", key="shape", got=repr(name), fix=nearest(name, inputs))
        shape = inputs[name].shape
        declared = list(shape) if shape is not None else [None] * len(sizes)
        fits = [s is None or not isinstance(d, int) or s == d for d, s in zip(declared, sizes, strict=False)]
        if len(declared) != len(sizes) or not all(fits):
            raise DeriveError(
                "{key} sets the sizes that an input leaves free.",
                key="shape",
                got=f"{list(sizes)} for {name!r} of shape {shape}",
                fix="Give one size per axis, or None to leave an axis unchanged.",
            )
        inputs[name].shape = ir.Shape([d if s is None else s for s, d in zip(sizes, declared, strict=True)])
    name_dimensions(opened)
    infer(opened)
    take_branches(opened)
    return opened


def _check(graph: Graph, of: Sequence[str], wrt: Sequence[str]) -> list[str]:
    """Raise if a value is no float or is not depended on; return the names of the inputs that `of` depends on."""
    values, floats = query.values(graph), [v for v in graph.initializers.values() if v.dtype in query.FLOATS]
    starts = [v for v in query.data_inputs(graph) if v.dtype in query.FLOATS] + floats
    for key, names, likely in (("of", of, graph.outputs), ("wrt", wrt, starts)):
        if not names:
            raise DeriveError("{key} names at least one value.", key=key, got="none", fix="Name one.")
        for name in names:
            if name not in values:
                fix = nearest(name, [str(v.name) for v in likely]) + " Inner values also have names (see ortpipe show)."
                raise DeriveError("{key} names values of the graph.", key=key, got=repr(name), fix=fix)
            if (dtype := values[name].dtype) not in query.FLOATS:
                fix = "Name the float value that it is computed from, or one computed from it."
                rule = "Only floats have derivatives, and only with respect to floats."
                raise DeriveError(rule, key=key, got=f"{name!r} of type {dtype}", fix=fix)
    needed = [query.ancestors([values[name]]) for name in of]
    for name in wrt:
        if not any(values[name] in ancestors for ancestors in needed):
            raise _independent(name, of, [str(v.name) for v in starts if any(v in ancestors for ancestors in needed)])
    for name, ancestors in zip(of, needed, strict=True):
        if not any(values[w] in ancestors for w in wrt):
            raise _independent(", ".join(wrt), [name], [str(v.name) for v in starts if v in ancestors])
    return [str(v.name) for v in query.data_inputs(graph) if any(v in ancestors for ancestors in needed)]


def _independent(name: str, of: Sequence[str], sources: Sequence[str]) -> DeriveError:
    return DeriveError(
        "A value only has derivatives with respect to values that it depends on.",
        got=f"{' and '.join(map(repr, of))} {'does' if len(of) == 1 else 'do'} not depend on {name!r}",
        fix=f"Leave it out. {nearest(name, sources)}",
    )


def _prepared(model: ir.Model, of: Sequence[str], wrt: Sequence[str]) -> ir.Model:
    """Return the part of a model that computes `of`; between `wrt` and `of` only operators with rules remain."""
    by_name = query.values(model.graph)
    inner = [name for name in wrt if by_name[name].producer() is not None]
    keep_outputs(model, list(dict.fromkeys([*of, *inner])))  # an output keeps its name through all simplifications
    model = expanded(model, of, wrt)
    without_identities(model.graph)
    if not inner:  # a value merged with an inner value would be counted with it
        merge_repeated(model)
    return model


def _set_inputs(graph: Graph, names: Sequence[str]) -> None:
    """Order the inputs: the model's own, former initializers, cotangents, tangents."""
    added = [value for value in graph.inputs if value.name not in names]
    needed = query.ancestors(graph.outputs)
    by_name = query.values(graph)
    first = [by_name[n] for n in names if not by_name[n].is_initializer() or by_name[n] in needed]
    graph.inputs[:] = [*first, *(value for value in added if value in needed)]


def allow_no_rows(model: ir.Model) -> None:
    """Rewrite operators that onnxruntime 1.19 rejects, or leaves unset, if an axis has size 0."""
    infer(model)
    rewrite(model.graph, FORMS, nodes=list(model.graph.all_nodes()))


def _gemm(op: Builder, node: Node) -> Sequence[Value] | None:
    """Gemm needs entries to sum over."""
    (a, b, c), attributes = (*node.inputs, None)[:3], node.attributes
    assert a is not None and b is not None
    trans_a, trans_b = attributes.get_int("transA", 0), attributes.get_int("transB", 0)
    if _has_entries(a, 0 if trans_a else 1) or _has_entries(b, 1 if trans_b else 0):
        return None
    alpha, beta = attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0)
    y = _product(op, transposed(op, a, 2) if trans_a else a, transposed(op, b, 2) if trans_b else b)
    y = y if alpha == 1 else y * alpha
    return [y if c is None else y + (c if beta == 1 else c * beta)]


def _mat_mul(op: Builder, node: Node) -> Sequence[Value] | None:
    """MatMul does not repeat a matrix for a batch of 0, and leaves an empty sum unset."""
    a, b = node.inputs
    assert a is not None and b is not None
    sizes_a, sizes_b = query.sizes(a) or [], query.sizes(b) or []
    if len(sizes_a) == 2 < len(sizes_b) and not _has_entries(b, 0):
        batch = op.Concat(op.Shape(b, start=0, end=1), [1] * (len(sizes_b) - 3), op.Shape(a), axis=0)
        return [op.MatMul(op.Expand(a, batch), b)]
    most = max(len(sizes_a), len(sizes_b))
    if not sizes_a or not sizes_b or most == 1 or _has_entries(a, -1) or _has_entries(b, max(-2, -len(sizes_b))):
        return None
    empty_too = most > 2 and any(equal(d, ranked(a)[-1]) for d in node.outputs[0].shape or ())  # as in self-attention
    return None if empty_too else [_product(op, a, b)]


def _conv(op: Builder, node: Node) -> Sequence[Value] | None:
    """Conv without channels leaves its result unset, or hangs if it has pads; add a channel of zeros.

    onnxruntime fuses a Pad with the Conv whose kernel is its result (quirk `fused_pads`), unless auto_pad is VALID: pad
    the images instead.
    """
    x, w, *bias = node.inputs
    assert w is not None
    if _is_padded(w) and "auto_pad" not in node.attributes:
        pads, none = node.attributes.get_ints("pads", []), [0, 0]
        attributes = {name: value for name, value in node.attributes.items() if name != "pads"}
        if any(pads):
            half = len(pads) // 2
            x = op.Pad(x, op.const(np.array([*none, *pads[:half], *none, *pads[half:]])))
        return [op.Conv(x, w, *bias, auto_pad="VALID", **attributes)]
    if _has_entries(x, 1) or _has_entries(w, 1):
        return None
    missing = op.cast(op.Equal(op.Shape(w, start=1, end=2), 0), Value(type=ir.TensorType(ir.DataType.INT64)))
    first = np.eye(2 * ranked(w).rank(), dtype=np.int64)[1]
    x, w = (op.Pad(v, missing * op.const(first * n)) for v, n in ((x, node.attributes.get_int("group", 1)), (w, 1)))
    return [op.Conv(x, w, *bias, **node.attributes)]


def _is_padded(value: Value | None) -> bool:
    """Return whether a value is the result of a Pad, also transposed."""
    node = value.producer() if value is not None else None
    return node is not None and (node.op_type == "Pad" or (node.op_type == "Transpose" and _is_padded(node.inputs[0])))


def _reshape(op: Builder, node: Node) -> Sequence[Value] | None:
    """Reshape reads a size of 0 as "copy", and cannot infer −1 if it copies a 0."""
    (x, shape), sizes = node.inputs, query.sizes(node.inputs[0])
    if node.attributes.get_int("allowzero", 0) or sizes is None:
        return None
    if (to := query.constant(shape)) is None:
        return [op.Reshape(x, shape, allowzero=1)] if _are_sizes(shape) else None
    copied = np.flatnonzero(to == 0).tolist()
    if -1 not in to or all(sizes[i] for i in copied):
        return None
    joined = op.Gather(op.Shape(x), [i for i in range(len(sizes)) if i not in copied])
    size = op.ReduceProd(joined, keepdims=0) / int(to[to > 0].prod())
    return [op.Reshape(x, op.Where(op.const(to < 0), size, op.const(to)))]


def _are_sizes(shape: Value | None) -> bool:
    """Return whether a vector consists of dimensions of values and of positive numbers."""
    node, numbers = shape.producer() if shape is not None else None, query.constant(shape)
    if node is None or numbers is not None:
        return numbers is not None and bool((numbers > 0).all())
    read = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type in ("Shape", "Size") or (node.op_type in MOVES and all(map(_are_sizes, read)))


def _product(op: Builder, a: Value, b: Value) -> Value:
    """Return a · b, or zeros for an empty sum; onnxruntime does not fuse an Add after the Where to a Gemm."""
    return op.Where(op.Greater(op.Size(a), 0), op.MatMul(a, b), op.like(0, a))


def _has_entries(x: Value | None, axis: int) -> bool:
    """Return whether an axis has a static, positive size."""
    sizes = query.sizes(x)
    return bool(sizes and sizes[axis])


FORMS: Mapping[str, Rewrite] = {"Conv": _conv, "Gemm": _gemm, "MatMul": _mat_mul, "Reshape": _reshape}
