"""Known bugs of onnxruntime's releases in one table, and the optimizations that sessions disable because of them.

tests/runtime/test_quirks.py checks the installed runtime for each of them. Once no supported release has a quirk,
remove its row and the code that avoids it.
"""

import re
from dataclasses import dataclass

import onnx

from ortpipe.graph.core.protos import graphs


@dataclass(frozen=True)
class Quirk:
    """A bug of onnxruntime on the CPU, and the module of ortpipe that avoids it."""

    operator: str
    form: str  # the inputs or neighbouring nodes that trigger it
    fault: str
    versions: tuple[str, ...]  # the releases in which the quirk was seen
    avoided_in: str


FIRST, FIXED, ALL = ("1.19.2",), ("1.19.2", "1.23.2"), ("1.19.2", "1.23.2", "1.30.0")
QUIRKS = {
    "fused_convolution": Quirk(
        "Conv", "only an inner graph reads it", "fusing an activation ends the process", FIRST, "runtime/quirks.py"
    ),
    "fused_types": Quirk(
        "Mul, MatMul", "x·σ(x), or a transposed operand, in float64", "no fused kernel", FIXED, "runtime/quirks.py"
    ),
    "overwritten_statistics": Quirk(
        "BatchNormalization", "training, next statistics unread", "overwrites its inputs", ALL, "runtime/session.py"
    ),
    "float64_functions": Quirk("Cos, Cosh, Sinh, Tan", "float64", "no kernel", FIXED, "graph/core/doubles.py"),
    "float64_layers": Quirk("Conv, Erf", "float64", "no kernel", ALL, "stages/convert/sources/networks/layers.py"),
    "softplus_overflow": Quirk("Softplus", "float64, large x", "inf in place of x", ALL, "autodiff/table.py"),
    "sigmoid_underflow": Quirk("Sigmoid", "x < −18", "exactly 0", ALL, "autodiff/table.py"),
    "column_pads": Quirk("Col2Im", "one axis with pads", "misplaces columns", FIXED, "graph/importing/lower.py"),
    "counted_pads": Quirk(
        "AveragePool", "ceil_mode, count_include_pad", "counts more than the pads", FIXED, "graph/importing/lower.py"
    ),
    "automatic_pads": Quirk(
        "MaxPool", "auto_pad=SAME with dilations", "ignores the dilations", ALL, "graph/importing/lower.py"
    ),
    "fused_pads": Quirk("Pad", "its result is the kernel of a Conv", "fuses the two", ALL, "autodiff/derivatives.py"),
    "no_axes": Quirk(
        "Reduce…", "noop_with_empty_axes, no axes", "an error, or no square", FIXED, "graph/importing/lower.py"
    ),
    "transposed_axes": Quirk("Pad", "axes, behind a Transpose", "an error", ALL, "graph/importing/lower.py"),
    "removed_dropout": Quirk(
        "Dropout", "training, its mask unread", "removed", ("1.23.2", "1.30.0"), "runtime/session.py"
    ),
    "empty_scan": Quirk("Scan", "no steps", "an error", ALL, "autodiff/products.py"),
    "empty_crop": Quirk("Pad", "negative pads that remove a whole axis", "an error", FIXED, "fast/blocked.py"),
}

_UNFUSED = re.compile(r"Failed to find kernel for com\.microsoft\.\w+\(\d+\) \(node:'[^']*?/?(\w+Fusion)/")


def wrong_optimizations(model: onnx.ModelProto) -> set[str]:
    """Return the optimizations that crash the process (`fused_convolution`) or omit dropout (`removed_dropout`)."""
    wrong = set[str]()
    for inner in graphs(model.graph):
        if any(node.op_type == "Dropout" and len(node.input) > 2 for node in inner.node):
            wrong.add("EliminateDropout")
        images = {node.output[0] for node in inner.node if node.op_type == "Conv"}
        if images and images - {name for node in inner.node for name in node.input} - {y.name for y in inner.output}:
            wrong.add("ConvActivationFusion")
    return wrong


def failing_fusions(error: Exception) -> set[str]:
    """Return the optimizations whose fused nodes have no kernel, according to a load error (`fused_types`)."""
    return set(_UNFUSED.findall(str(error)))
