"""What a model from elsewhere must be before anything reads it: names, tensors and functions that make sense."""

import collections
import math
from collections.abc import Collection, Iterator

import onnx
import onnx_ir as ir
from google.protobuf.message import Message

from ortpipe.errors import ModelError
from ortpipe.graph.apart import without_weights
from ortpipe.graph.query import graphs

HEAVY = 2**20  # bytes of weights, from which on nothing that is checked holds them
LARGE = 2**31 - 2**20  # protobuf stops at 2 GiB; above this, weights go beside the model
MOST_NODES = 1_000_000  # of a graph whose local functions are inlined
MOST_CALLS = 100  # of functions inside each other
FIX = "Download or export the model again; if it comes from somebody else, do not trust it."
WITHOUT_BITS = (ir.DataType.UNDEFINED, ir.DataType.STRING)
BITS = {kind.value: int(8 * kind.itemsize) for kind in ir.DataType if kind not in WITHOUT_BITS}  # of one element


def check_sound(model: onnx.ModelProto, apart: Collection[str] = ()) -> None:
    """Refuse a model that readers stumble over, in one pass over its fields.

    That is: a name is no UTF-8, a tensor's type, dimensions and bytes do not agree, a name stands for two values, or
    local functions call themselves or grow beyond bounds. Tensors of the names `apart` have their values elsewhere.
    """
    for tensor in _tensors(model):
        if tensor.name not in apart:
            _check_tensor(tensor)
    for graph in graphs(model.graph):
        _check_names(graph)
    _check_functions(model)


def weigh(model: onnx.ModelProto) -> int:
    """Return how many bytes the initializers hold, those of inner graphs too, from their dimensions."""
    tensors = (tensor for graph in graphs(model.graph) for tensor in graph.initializer)
    return sum(math.prod(t.dims) * onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in tensors)


def is_heavy(model: onnx.ModelProto) -> bool:
    """Say whether a model is checked without its weights."""
    return weigh(model) > min(HEAVY, LARGE)


def is_large(model: onnx.ModelProto) -> bool:
    """Say whether a model needs files beside it; of one that is too long, protobuf cannot even say how long it is."""
    return weigh(model) > LARGE or model.ByteSize() > LARGE


def check_valid(model: onnx.ModelProto, apart: Collection[str] = ()) -> None:
    """Refuse a model that is not sound, or that onnx.checker refuses as given: a value read before it is made …"""
    check_sound(model, apart)
    try:
        onnx.checker.check_model(_with_ranks(without_weights(model) if apart or is_heavy(model) else model))
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        got = str(error).strip()
        raise ModelError("A model must pass onnx.checker.", got=got, fix=FIX) from error


def _with_ranks(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give outputs without a shape some, which onnx.checker wants of every output: inference finds it later."""
    types = [o.type.tensor_type for o in model.graph.output if o.type.HasField("tensor_type")]
    if all(t.HasField("shape") for t in types):
        return model
    own = onnx.ModelProto()
    own.CopyFrom(model)
    for output in own.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.shape.SetInParent()
    return own


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield every tensor, and read every text on the way."""
    for field, value in [] if isinstance(message, onnx.TensorProto) else message.ListFields():
        scalar = field.type != field.TYPE_MESSAGE  # of a sequence it is a type of its own
        if scalar and field.name in ("elem_type", "key_type") and value not in (0, onnx.TensorProto.STRING, *BITS):
            raise ModelError("A value's type is one that ONNX has.", got=value, fix=FIX)
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
    for text in (t for t in texts if isinstance(t, bytes)):  # protobuf gives as bytes what it cannot decode, too
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise ModelError("Every name and text in a model is UTF-8.", got=f"{text!r}"[:200], fix=FIX) from error


def _check_tensor(tensor: onnx.TensorProto) -> None:
    said = f"tensor {tensor.name!r} of dimensions {list(tensor.dims)}"
    if tensor.data_type != tensor.STRING and tensor.data_type not in BITS:
        raise ModelError("A tensor's type is one that ONNX has.", got=f"{said}: {tensor.data_type}", fix=FIX)
    if any(d < 0 for d in tensor.dims):
        raise ModelError("A tensor's dimensions are not negative.", got=said, fix=FIX)
    if tensor.data_location == tensor.EXTERNAL:
        return
    bits, count = BITS.get(tensor.data_type, 0), math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        unit, got, needed = "bytes", len(tensor.raw_data), math.ceil(count * bits / 8)
    else:
        name = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        unit, got, needed = f"entries of {name}", len(getattr(tensor, name)), count
        if tensor.data_type in (tensor.COMPLEX64, tensor.COMPLEX128):
            needed = 2 * count
        elif bits < 8:
            needed = math.ceil(count * bits / 8) if bits else count
    if got != needed or (tensor.data_type == tensor.STRING and tensor.HasField("raw_data")):
        raise ModelError(
            "A tensor has as many bytes as its type and dimensions need.",
            got=f"{said}: {got:,} {unit} instead of {needed:,}",
            fix=FIX,
        )


def _check_names(graph: onnx.GraphProto) -> None:
    """Refuse a name that stands for two values: runtimes choose one of them without a word."""
    if graph.sparse_initializer:
        got = f"graph {graph.name!r}: {len(graph.sparse_initializer)}"
        raise ModelError(
            "Sparse initializers are not supported.",
            got=got,
            fix="Write them as dense initializers (onnx.numpy_helper.from_array).",
        )
    held = collections.Counter(t.name for t in graph.initializer)
    values = collections.Counter(i.name for i in graph.input)  # before IR 4, initializers were inputs too
    values.update(name for node in graph.node for name in node.output if name)
    for counts, what in ((held, "initializers"), (values, "values")):
        if twice := [name for name, count in counts.items() if count > 1]:
            got = f"{counts[twice[0]]} {what} called {twice[0]!r}"
            raise ModelError("A name stands for one value.", got=got, fix=FIX)
    made = {name for node in graph.node for name in node.output}
    if both := sorted(made & set(held)):
        got = f"{both[0]!r} is an initializer and a node's output"
        raise ModelError("A name stands for one value.", got=got, fix=FIX)
    if "" in values or "" in held:
        raise ModelError("Inputs and initializers have names.", got="an empty one", fix=FIX)


def _check_functions(model: onnx.ModelProto) -> None:
    """Refuse local functions that call themselves, or that a few bytes turn into millions of nodes."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}
    calling: list[tuple[str, str, str]] = []

    def size(body: onnx.GraphProto | onnx.FunctionProto) -> int:
        keys = [(node.domain, node.op_type, node.overload) for graph in graphs(body) for node in graph.node]
        return sum(called(key) if key in functions else 1 for key in keys)

    def called(key: tuple[str, str, str]) -> int:
        if key in calling:
            got = " → ".join(f"{domain}.{name}" for domain, name, _ in (*calling, key))
            raise ModelError("Local functions do not call themselves.", got=got, fix=FIX)
        if len(calling) > MOST_CALLS:
            got = f"more than {MOST_CALLS} from {calling[0][1]!r} on"
            raise ModelError("Local functions call each other only so deep.", got=got, fix=FIX)
        if key not in sizes:
            calling.append(key)
            sizes[key] = size(functions[key])
            calling.pop()
        return sizes[key]

    nodes = size(model.graph)
    for key in functions:  # and those that nobody calls
        called(key)
    if nodes > MOST_NODES:
        got = f"{nodes:,} nodes from {len(model.functions)} functions in a file of {model.ByteSize():,} bytes"
        raise ModelError(f"A model has at most {MOST_NODES:,} nodes when its functions are inlined.", got=got, fix=FIX)
