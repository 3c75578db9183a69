"""The chain of a training: the optimizer's links with those that train's own settings put around them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.errors import TrainError
from ortpipe.graph import query
from ortpipe.stages.train.config import ClipConfig, TrainConfig
from ortpipe.stages.train.layout import Flat, Layout, PerParameter
from ortpipe.stages.train.links import Link, average, clip, decay, scale

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
Shapes = Mapping[str, tuple[int, ...]]


def loss_scale(config: TrainConfig, dtype: ir.DataType) -> float:
    """Return what the loss is multiplied by: gradients of float16 vanish below 6e-8."""
    if dtype not in HALVES:
        return 1.0
    return config.loss_scale or (1024.0 if dtype == ir.DataType.FLOAT16 else 1.0)


def chain(config: TrainConfig, shapes: Shapes, dtype: ir.DataType) -> tuple[tuple[Link, ...], Layout]:
    """Return the links, in order, and how the parameters of a model whose loss has this type are carried."""
    links = [*config.optimizer.links()]
    if config.clip != ClipConfig():
        links.insert(0, clip(config.clip.value, config.clip.norm))
    if (scaled := loss_scale(config, dtype)) != 1:
        links.insert(0, scale(1 / scaled))
    if config.weight_decay:
        links.append(decay(_per_element(config.weight_decay, shapes, "weight_decay", 0.0)))
    if config.factors:
        links.append(scale(_per_element(config.factors, shapes, "factors", 1.0)))
    if config.average is not None:
        links.append(average(config.average))
    if all(link.linear for link in links) and dtype not in HALVES:
        return tuple(links), PerParameter(shapes)
    return tuple(links), Flat(shapes, ir.DataType.FLOAT if dtype in HALVES else dtype)


def per_parameter(given: float | Mapping[str, float], names: Sequence[str], key: str, rest: float) -> dict[str, float]:
    """Return a number for each parameter: that of the last exact name, or else glob, that matches it.

    Raises:
        TrainError: a pattern matches no parameter.

    >>> per_parameter({"*": 0.1, "bias": 0.5}, ["weight", "bias"], "factors", 1.0)
    {'weight': 0.1, 'bias': 0.5}
    """
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, given)
    numbers = dict.fromkeys(names, rest)
    for pattern, number in given.items():
        numbers |= dict.fromkeys(query.select([pattern], names, TrainError, key), number)
    return numbers


def _per_element(given: float | Mapping[str, float], shapes: Shapes, key: str, rest: float) -> float | np.ndarray:
    """Return a number for all elements of the flat vector, or one for each."""
    numbers = [*per_parameter(given, list(shapes), key, rest).values()]
    return numbers[0] if len({*numbers}) == 1 else np.repeat(numbers, [math.prod(shape) for shape in shapes.values()])
