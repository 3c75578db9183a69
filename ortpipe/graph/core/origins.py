"""The origin of a parameter in its source file, as invertible steps from the file's array to the parameter.

Parameters that convert makes of attributes, fused inputs and merged weights have an origin, plain JSON in convert's
lineage record: `{"node": the first output's name, "attribute": name}`, `{"node": …, "input": number}` or
`{"initializer": name}`, and `"transform": [[step, *arguments], …]` if the parameter is not that array itself. A
string among the arguments names an initializer of the file, whose array the step receives.

Parameters of a scikit-learn estimator have `{"step": [path to the estimator], "attribute": "coef_"}`, and `"index"`
into an attribute that is a list or dict of arrays. A step is the name or number of a part of a Pipeline,
ColumnTransformer, FeatureUnion, list or dict, or the name of an attribute.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

Origin = Mapping[str, Any]
Read = Callable[[str], np.ndarray]  # an initializer of the file by name
KEY = "origin"  # in an ir.Value's meta

_Get = Callable[..., np.ndarray]  # (array, *arguments) → the transformed array
_Put = Callable[..., np.ndarray]  # (array, new transformed array, *arguments) → the updated array


@dataclass(frozen=True, eq=False)
class Place:
    """The location of an array in a source, identified by its name."""

    name: str
    array: np.ndarray = field(repr=False)


def mark(value: ir.Value, origin: Origin) -> ir.Value:
    """Set a parameter's origin, which convert records."""
    value.meta[KEY] = dict(origin)
    return value


def marked(graph: ir.Graph) -> dict[str, Origin]:
    """Return the origins of the graph's initializers that have one."""
    return {name: value.meta[KEY] for name, value in graph.initializers.items() if KEY in value.meta}


def mark_attribute(value: ir.Value, name: str, *transform: Sequence[Any], index: int | str | None = None) -> ir.Value:
    """Set a parameter's origin: an attribute of the current estimator, and the steps from it to the parameter."""
    origin: dict[str, Any] = {"step": [], "attribute": name}
    origin |= {} if index is None else {"index": index}
    return mark(value, origin | ({"transform": [list(step) for step in transform]} if transform else {}))


@contextlib.contextmanager
def within(graph: ir.Graph, *step: int | str) -> Iterator[None]:
    """Prefix the origins that are marked in this context: the current estimator is part `step` of the outer one.

    >>> graph = ir.Graph([], [], nodes=[])
    >>> with within(graph, "model"), within(graph, "estimators_", 0):
    ...     weight = ir.val("weight", const_value=ir.tensor([1.0], name="weight"))
    ...     graph.register_initializer(mark_attribute(weight, "coef_", ["transpose"]))
    >>> marked(graph)["weight"]["step"]
    ['model', 'estimators_', 0]
    """
    before = set(graph.initializers)
    yield
    for name, value in graph.initializers.items():
        if name not in before and "step" in value.meta.get(KEY, {}):
            mark(value, {**value.meta[KEY], "step": [*step, *value.meta[KEY]["step"]]})


def put(array: np.ndarray, new: np.ndarray, transform: Sequence[Sequence[Any]], read: Read) -> np.ndarray:
    """Return the file's array with a parameter's new values in it.

    Raises:
        ValueError: shapes do not fit.
        KeyError: a step, or an initializer that a step names, does not exist.

    >>> put(np.zeros(4), np.array([[1], [2]]), [["reshape", 2, 2], ["slice", 1, 0, 1], ["transpose"]], {}.get)
    Traceback (most recent call last):
    ...
    ValueError: shape (2, 1) instead of (1, 2)
    >>> put(np.zeros(4), np.array([[1, 2]]), [["reshape", 2, 2], ["slice", 1, 0, 1], ["transpose"]], {}.get)
    array([1., 0., 2., 0.])
    """
    if not transform:
        if array.shape != new.shape:
            raise ValueError(f"shape {new.shape} instead of {array.shape}")
        return new
    (step, *arguments), *remaining = transform
    values = [read(argument) if isinstance(argument, str) else argument for argument in arguments]
    get, back = STEPS[step]
    return back(array, put(get(array, *values), new, remaining, read), *values)


def take(array: np.ndarray, transform: Sequence[Sequence[Any]], read: Read) -> np.ndarray:
    """Return the parameter that the steps make of an array of the file."""
    for step, *arguments in transform:
        array = STEPS[step][0](
            array, *[read(argument) if isinstance(argument, str) else argument for argument in arguments]
        )
    return array


def _between(array: np.ndarray, axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*[slice(None)] * (axis % array.ndim), slice(start, stop))


def _slice_back(array: np.ndarray, new: np.ndarray, *where: int) -> np.ndarray:
    updated = array.astype(np.result_type(array, new), copy=True)
    updated[_between(array, *where)] = new
    return updated


def _opposite_back(array: np.ndarray, new: np.ndarray) -> np.ndarray:
    first = np.where(-new == array[:1], array[:1], -new)  # so that a zero keeps its sign
    return np.concatenate([first, new])


def _aligned(factor: Any, array: np.ndarray, axis: int) -> np.ndarray:
    """Return factors per channel, reshaped to broadcast along an array's axis; a single number as it is."""
    factor = np.asarray(factor)
    return (
        factor if factor.size == 1 else factor.reshape([-1 if i == axis % array.ndim else 1 for i in range(array.ndim)])
    )


def _dequantize(array: np.ndarray, scale: Any, zero: Any = None, axis: int = 1) -> np.ndarray:
    shifted = array.astype(np.float64) - (0 if zero is None else _aligned(zero, array, axis).astype(np.float64))
    return shifted * _aligned(scale, array, axis).astype(np.float64)


def _quantize(array: np.ndarray, new: np.ndarray, scale: Any, zero: Any = None, axis: int = 1) -> np.ndarray:
    """Return round(new / scale) + zero, within the type's bounds, as QuantizeLinear does."""
    shift = 0 if zero is None else _aligned(zero, array, axis).astype(np.float64)
    steps = np.rint(new.astype(np.float64) / _aligned(scale, array, axis).astype(np.float64)) + shift
    bounds = np.iinfo(array.dtype)
    return np.clip(steps, bounds.min, bounds.max).astype(array.dtype)


def _unpacked(array: np.ndarray, bits: int, rows: int) -> np.ndarray:
    """Return integers of `bits` bits, packed in bytes with the lowest bits first, as rows of int64."""
    each = np.unpackbits(array.reshape(rows, -1), axis=1, bitorder="little")
    return each.reshape(rows, -1, bits) @ (1 << np.arange(bits, dtype=np.int64))


def _unpacked_blocks(array: np.ndarray, bits: int, scales: Any, zero: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the integers of rows in blocks, [rows, blocks, block], and the scale and zero point of each block."""
    rows, blocks = array.shape[0], np.asarray(scales).size // array.shape[0]
    scale = np.asarray(scales, np.float64).reshape(rows, blocks, 1)
    if zero is None:
        offset = np.full_like(scale, 1 << (bits - 1))
    elif zero.dtype == np.uint8:
        offset = _unpacked(zero, bits, rows)[:, :blocks, None].astype(np.float64)
    else:
        offset = np.asarray(zero, np.float64).reshape(rows, blocks, 1)
    return _unpacked(array, bits, rows).reshape(rows, blocks, -1), scale, offset


def _from_blocks(array: np.ndarray, bits: int, count: int, scales: Any, zero: Any = None) -> np.ndarray:
    integers, scale, offset = _unpacked_blocks(array, bits, scales, zero)
    return ((integers - offset) * scale).reshape(len(array), -1)[:, :count]


def _to_blocks(array: np.ndarray, new: np.ndarray, bits: int, count: int, scales: Any, zero: Any = None) -> np.ndarray:
    """Return rows as packed blocks of rounded integers; padding of the last block and blocks of scale 0 stay."""
    integers, scale, offset = _unpacked_blocks(array, bits, scales, zero)
    wide = ((integers - offset) * scale).reshape(len(array), -1)
    wide[:, :count] = new
    steps = np.divide(wide.reshape(integers.shape), scale, out=integers - offset, where=scale != 0)
    steps = np.clip(np.rint(steps + offset), 0, (1 << bits) - 1).astype(np.int64).reshape(len(array), -1, 1)
    return np.packbits((steps >> np.arange(bits)) & 1, axis=None, bitorder="little").reshape(array.shape)


STEPS: dict[str, tuple[_Get, _Put]] = {
    "reshape": (lambda array, *dims: array.reshape(dims), lambda array, new, *dims: new.reshape(array.shape)),
    "transpose": (lambda array: np.swapaxes(array, -1, -2), lambda array, new: np.swapaxes(new, -1, -2)),
    "permute": (lambda array, *axes: array.transpose(axes), lambda array, new, *axes: new.transpose(np.argsort(axes))),
    "slice": (lambda array, *where: array[_between(array, *where)], _slice_back),
    "opposite": (lambda array: array[1:], _opposite_back),  # rows [−s, s] as one row s
    "dequantize": (_dequantize, _quantize),
    "blocks": (_from_blocks, _to_blocks),
    "scale": (lambda array, scale: array * scale, lambda array, new, scale: new / scale),
    "log": (np.log, lambda array, new: np.exp(new)),  # for positive values
    "log_odds": (lambda log_p: log_p - np.log(-np.expm1(log_p)), lambda array, new: -np.logaddexp(0, -new)),
}
