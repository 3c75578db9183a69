"""`gradient`: the derivatives of any graph as a graph, without loss, pipeline or rows."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import onnx
import onnx_ir as ir
from onnx_ir import Graph
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from ortpipe.autodiff.expand import expanded, merge_repeated, without_identities
from ortpipe.autodiff.no_rows import allow_no_rows
from ortpipe.autodiff.outputs import named
from ortpipe.autodiff.products import PRODUCTS
from ortpipe.errors import DeriveError, nearest, words
from ortpipe.facts import without_metadata
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import Weights, attach, put_together
from ortpipe.graph.core.check import finish_apart, infer, parsed
from ortpipe.graph.core.edit import keep_outputs, name_dimensions
from ortpipe.graph.files.serial import read_apart
from ortpipe.graph.forms.modes import open_statistics
from ortpipe.graph.importing.batch import plain_dimensions
from ortpipe.graph.importing.branches import take_branches
from ortpipe.graph.importing.functions import called_alone
from ortpipe.graph.importing.lower import lowered

Kind = Literal["vjp", "jvp", "jacobian", "hvp"]
WORDS = {"freeze": "name a value behind it in wrt", "cut": "name a value in front of it in of", "sizes": "shape"}


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
