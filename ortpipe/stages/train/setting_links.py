"""The links of train's own settings: clipping, weight decay, multipliers, averages and the loss scale."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.errors import TrainError
from ortpipe.graph.core import selection
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.query import HALVES
from ortpipe.stages.train.config import ClipConfig, TrainConfig
from ortpipe.stages.train.layout import Shapes
from ortpipe.stages.train.links import AVERAGE, Inputs, Link, Outputs
from ortpipe.stages.train.optimizers.adamw import decay


def links_of_settings(links: Sequence[Link], config: TrainConfig, shapes: Shapes, narrow: ir.DataType) -> list[Link]:
    """Return an optimizer's links with those of train's settings; `narrow` is the narrowest type of parameters."""
    first, last = list[Link](), list[Link]()
    if (scaled := loss_scale(config, narrow)) != 1:
        first.append(scale(1 / scaled))
    if config.clip != ClipConfig():
        first.append(clip(config.clip.value, config.clip.norm))
    if config.weight_decay:
        last.append(decay(_per_element(config.weight_decay, shapes, "weight_decay", 0.0)))
    if config.factors:
        last.append(scale(_per_element(config.factors, shapes, "factors", 1.0)))
    if config.average is not None:
        last.append(average(config.average))
    return [*first, *links, *last]


def clip(value: float | None, norm: float | None) -> Link:
    """Clip entries to [−value, value], then u·min(1, norm / (‖u‖₂ + 1e-6)), as PyTorch's clip_grad_norm_."""

    def update(op: Builder, x: Inputs) -> Outputs:
        u = x.u if value is None else op.Clip(x.u, x.const(op, -value), x.const(op, value))
        if norm is not None:
            length = op.Add(op.Sqrt(op.MatMul(u, u)), x.const(op, 1e-6))
            u = op.Mul(u, op.Min(op.Div(x.const(op, norm), length), x.const(op, 1)))
        return u, ()

    return Link(update)


def scale(factor: float | np.ndarray) -> Link:
    """u ← f·u, where f is a number or an array with one entry per element."""
    return Link(lambda op, x: (op.Mul(x.u, x.const(op, factor)), ()))


def average(share: float) -> Link:
    """a ← d·a + (1 − d)·(θ + u), the exponential moving average (EMA) of the parameters; u is unchanged."""
    return Link(lambda op, x: (x.u, (x.mean(op, x.state[0], op.Add(x.theta, x.u), share),)), (AVERAGE,))


def loss_scale(config: TrainConfig, dtype: ir.DataType) -> float:
    """Return the loss scale; float16 gradients underflow below 6e-8."""
    if dtype not in HALVES:
        return 1.0
    return config.loss_scale or (1024.0 if dtype == ir.DataType.FLOAT16 else 1.0)


def _per_element(values: float | Mapping[str, float], shapes: Shapes, key: str, default: float) -> float | np.ndarray:
    """Return one number for all elements of the flat vector, or an array with the last matching pattern's number.

    >>> _per_element({"*": 0.1, "bias": 0.5}, {"weight": (2, 1), "bias": (1,)}, "factors", 1.0)
    array([0.1, 0.1, 0.5])
    """
    if not isinstance(values, Mapping):
        return values
    numbers = dict.fromkeys(shapes, default)
    for pattern, number in values.items():
        numbers |= dict.fromkeys(selection.select([pattern], list(shapes), TrainError, key), number)
    first, *different = {*numbers.values()}
    return first if not different else np.repeat([*numbers.values()], [math.prod(shape) for shape in shapes.values()])
