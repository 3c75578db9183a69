"""Common helpers for the rewrites of operators from other domains."""

from onnx_ir import Node, Value

from ortpipe.errors import ConvertError
from ortpipe.graph.core.query import called

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


def unsupported(node: Node, why: str) -> ConvertError:
    """Return the error for a form of an operator without a rewrite."""
    return ConvertError(
        "A fused operator of onnxruntime must have an equivalent in ONNX's own operators.",
        got=f"{called(node)}: {why}",
        fix="Take another file of this model, from before it was optimised or quantized; or cut this one so that the "
        "operator is outside (onnx.utils.extract_model).",
    )
