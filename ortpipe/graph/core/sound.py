"""Validate a model from elsewhere before anything reads it: its names, tensors and local functions."""

import collections
import math
import re
from collections.abc import Collection, Iterator

import onnx
from google.protobuf.message import Message
from onnx.helper import tensor_dtype_to_np_dtype

from ortpipe.errors import ModelError
from ortpipe.graph.core.apart import without_weights
from ortpipe.graph.core.protos import graphs, is_heavy

MOST_NODES = 1_000_000  # of a graph with its local functions inlined
MOST_CALLS = 100  # nested calls of functions
FIX = "Download or export the model again; if it comes from somebody else, do not trust it."
NARROW = re.compile(r"U?(?:INT|FLOAT)([246])(?!\d)")  # types of less than a byte, such as INT4 and FLOAT6E2M3
BITS = {  # of one element
    code: int(narrow[1]) if (narrow := NARROW.match(name)) else 8 * tensor_dtype_to_np_dtype(code).itemsize
    for name, code in onnx.TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING")
}


def check_sound(model: onnx.ModelProto, apart: Collection[str] = ()) -> None:
    """Raise ModelError for a malformed model, in one pass over its fields.

    A model is malformed if a string is not UTF-8, a tensor's type, dimensions and bytes do not agree, two values
    have one name, or local functions are recursive or too large. Tensors named in `apart` have their values elsewhere.
    """
    for tensor in _tensors(model):
        if tensor.name not in apart:
            _check_tensor(tensor)
    for graph in graphs(model.graph):
        _check_names(graph)
    _check_functions(model)


def check_valid(model: onnx.ModelProto, apart: Collection[str] = ()) -> None:
    """Raise ModelError for a model that is malformed or that onnx.checker rejects."""
    check_sound(model, apart)
    try:
        onnx.checker.check_model(_with_ranks(without_weights(model) if apart or is_heavy(model) else model))
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        actual = str(error).strip()
        raise ModelError("A model must pass onnx.checker.", got=actual, fix=FIX) from error


def _with_ranks(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give outputs without a shape an empty one, which onnx.checker requires; inference finds the real one later."""
    types = [o.type.tensor_type for o in model.graph.output if o.type.HasField("tensor_type")]
    if all(t.HasField("shape") for t in types):
        return model
    shaped = onnx.ModelProto()
    shaped.CopyFrom(model)
    for output in shaped.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.shape.SetInParent()
    return shaped


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a message, and check every string."""
    for field, value in [] if isinstance(message, onnx.TensorProto) else message.ListFields():
        scalar = field.type != field.TYPE_MESSAGE  # a sequence's elem_type is a message
        if scalar and field.name in ("elem_type", "key_type") and value not in (0, onnx.TensorProto.STRING, *BITS):
            raise ModelError("A value's type must be one of ONNX's.", got=value, fix=FIX)
        if field.type == field.TYPE_STRING:
            _check_text(*([value] if isinstance(value, str | bytes) else value))
        elif field.type == field.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _tensors(inner)
    if isinstance(message, onnx.AttributeProto) and message.type in (message.STRING, message.STRINGS):
        _check_text(message.s, *message.strings)
    if isinstance(message, onnx.TensorProto):  # without a copy of its bytes
        _check_text(message.name, message.doc_string, *(e.value for e in message.external_data), *message.string_data)
        yield message


def _check_text(*texts: str | bytes) -> None:
    for text in (t for t in texts if isinstance(t, bytes)):  # strings that protobuf cannot decode are bytes, too
        try:
            text.decode()
        except UnicodeDecodeError as error:
            rule = "Every name and string in a model must be UTF-8."
            raise ModelError(rule, got=f"{text!r}"[:200], fix=FIX) from error


def _check_tensor(tensor: onnx.TensorProto) -> None:
    description = f"tensor {tensor.name!r} of dimensions {list(tensor.dims)}"
    if tensor.data_type != tensor.STRING and tensor.data_type not in BITS:
        raise ModelError("A tensor's type must be one of ONNX's.", got=f"{description}: {tensor.data_type}", fix=FIX)
    if any(d < 0 for d in tensor.dims):
        raise ModelError("A tensor's dimensions must not be negative.", got=description, fix=FIX)
    if tensor.data_location == tensor.EXTERNAL:
        return
    bits, count = BITS.get(tensor.data_type, 0), math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        unit, actual, needed = "bytes", len(tensor.raw_data), math.ceil(count * bits / 8)
    else:
        name = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        unit, actual, needed = f"entries of {name}", len(getattr(tensor, name)), count
        if tensor.data_type in (tensor.COMPLEX64, tensor.COMPLEX128):
            needed = 2 * count
        elif bits < 8:
            needed = math.ceil(count * bits / 8) if bits else count
    if actual != needed or (tensor.data_type == tensor.STRING and tensor.HasField("raw_data")):
        raise ModelError(
            "A tensor must have as many bytes as its type and dimensions need.",
            got=f"{description}: {actual:,} {unit} instead of {needed:,}",
            fix=FIX,
        )


def _check_names(graph: onnx.GraphProto) -> None:
    """Raise ModelError for a name of two values: runtimes silently choose one of them."""
    if graph.sparse_initializer:
        actual = f"graph {graph.name!r}: {len(graph.sparse_initializer)}"
        raise ModelError(
            "Sparse initializers are not supported.",
            got=actual,
            fix="Write them as dense initializers (onnx.numpy_helper.from_array).",
        )
    initializers = collections.Counter(t.name for t in graph.initializer)
    values = collections.Counter(i.name for i in graph.input)  # before IR 4, initializers were inputs too
    values.update(name for node in graph.node for name in node.output if name)
    for counts, what in ((initializers, "initializers"), (values, "values")):
        if twice := [name for name, count in counts.items() if count > 1]:
            actual = f"{counts[twice[0]]} {what} called {twice[0]!r}"
            raise ModelError("A name must belong to one value only.", got=actual, fix=FIX)
    outputs = {name for node in graph.node for name in node.output}
    if shared := sorted(outputs & set(initializers)):
        actual = f"{shared[0]!r} is an initializer and a node's output"
        raise ModelError("A name must belong to one value only.", got=actual, fix=FIX)
    if "" in values or "" in initializers:
        raise ModelError("Inputs and initializers must have names.", got="an empty one", fix=FIX)


def _check_functions(model: onnx.ModelProto) -> None:
    """Raise ModelError for local functions that are recursive, or whose inlining yields millions of nodes."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}
    calling: list[tuple[str, str, str]] = []

    def size(body: onnx.GraphProto | onnx.FunctionProto) -> int:
        keys = [(node.domain, node.op_type, node.overload) for graph in graphs(body) for node in graph.node]
        return sum(called(key) if key in functions else 1 for key in keys)

    def called(key: tuple[str, str, str]) -> int:
        if key in calling:
            actual = " → ".join(f"{domain}.{name}" for domain, name, _ in (*calling, key))
            raise ModelError("Local functions must not call themselves.", got=actual, fix=FIX)
        if len(calling) > MOST_CALLS:
            actual = f"more, starting from {calling[0][1]!r}"
            raise ModelError(f"Calls of local functions must nest at most {MOST_CALLS} deep.", got=actual, fix=FIX)
        if key not in sizes:
            calling.append(key)
            sizes[key] = size(functions[key])
            calling.pop()
        return sizes[key]

    nodes = size(model.graph)
    for key in functions:  # uncalled ones, too
        called(key)
    if nodes > MOST_NODES:
        actual = f"{nodes:,} nodes from {len(model.functions)} functions in a file of {model.ByteSize():,} bytes"
        raise ModelError(
            f"A model must have at most {MOST_NODES:,} nodes with its functions inlined.", got=actual, fix=FIX
        )
