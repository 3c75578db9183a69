"""The update of all parameters from their gradients: each by itself, or as one flat vector with parts around it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.errors import TrainError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.stages.train.config import ClipConfig, TrainConfig

AVERAGE = "average"  # the carried vector of averaged weights: they take the parameters' place in what training gives
ITERATE = "iterate"  # the slot of the parameters themselves, where they are averaged
HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
Values = Mapping[str, ir.Value]
Update = tuple[dict[ir.Value, ir.Value], dict[tuple[str, str], ir.Value]]


def scalars_of(config: TrainConfig) -> tuple[str, ...]:
    """Return the names of what every step has of its own."""
    return (*config.stepwise.scalars, *(["decay_rate"] if config.weight_decay else []))


def per_step(config: TrainConfig, rates: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return them for these steps (counted from 1) [steps] in float64, from the schedule's rates."""
    return (*config.stepwise.per_step(rates, steps), *([rates] if config.weight_decay else []))


def scale_of(config: TrainConfig, dtype: ir.DataType) -> float:
    """Return what the loss is multiplied by: gradients of float16 vanish below 6e-8."""
    if dtype not in HALVES:
        return 1.0
    return config.loss_scale or (1024.0 if dtype == ir.DataType.FLOAT16 else 1.0)


def is_plain(config: TrainConfig, dtype: ir.DataType) -> bool:
    """Say whether all there is to do is the optimizer's own update by a scaled gradient, parameter by parameter."""
    parts = config.clip.value, config.clip.norm, config.average, config.weight_decay or None, config.factors or None
    return config.stepwise.scaled and dtype not in HALVES and not any(part is not None for part in parts)


def one_by_one(
    op: Builder, config: TrainConfig, parameters: Values, gradients: Values, scalars: Sequence[ir.Value]
) -> Update:
    """Update each parameter with a state of its own: what each carried value becomes, and which holds which state."""
    optimizer = config.stepwise
    moved: dict[ir.Value, ir.Value] = {}
    state: dict[ir.Value, ir.Value] = {}
    holders: dict[tuple[str, str], ir.Value] = {}
    for name, parameter in parameters.items():
        assert parameter.dtype is not None
        slots = [op.input(f"{name}/{s}", parameter.dtype, shape_of(parameter)) for s in optimizer.slots]
        moved[parameter], new = optimizer(op, parameter, gradients[name], slots, *scalars)
        state |= dict(zip(slots, new, strict=True))
        holders |= {(s, name): value for s, value in zip(optimizer.slots, slots, strict=True)}
    return moved | state, holders


def flat(
    front: Builder,
    op: Builder,
    config: TrainConfig,
    parameters: Values,
    gradients: Values,
    scalars: Sequence[ir.Value],
    scale: float,
) -> Update:
    """Update all parameters as one vector, which the front of the step cuts up: a node costs more than a small copy.

    The vector has the scalars' type: halves are cast from it, and their gradients, of a loss times `scale`, to it. The
    first value that is returned holds what training gives.
    """
    shapes = {name: tuple(p.shape.numpy()) if p.shape is not None else () for name, p in parameters.items()}
    sizes = [math.prod(shape) for shape in shapes.values()]
    dtype = scalars[0].dtype
    assert dtype is not None
    whole, *slots = (op.input(name, dtype, [sum(sizes)]) for name in ("parameters", *config.stepwise.slots))
    parts = [whole]
    if len(sizes) > 1:
        parts = front.Split(whole, front.const(np.array(sizes, np.int64)), outputs=len(sizes), axis=0)
    for part, (name, parameter) in zip(parts, parameters.items(), strict=True):
        shape = np.array(shapes[name], np.int64)
        shaped = front.Reshape(part, front.const(shape)) if len(shape) != 1 else part
        shaped = front.cast(shaped, parameter) if parameter.dtype != dtype else shaped
        shaped.type, shaped.shape = parameter.type, parameter.shape
        ir.convenience.replace_all_uses_with(parameter, shaped)
    line = op.const(np.array([-1], np.int64))
    lines = [g if len(shapes[name]) == 1 else op.Reshape(g, line) for name, g in gradients.items()]
    lines = [op.cast(g, whole) if parameters[name].dtype != dtype else g for g, name in zip(lines, shapes, strict=True)]
    joined = op.Concat(*lines, axis=0) if len(lines) > 1 else lines[0]
    joined.type, joined.shape = whole.type, whole.shape
    if scale != 1:
        joined = op.Mul(joined, op.like(1 / scale, whole))
    new, state = _composed(op, config, shapes, whole, joined, slots, scalars)
    carried = {whole: new, **dict(zip(slots, state, strict=True))}
    holders = {(s, name): value for s, value in zip(config.stepwise.slots, slots, strict=True) for name in parameters}
    if config.average is None:
        return carried, holders
    average = op.input(AVERAGE, dtype, [sum(sizes)])
    d, rest = op.like(config.average, whole), op.like(1 - config.average, whole)
    averaged = op.Add(op.Mul(average, d), op.Mul(new, rest))
    return {average: averaged, **carried}, {**holders, **{(ITERATE, name): whole for name in parameters}}


def _composed(
    op: Builder,
    config: TrainConfig,
    shapes: Mapping[str, tuple[int, ...]],
    whole: ir.Value,
    gradient: ir.Value,
    slots: Sequence[ir.Value],
    scalars: Sequence[ir.Value],
) -> tuple[ir.Value, tuple[ir.Value, ...]]:
    """Return θ and the state: g clipped, θ decayed to (1 − η·λ)·θ, and the way from the old θ to the new multiplied."""
    own, start = scalars, whole
    if config.weight_decay:
        *own, rate = scalars
        decay = _per_element(op, config.weight_decay, shapes, whole, "weight_decay", 0.0)
        start = op.Sub(whole, op.Mul(whole, op.Mul(decay, rate)))
    gradient = _clipped(op, config.clip, gradient, whole)
    if config.stepwise.scaled:
        gradient = op.Neg(op.Mul(gradient, own[0]))
    for value in (start, gradient):
        value.type, value.shape = whole.type, whole.shape
    new, state = config.stepwise(op, start, gradient, slots, *own)
    if config.factors:
        factor = _per_element(op, config.factors, shapes, whole, "factors", 1.0)
        new = op.Add(whole, op.Mul(op.Sub(new, whole), factor))
    return new, state


def _clipped(op: Builder, clip: ClipConfig, gradient: ir.Value, like: ir.Value) -> ir.Value:
    """Return g with every entry in [−v, v], then g·min(1, c / (‖g‖₂ + 1e-6)), as PyTorch's clip_grad_norm_."""
    if clip.value is not None:
        gradient = op.Clip(gradient, op.like(-clip.value, like), op.like(clip.value, like))
    if clip.norm is not None:
        norm = op.Sqrt(op.MatMul(gradient, gradient))
        ratio = op.Div(op.like(clip.norm, like), op.Add(norm, op.like(1e-6, like)))
        gradient = op.Mul(gradient, op.Min(ratio, op.like(1, like)))
    return gradient


def per_parameter(given: float | Mapping[str, float], names: Sequence[str], key: str, rest: float) -> dict[str, float]:
    """Return a number for each parameter: that of the last exact name, or else glob, that matches it.

    Raises:
        TrainError: a pattern matches no parameter.

    >>> per_parameter({"*": 0.1, "bias": 0.5}, ["weight", "bias"], "factors", 1.0)
    {'weight': 0.1, 'bias': 0.5}
    """
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, given)
    found = dict.fromkeys(names, rest)
    for pattern, number in given.items():
        found |= dict.fromkeys(query.select([pattern], names, TrainError, key), number)
    return found


def _per_element(
    op: Builder,
    given: float | Mapping[str, float],
    shapes: Mapping[str, tuple[int, ...]],
    like: ir.Value,
    key: str,
    rest: float,
) -> ir.Value:
    numbers = per_parameter(given, list(shapes), key, rest)
    if len(set(numbers.values())) == 1:
        return op.like(next(iter(numbers.values())), like)
    assert like.dtype is not None
    sizes = [math.prod(shape) for shape in shapes.values()]
    return op.const(np.repeat(np.array(list(numbers.values()), like.dtype.numpy()), sizes))


def shape_of(value: ir.Value) -> list[int | str | None]:
    """Return a value's dimensions; symbolic ones by name."""
    return [d if isinstance(d, int) else d.value for d in value.shape] if value.shape is not None else []
