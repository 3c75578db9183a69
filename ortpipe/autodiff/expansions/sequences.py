"""Replace sequences of known length, and optionals that are not empty, by their tensors."""

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.expansions.loops import listed
from ortpipe.errors import DeriveError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.rewrite import Rewrite


def at(op: Builder, node: Node) -> Sequence[Value]:
    """SequenceAt: the tensor at a constant position; a computed one needs all parts of an axis, or equal shapes."""
    sequence, position = node.inputs
    assert sequence is not None and position is not None
    split, place = _made(sequence), _number(position)
    if split is not None and split.op_type == "SplitToSequence" and (len(split.inputs) < 2 or split.inputs[1] is None):
        x, axis = split.inputs[0], split.attributes.get_int("axis", 0)
        keepdims = split.attributes.get_int("keepdims", 1)
        return [op.Gather(x, op.Unsqueeze(position, [0]) if keepdims else position, axis=axis)]
    tensors = elements(op, node, sequence)
    if place is not None and -len(tensors) <= place < len(tensors):
        return [op.Identity(tensors[place])]
    if place is None and tensors and all(query.sizes(t) == query.sizes(tensors[0]) is not None for t in tensors):
        return [op.Gather(op.Concat(*(op.Unsqueeze(t, [0]) for t in tensors), axis=0), position, axis=0)]
    raise _unknown(node, f"{position.name!r}, the place, is not constant" if place is None else f"no place {place}")


def concat(op: Builder, node: Node) -> Sequence[Value]:
    """ConcatFromSequence: Concat; along a new axis, after Unsqueeze."""
    axis, sequence = node.attributes["axis"].as_int(), node.inputs[0]
    assert sequence is not None
    tensors = elements(op, node, sequence)
    if node.attributes.get_int("new_axis", 0):
        tensors = [op.Unsqueeze(t, [axis]) for t in tensors]
    return [op.Concat(*tensors, axis=axis)]


def get_element(op: Builder, node: Node) -> Sequence[Value] | None:
    """OptionalGetElement: the value of the Optional, or the input itself if it is no optional."""
    x = node.inputs[0]
    assert x is not None
    inner = x.type.elem_type if isinstance(x.type, ir.OptionalType) else x.type
    if isinstance(inner, ir.SequenceType):
        return None  # operators that read its elements see through this node
    if not isinstance(x.type, ir.OptionalType):
        return [op.Identity(x)]
    maker = _made(x)
    if maker is None or maker.op_type != "Optional" or not maker.inputs or maker.inputs[0] is None:
        raise _unknown(node, f"whether {x.name!r} holds something is not known")
    return [op.Identity(maker.inputs[0])]


def elements(op: Builder, reader: Node, sequence: Value) -> list[Value]:
    """Return the tensors of a sequence in order; raise DeriveError, naming the reader, if they are unknown."""
    node = _made(sequence)
    if node is None:
        raise _unknown(reader, f"{sequence.name!r} is an input")
    inputs = [x for x in node.inputs if x is not None]
    match node.op_type:
        case "SequenceConstruct":
            return inputs
        case "SequenceEmpty":
            return []
        case "SplitToSequence":
            return _split(op, reader, node)
        case "Optional" | "OptionalGetElement" if inputs:
            return elements(op, reader, inputs[0])
        case "SequenceInsert" | "SequenceErase":
            tensors, insert = elements(op, reader, inputs[0]), node.op_type == "SequenceInsert"
            position = inputs[1 + insert :]
            place = _number(position[0]) if position else len(tensors) - (not insert)
            if place is None:
                raise _unknown(reader, f"{position[0].name!r}, a place, is not constant")
            place += len(tensors) if place < 0 else 0
            return [*tensors[:place], *([inputs[1]] if insert else []), *tensors[place + (not insert) :]]
    raise _unknown(reader, f"{query.called(node)} gives {sequence.name!r}")


def _split(op: Builder, reader: Node, node: Node) -> list[Value]:
    x, split = (*node.inputs, None)[:2]
    axis, size = node.attributes.get_int("axis", 0), None
    if x is not None and x.shape is not None:
        size = x.shape[axis] if isinstance(x.shape[axis], int) else None
    lengths = query.constant(split) if split is not None and not split.is_graph_input() else None
    if (split is not None and lengths is None) or (size is None and (lengths is None or not lengths.ndim)):
        raise _unknown(reader, f"how many parts {query.called(node)} gives is not known")
    if lengths is None or not lengths.ndim:  # parts of equal length, the last one may be shorter
        each = 1 if lengths is None else int(lengths)
        starts = range(0, int(size), each)  # type: ignore[arg-type]
        sizes = [min(each, int(size) - start) for start in starts]  # type: ignore[arg-type]
    else:
        sizes = [int(n) for n in lengths]
    parts = listed(op.Split(x, sizes, axis=axis, outputs=len(sizes)))
    squeezed = split is None and not node.attributes.get_int("keepdims", 1)
    return [op.Squeeze(part, [axis]) for part in parts] if squeezed else parts


def _made(value: Value) -> Node | None:
    """Return the node that creates a sequence or an optional, skipping copies."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def _number(value: Value) -> int | None:
    constant = None if value.is_graph_input() else query.constant(value)
    return None if constant is None else int(constant.item())


def _unknown(node: Node, why: str) -> DeriveError:
    return DeriveError(
        "Sequences have a gradient only if their length and the indices read are known before the model runs.",
        got=f"{query.called(node)}: {why}",
        fix="Take no gradient through it{@freeze}, or end the graph in front of it{@cut}.",
    )


EXPANSIONS: dict[str, Rewrite] = {"ConcatFromSequence": concat, "OptionalGetElement": get_element, "SequenceAt": at}
