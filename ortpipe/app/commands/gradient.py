"""ortpipe gradient: write the derivatives of any ONNX model as an ONNX model."""

import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx

from ortpipe.app.compose import Parser
from ortpipe.app.local_path import output_file, reject_existing
from ortpipe.app.table import aligned
from ortpipe.autodiff import gradient_apart
from ortpipe.errors import words
from ortpipe.graph import read_apart, type_of, write_atomically

ABOUT = """Write the derivatives of a model as an ONNX model of standard operators, which any onnxruntime
loads: of any output or inner value, with respect to any input, initializer or inner value. No loss,
rows or config are needed.

By default a vector-Jacobian product: the gradient of y in x is <x>_grad = Σ <y>_grad · ∂y/∂x, where
the cotangent <y>_grad is an input, by default 1 for a y of one element. It costs about two runs of
the model."""
EXAMPLES = (
    "ortpipe gradient model.onnx --of y --wrt X --output gradient.onnx",
    "ortpipe gradient model.onnx --of y --wrt X --jacobian --output jacobian.onnx",
)
WORDS = {  # arguments of `gradient` → options
    **{name: f"--{name}" for name in ("of", "ones", "shape", "wrt")},
    "cut": "name a value in front of it in --of",
    "freeze": "name a value behind it in --wrt",
    "sizes": "--shape",
}


@words(WORDS)
def run(arguments: Sequence[str]) -> None:
    """Write one gradient model."""
    options = _parser().read(arguments)
    output = output_file(options.output, "--output", ".onnx")
    reject_existing(output, force=options.force)
    model, weights = read_apart(Path(options.model))
    value_names = {name for node in model.graph.node for name in node.output} | {v.name for v in model.graph.input}
    of, wrt = (
        _names(names, value_names | {t.name for t in model.graph.initializer}) for names in (options.of, options.wrt)
    )
    derivatives, weights_apart = gradient_apart(
        model,
        weights,
        of,
        wrt,
        kind=options.kind,
        ones=options.ones,
        value=options.value,
        shape=dict(map(_shape, options.shape)),
        function=options.function,
    )
    write_atomically(derivatives, output.parent, output.name, weights_apart)
    print("\n".join((*_lines(derivatives), f"file     {output}")))


def _parser() -> Parser:
    """Return the parser of the arguments."""
    parser = Parser("gradient", ABOUT, EXAMPLES, overrides=False)
    parser.add_argument("model", metavar="MODEL.onnx", help="the model; it is not changed")
    for flag, text in (
        ("--of", "the values whose derivatives are taken: outputs or inner values"),
        ("--wrt", "the values with respect to which: inputs, initializers or inner values"),
    ):
        parser.add_argument(flag, required=True, action="append", metavar="NAME,…", help=text)
    parser.add_argument("--output", required=True, metavar="NEW.onnx", help="where the derivatives are written")
    parser.add_argument("--force", action="store_true", help="overwrite an existing output")
    parser.add_argument("--value", action="store_true", help="output the values of --of too")
    parser.add_argument(
        "--ones", action="store_true", help="no cotangent inputs: the gradient of the sum of all entries of --of"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="INPUT=N,3,64,64", help="sizes that the model leaves free"
    )
    parser.add_argument("--function", metavar="NAME", help="differentiate this local function instead of the graph")
    kind = parser.add_mutually_exclusive_group()
    for name, text in (
        ("jacobian", "<y>_<x>_jacobian = ∂y/∂x, of y's shape and then x's; a gradient for each entry of y"),
        ("jvp", "<y>_tangent = Σ ∂y/∂x · <x>_tangent, a Jacobian-vector product; about three runs of the model"),
        ("hvp", "<x>_hvp, the Hessian times <x>_tangent; about two gradients"),
    ):
        kind.add_argument(f"--{name}", dest="kind", action="store_const", const=name, default="vjp", help=text)
    return parser


def _names(lists: Iterable[str], value_names: Collection[str]) -> list[str]:
    """Split the lists of names at commas, except within a name of the model, which may contain commas."""
    return [name for names in lists for name in ([names] if names in value_names else names.split(",")) if name]


def _shape(text: str) -> tuple[str, list[int | None]]:
    name, _, sizes = text.rpartition("=")
    return name, [int(size) if size.strip().isdigit() else None for size in sizes.split(",")]


def _lines(model: onnx.ModelProto) -> list[str]:
    """Return the table of the gradient model's inputs and outputs, and its number of nodes."""
    graph, initializers = model.graph, {t.name: t for t in model.graph.initializer}
    rows = [["inputs", v.name, type_of(v), _default(initializers.get(v.name))] for v in graph.input]
    rows += [["outputs", v.name, type_of(v), ""] for v in graph.output]
    rows += [["nodes", f"{len(graph.node):,}", "", ""]]
    titles = [row[0] for row in rows]
    return aligned([[f"{'' if i and titles[i - 1] == row[0] else row[0]:7}", *row[1:]] for i, row in enumerate(rows)])


def _default(tensor: onnx.TensorProto | None) -> str:
    if tensor is None:
        return ""
    is_one = math.prod(tensor.dims) == 1 and np.all(onnx.numpy_helper.to_array(tensor) == 1)
    return "by default 1" if is_one else "by default the model's"
