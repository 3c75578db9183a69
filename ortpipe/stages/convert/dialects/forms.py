"""What the rewrites of operators from other domains share."""

from onnx_ir import Node, Value

from ortpipe.errors import ConvertError
from ortpipe.graph.query import called

MICROSOFT = "com.microsoft"


class Unranked(Exception):
    """A rewrite needs the rank of a value whose shape inference has not been asked about yet."""

    def __init__(self, value: Value) -> None:
        super().__init__(value.name)
        self.value = value


def rank_of(value: Value) -> int:
    """Return a value's number of axes (Unranked: not known)."""
    if value.shape is None:
        raise Unranked(value)
    return value.shape.rank()


def unsupported(node: Node, why: str) -> ConvertError:
    """Return the error for a form of an operator that no rewrite covers."""
    return ConvertError(
        "onnxruntime's fused operators are written as ONNX's own where their form has an equal there.",
        got=f"{called(node)}: {why}",
        fix="Take another file of this model, from before it was optimised or quantized; or cut this one so that the "
        "operator is outside (onnx.utils.extract_model).",
    )
