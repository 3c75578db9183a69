"""onnxruntime's transformer operators: embeddings, rotary positions and attention.

Shapes: B rows, S queries, T keys and values (past ones first), N heads of H; masks are int32.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.rewrite import Rewrite
from ortpipe.stages.convert.dialects.forms import inputs_of, is_read, rank_of, unsupported
from ortpipe.stages.convert.dialects.layers import add, layer_normalization

MASKED = -10000.0  # the default value that a mask adds


def embed_layer_normalization(op: Builder, node: Node) -> list[Value | None]:
    """LayerNormalization of word[ids] + position[places] + segment[segments]; the ones in each mask; the sum."""
    ids, segments, words, positions, segment, gamma, beta, mask, places = inputs_of(node, 9)
    position = op.Gather(positions, places) if places is not None else op.Slice(positions, [0], _size(op, ids, 1), [0])
    total = add(op.Gather(words, ids) + position, None if segment is None else op.Gather(segment, segments))
    count = None
    if len(node.outputs) > 1 and is_read(node.outputs[1]):
        if mask is None:
            count = op.Expand(op.const(np.int32(0)), _size(op, ids, 0))
        else:
            count = op.ReduceSum(op.Cast(op.Equal(mask, 1), to=ir.DataType.INT32), [1], keepdims=0)
    return [layer_normalization(op, node, total, gamma, beta)[0], count, total][: len(node.outputs)]


def rotary_embedding(op: Builder, node: Node) -> list[Value]:
    """(x₁, x₂) → (x₁·cos − x₂·sin, x₁·sin + x₂·cos) of the halves, or neighbours, of each head."""
    x, places, cosines, sines = inputs_of(node, 4)
    get = node.attributes.get_int
    size, heads, rank = get("rotary_embedding_dim", 0), get("num_heads", 0), rank_of(x)
    if get("is_packed_batching", 0):
        raise unsupported(node, "is_packed_batching=1")
    head = [heads, -1] if size else [-1, _last(cosines, node) * 2]
    split = op.Reshape(x, [0, 0, *head]) if rank == 3 else x
    if rank_of(places) == 1:  # position of the first token
        places = op.Unsqueeze(_places(op, x, rank - 2 if rank == 4 else 1) + places, [0])
    cos, sin = (op.Unsqueeze(op.Gather(table, places), [2 if rank == 3 else 1]) for table in (cosines, sines))
    y = _rotate(op, split, cos, sin, size // 2 or _last(cosines, node), get("interleaved", 0), partly=bool(size))
    return [op.Reshape(y, [0, 0, -1]) if rank == 3 else y]


def _rotate(op: Builder, x: Value, cos: Any, sin: Any, half: int, interleaved: int, *, partly: bool) -> Value:
    """Rotate heads [.., .., .., H] by their angles; if `partly`, only the first 2 · half numbers."""
    turned = op.Slice(x, [0], [2 * half], [-1]) if partly else x
    if interleaved:
        pairs = op.Reshape(turned, [0, 0, 0, -1, 2])
        first, second = (_slice(op, pairs, i, -1) for i in (0, 1))
    else:
        first, second = (op.Slice(turned, [start], [start + half], [-1]) for start in (0, half))
    rotated = [first * cos - second * sin, first * sin + second * cos]
    if interleaved:
        y = op.Reshape(op.Concat(*(op.Unsqueeze(part, [-1]) for part in rotated), axis=-1), [0, 0, 0, -1])
    else:
        y = op.Concat(*rotated, axis=-1)
    return op.Concat(y, op.Slice(x, [2 * half], [np.iinfo(np.int64).max], [-1]), axis=-1) if partly else y


def attention(op: Builder, node: Node) -> list[Value]:
    """Attention of x · weights + bias with itself."""
    x, weights, bias, mask, past, attention_bias, length = inputs_of(node, 7)
    get = node.attributes.get_int
    if get("do_rotary", 0) or get("past_present_share_buffer", 0) or length is not None:
        raise unsupported(node, "do_rotary or past_present_share_buffer")
    heads, sizes = get("num_heads"), list(node.attributes.get_ints("qkv_hidden_sizes") or [])
    sizes = sizes or [_last(weights, node) // 3] * 3
    projected = add(op.MatMul(x, weights), bias)
    q, k, v = (_heads(op, part, heads) for part in op.Split(projected, sizes, axis=-1, outputs=3))
    past_key, past_value = (None, None) if past is None else (_slice(op, past, i, 0) for i in (0, 1))
    k, v = _behind(op, past_key, k), _behind(op, past_value, v)
    y = _attend(op, node, q, k, v, sizes[0] // heads, mask, attention_bias, past_key)
    if len(node.outputs) == 1:
        return [y]
    return [y, op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0)]


def multi_head_attention(op: Builder, node: Node) -> list[Value]:
    """Attention of queries, keys and values, packed or three inputs, plus their biases."""
    query, key, value, bias, mask, attention_bias, past_key, past_value, *more = inputs_of(node, 10)
    if any(x is not None for x in more) or len(node.outputs) > 3:
        raise unsupported(node, "a shared cache, or scores as an output")
    heads, packed = node.attributes.get_int("num_heads"), rank_of(query) == 5
    size = _last(query, node) // (1 if packed else heads)
    ranks = [rank_of(x) if x is not None else 0 for x in (query, key, value)]
    parts: list[Any] = [query, key, value]
    if packed:  # [B, T, N, 3, H]
        parts = [op.Reshape(_slice(op, query, i, 3), [0, 0, -1]) for i in range(3)]
    elif ranks[1] == 5:  # [B, T, N, 2, H]
        parts[1:] = (op.Reshape(_slice(op, key, i, 3), [0, 0, -1]) for i in range(2))
    if None in parts:
        raise unsupported(node, "no key or no value")
    if bias is not None:
        sizes = [heads * size] * 2
        biases = op.Split(bias, [*sizes, _last(bias, node) - sum(sizes)], axis=0, outputs=3)
        parts = [x if rank == 4 else x + b for x, rank, b in zip(parts, ranks, biases, strict=True)]
    # keys and values of four axes are already split into heads, as for cross attention
    q, k, v = (x if rank == 4 else _heads(op, x, heads) for x, rank in zip(parts, ranks, strict=True))
    k, v = _behind(op, past_key, k), _behind(op, past_value, v)
    return [_attend(op, node, q, k, v, size, mask, attention_bias, past_key), k, v][: len(node.outputs)]


def group_query_attention(op: Builder, node: Node) -> list[Value]:
    """Causal attention in which several query heads share a key and value head; without padding."""
    query, key, value, *pasts, _, _, cosines, sines, places, added_bias = inputs_of(node, 11)
    more, get = node.inputs[11:], node.attributes.get_int
    problems = {"a cache in integers": get("kv_cache_bit_width", 0), "smooth_softmax": get("smooth_softmax", 0)}
    problems |= {"causal=0": not get("causal", 1), "scores as an output": len(node.outputs) > 3}
    problems |= {"attention sinks, cache scales, or normalized heads": any(x is not None for x in more)}
    if reasons := [name for name, is_set in problems.items() if is_set]:
        raise unsupported(node, reasons[0])
    heads, groups = get("num_heads"), get("kv_num_heads")
    size = _last(query, node) // (heads if key is not None else heads + 2 * groups)
    parts: Any = [query, key, value]
    if key is None:
        parts = op.Split(query, [heads * size, groups * size, groups * size], axis=-1, outputs=3)
    q, k, v = (_heads(op, x, count) for x, count in zip(parts, (heads, groups, groups), strict=True))
    past, past_value = (None if x is None or (x.shape is not None and 0 in x.shape) else x for x in pasts)
    if get("do_rotary", 0):
        if places is None:
            places = add(op.Unsqueeze(_places(op, q, 2), [0]), None if past is None else _size(op, past, 2))
        cos, sin = (op.Unsqueeze(op.Gather(table, places), [1]) for table in (cosines, sines))
        half, kind = _last(cosines, node), get("rotary_interleaved", 0)
        q, k = (_rotate(op, x, cos, sin, half, kind, partly=2 * half < size) for x in (q, k))
    k, v = _behind(op, past, k), _behind(op, past_value, v)
    keys, values = k, v
    if groups < heads:
        times = [1, 1, heads // groups, 1, 1]
        keys, values = (op.Reshape(op.Expand(op.Unsqueeze(x, [2]), times), [0, heads, -1, size]) for x in (k, v))
    visible = _Visibility(
        causal=True, cap=node.attributes.get_float("softcap", 0.0), window=get("local_window_size", -1)
    )
    return [_attend(op, node, q, keys, values, size, None, added_bias, past, visible), k, v][: len(node.outputs)]


class _Visibility(NamedTuple):
    """The keys that a query attends to."""

    causal: bool = False  # only its own and earlier positions
    cap: float = 0.0  # the largest score; 0: unbounded
    window: int = -1  # number of positions, its own included (onnxruntime 1.19.2: one more); -1: all


def _slice(op: Builder, x: Value | None, index: int, axis: int) -> Value:
    """Return one entry along an axis, without that axis."""
    return op.Gather(x, op.const(np.int64(index)), axis=axis)


def _heads(op: Builder, x: Value, heads: int) -> Value:
    """[B, S, N·H] → [B, N, S, H]."""
    return op.Transpose(op.Reshape(x, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


def _behind(op: Builder, past: Value | None, new: Value) -> Value:
    """Return keys or values behind past ones, [B, N, T, H]."""
    return new if past is None else op.Concat(past, new, axis=2)


def _attend(
    op: Builder,
    node: Node,
    q: Value,
    k: Value,
    v: Value,
    size: int,
    mask: Value | None,
    attention_bias: Value | None,
    past: Value | None,
    visibility: _Visibility | None = None,
) -> Value:
    """softmax(scale · q · kᵀ + attention_bias, masked) · v, heads concatenated: [B, S, N·H]."""
    visibility = visibility or _Visibility(causal=bool(node.attributes.get_int("unidirectional", 0)))
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(size)
    assert q.dtype is not None
    scores = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])) * scale
    scores = op.Tanh(scores / visibility.cap) * visibility.cap if visibility.cap else scores
    scores = add(scores, attention_bias)
    if mask is not None:
        filler = max(node.attributes.get_float("mask_filter_value", MASKED), float(q.dtype.min))
        scores = scores + op.Where(_visible(op, node, mask, q, k), op.like(0, q), op.like(filler, q))
    if visibility.causal:
        rows = op.Unsqueeze(add(_places(op, q, 2), None if past is None else _size(op, past, 2)), [1])
        keys = _places(op, k, 2)
        visible = op.LessOrEqual(keys, rows)
        if visibility.window >= 0:
            visible = op.And(visible, op.Greater(keys, rows - visibility.window))
        scores = op.Where(visible, scores, op.like(float(q.dtype.min), q))
    y = op.MatMul(op.Softmax(scores, axis=-1), v)
    return op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])


def _visible(op: Builder, node: Node, mask: Value, q: Value, k: Value) -> Value:
    """Return the positions that a mask leaves visible, as booleans that broadcast to [B, N, S, T]."""
    match rank_of(mask):
        case 2:
            return op.Greater(op.Unsqueeze(mask, [1, 2]), 0)
        case 3:
            return op.Greater(op.Unsqueeze(mask, [1]), 0)
        case 1:  # [B] ends, or [2B] ends and then starts
            places = op.Cast(_places(op, k, 2), to=ir.DataType.INT32)
            rows = _size(op, q, 0)
            ends = op.Slice(mask, [0], rows)
            before_end = op.Less(places, op.Unsqueeze(ends, [1, 2, 3]))
            batch = node.inputs[0].shape if node.inputs[0] is not None else None
            if mask.shape is not None and batch is not None and mask.shape[0] == batch[0]:
                return before_end
            starts = op.Slice(op.Concat(mask, ends - ends, axis=0), rows, rows + rows)
            return op.And(before_end, op.GreaterOrEqual(places, op.Unsqueeze(starts, [1, 2, 3])))
        case rank:
            raise unsupported(node, f"a mask of {rank} axes")


def _size(op: Builder, x: Value | None, axis: int) -> Value:
    """Return one dimension as a vector."""
    return op.Shape(x, start=axis, end=axis + 1)


def _places(op: Builder, x: Value | None, axis: int) -> Value:
    """Return 0, 1 … below the length of an axis."""
    return op.Range(0, op.Squeeze(_size(op, x, axis)), 1)


def _last(value: Value, node: Node) -> int:
    """Return a value's last dimension, which must be static."""
    rank_of(value)
    size = value.shape[-1] if value.shape is not None else None
    if not isinstance(size, int):
        raise unsupported(node, f"the last dimension of {value.name!r} is unknown")
    return size


ATTENTION: dict[str, Rewrite] = {
    "Attention": attention,
    "EmbedLayerNormalization": embed_layer_normalization,
    "GroupQueryAttention": group_query_attention,
    "MultiHeadAttention": multi_head_attention,
    "RotaryEmbedding": rotary_embedding,
}
