"""The training build's gradient builder (onnxruntime-training 1.19.2), for the operators that it does right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff import between, operands
from ortpipe.errors import DeriveError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, used_names
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.inference import infer
from ortpipe.graph.core.rewrite import Rewrite, replace, rewrite
from ortpipe.graph.core.types import same
from ortpipe.runtime.gradient_builder import Derived, with_yield
from ortpipe.settings import Config

# Operators whose gradients agree with central differences. The builder has none of others, a wrong one, or it dies.
# Kept here, because it is a fact about this builder, not about operators.
# fmt: off
RIGHT = frozenset((
    "Abs", "Add", "Cast", "Clip", "Concat", "Conv", "Cos", "Div", "Erf", "Exp", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND", "Gemm", "GlobalAveragePool", "Identity", "LeakyRelu", "Log", "LogSoftmax", "MatMul",
    "Max", "Min", "Mul", "Neg", "Pad", "Pow", "ReduceMean", "ReduceSum", "Relu", "Reshape",
    "ScatterElements", "ScatterND", "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Tanh",
    "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where",
))
# fmt: on


def _text(name: str, only: str) -> tuple[str, Callable[[Node], bool]]:
    return f"{name}={only}", lambda n: n.attributes.get_string(name, only) == only


def _positive(value: Value | None) -> bool:
    array = query.constant(value)
    return array is not None and bool((array > 0).all())


def _ranks(node: Node) -> list[int]:
    return [x.shape.rank() if x is not None and x.shape is not None else 0 for x in node.inputs]


def _alike(node: Node) -> bool:
    first, *others = [x.shape for x in node.inputs if x is not None]
    return first is not None and all(shape is not None and same(shape, first) for shape in others)


# Operators of which only some forms are right: which these are, in words and as a test
FORMS: dict[str, tuple[str, Callable[[Node], bool]]] = {
    "Conv": _text("auto_pad", "NOTSET"),
    "MatMul": ("two matrices or stacks of them", lambda n: min(_ranks(n)) > 1),
    "Pad": ("mode=constant, every axis", lambda n: _text("mode", "constant")[1](n) and len(n.inputs) < 4),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _text("reduction", "none")),
    "Slice": ("positive, constant steps", lambda n: all(map(_positive, n.inputs[4:]))),
    "Split": ("outputs that are all read", lambda n: all(y.uses() or y.is_graph_output() for y in n.outputs)),
    "Transpose": ("a given perm", lambda n: "perm" in n.attributes),
    "Where": ("inputs of one known shape", _alike),
}


def _rule(formula: Callable[..., Value]) -> Rewrite:
    return lambda op, n: [formula(op, *n.inputs, n.attributes)]


def _product(op: Builder, node: Node) -> list[Value] | None:
    at, flags = node.attributes, {name: node.attributes.get_int(name, 0) for name in ("transA", "transB")}
    return [op.Gemm(*node.inputs, alpha=at.get_float("alpha", 1.0), **flags)] if _ranks(node) == [2, 2] else None


# What gradients of dense networks are made of, for which the training build's own kernels compute in float32 alone
STANDARD: dict[str, Rewrite] = {
    "FusedMatMul": _product,
    "LogSoftmaxGrad_13": _rule(lambda op, dy, y, at: dy - op.Exp(y) * op.ReduceSum(dy, [at.get_int("axis", -1)])),
    "ReluGrad": _rule(lambda op, dy, y, at: dy * op.cast(op.Greater(y, 0), y)),
    "Scale": _rule(lambda op, x, k, at: (op.Div if at.get_int("scale_down", 0) else op.Mul)(x, op.cast(k, x))),
    "SigmoidGrad": _rule(lambda op, dy, y, at: dy * (y * (1 - y))),
    "SoftmaxGrad_13": _rule(lambda op, dy, y, at: (dy - op.ReduceSum(dy * y, [at.get_int("axis", -1)])) * y),
    "TanhGrad": _rule(lambda op, dy, y, at: dy * (1 - y * y)),
}


def differentiable(model: ir.Model, outputs: Sequence[str], sources: Sequence[str]) -> list[Node]:
    """Return the nodes between the sources and the outputs; one whose gradient is wrong or missing is rejected."""
    infer(model)
    nodes = between(model.graph, outputs, sources)
    for node in [*nodes, *(n for n in model.graph if n.op_type == "Transpose")]:  # without a perm it dies of any
        forms, fits = FORMS.get(node.op_type, ("", lambda n: True))
        listed = node.op_type in RIGHT and not node.domain
        if not listed or not fits(node):
            gradient = f"right only for {forms}" if listed else "missing or wrong"
            raise DeriveError(
                "The ort engine differentiates only what the training build does right.",
                got=f"{node.op_type} at node {node.name or node.outputs[0].name!r}, whose gradient is {gradient}",
                fix="Choose derive=native, or freeze the parameters in front of it ({@derive.frozen}).",
            )
    return nodes


@dataclass(frozen=True)
class Ort(Config):
    """onnxruntime-training's OrtModuleGraphBuilder (1.19.2, opset ≤ 21).

    Attributes:
        yield_op: leave the builder's YieldOp, which hands the outputs out and takes their gradients in, for an agent.
    """

    yield_op: bool = False

    def __call__(self, model: ir.Model, loss: str, parameters: Sequence[str], inputs: Sequence[str]) -> Derived:
        """See `Engine`. An operator without a gradient, or with a wrong one, raises DeriveError."""
        nodes = differentiable(model, [loss], [*parameters, *inputs])
        read = {x.name for node in nodes for x in operands(node) if x is not None}  # it fails on others
        trained, fed = ([name for name in names if name in read] for names in (parameters, inputs))
        part = model.clone()
        keep_outputs(part, [loss])
        result, gradients = with_yield(part, trained, fed, used_names(model.graph) - used_names(part.graph))
        infer(result)  # the builder drops some types
        add_outputs(result, model, [str(o.name) for o in model.graph.outputs if o.name != loss])
        total = query.value(result.graph, loss)
        total.shape = ir.Shape([])  # lost where the builder could not infer it
        [node] = [n for n in result.graph if n.op_type == "YieldOp"]
        replace(node, [Builder(result.graph, "derive", before=node).like(1, total)])
        result.graph.outputs.insert(0, total)
        rewrite(result.graph, STANDARD, "com.microsoft")
        return result, gradients

    def yielding(self, model: ir.Model, target: Any, choice: Any, checkpointing: object) -> dict[str, Any]:
        """Return the training build's graph as it is, and no facts about gradients: no other stage can run it."""
        if checkpointing:
            rule = "A training agent keeps every value that its backward pass reads."
            fix = "Leave out {key}, or engine.yield_op."
            raise DeriveError(rule, key="checkpointing", got="engine.yield_op=true", fix=fix)
        keep_outputs(model, target.outputs)
        differentiable(model, target.outputs, [*choice.parameters, *choice.inputs])
        model, _ = with_yield(model, choice.parameters, choice.inputs, ())
        return {"model": ir.to_proto(model), "loss": None, "outputs": (), "parameters": tuple(choice.parameters)}


def add_outputs(model: ir.Model, source: ir.Model, outputs: Sequence[str]) -> None:
    """Add outputs to a model; the nodes that it lacks for them are moved from `source`.

    Values of the same name must be equal in both models.
    """
    graph, present = model.graph, query.values(model.graph)
    source_values = query.values(source.graph)
    needed = {source_values[name] for name in outputs if name not in present}
    missing = []
    for node in reversed(source.graph):
        if not needed.isdisjoint(node.outputs):
            missing.append(node)
            read = (*(x for x in node.inputs if x is not None), *query.captured(node))
            needed.update(x for x in read if x.name not in present)
    source.graph.outputs.clear()
    for name, value in source_values.items():
        if name in present:
            value.replace_all_uses_with(present[name])
        elif value in needed and value.is_initializer():
            del source.graph.initializers[name]
            graph.register_initializer(value)
        elif value in needed and value.producer() is None:
            source.graph.inputs.remove(value)
            graph.inputs.append(value)
    source.graph.remove(missing)
    graph.extend(reversed(missing))
    graph.outputs.extend(v for v in (present.get(n) or source_values[n] for n in outputs) if v not in graph.outputs)
    graph.opset_imports.update({d: v for d, v in source.opset_imports.items() if d not in graph.opset_imports})
