"""Common helpers for the rewrites of operators from other domains."""

import contextlib
from typing import Any

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.inference import infer
from ortpipe.graph.core.query import called
from ortpipe.graph.core.rewrite import Rewrite

MICROSOFT = "com.microsoft"


class Unranked(Exception):
    """A rewrite needs the rank of a value whose shape has not been inferred yet."""

    def __init__(self, value: Value) -> None:
        super().__init__(value.name)
        self.value = value


def rank_of(value: Value) -> int:
    """Return a value's number of axes; raise Unranked if it is unknown."""
    if value.shape is None:
        raise Unranked(value)
    return value.shape.rank()


def with_ranks(model: ir.Model, rule: Rewrite) -> Rewrite:
    """Return a rule that infers shapes and retries if it lacks one, because inference stops at fused operators."""

    def write(op: Builder, node: Node) -> Any:
        with contextlib.suppress(Unranked):
            return rule(op, node)
        infer(model)
        try:
            return rule(op, node)
        except Unranked as error:
            raise unsupported(node, f"the rank of {error.value.name!r} is unknown") from error

    return write


def inputs_of(node: Node, count: int) -> list[Any]:
    """Return a node's first `count` inputs, None for missing ones."""
    return [*node.inputs[:count], *[None] * (count - len(node.inputs))]


def is_read(value: Value) -> bool:
    """Return whether anything reads a value."""
    return bool(value.uses()) or value.is_graph_output()


def attributes_of(node: Node, *without: str) -> dict[str, Any]:
    """Return a node's attributes except those with one of these prefixes."""
    return {name: a.value for name, a in node.attributes.items() if not (without and name.startswith(without))}


def unsupported(node: Node, why: str) -> ConvertError:
    """Return the error for a form of an operator without a rewrite."""
    return ConvertError(
        "A fused operator of onnxruntime must have an equivalent in ONNX's own operators.",
        got=f"{called(node)}: {why}",
        fix="Take another file of this model, from before it was optimised or quantized; or cut this one so that the "
        "operator is outside (onnx.utils.extract_model).",
    )
