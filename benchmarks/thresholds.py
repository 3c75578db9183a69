"""Training around a threshold of `ortpipe.fast`: time with the faster form ÷ time without it.

    python -m benchmarks.thresholds               # each threshold that names this benchmark
    python -m benchmarks.thresholds block_kernel  # one of them

Each net is trained at about half, once and twice the threshold, with the form switched on and off in turns: the CPU
time of three epochs on one thread, the least of five.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    Artifact,
    ConvertConfig,
    Data,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
    train,
)
from ortpipe.fast.thresholds import THRESHOLDS, Thresholds
from ortpipe.stages.convert.sources.networks.cnn import CNN
from ortpipe.stages.convert.sources.networks.mlp import MLP

ROUNDS, STEPS = 5, 512
REST = 30  # rows of a batch whose kernel gradients take no blocks of channels
ALWAYS, NEVER = 2**40, 0  # of a bound from above; the other way around of one from below
RNG = np.random.default_rng(0)


@dataclasses.dataclass
class Job:
    """A gradient model with its rows."""

    artifact: Artifact
    data: Data
    batch: int

    def seconds(self) -> float:
        """Return the CPU time from the end of the first epoch to the end of the last."""
        times, config = list[float](), TrainConfig(OPTIMIZERS["sgd"](1e-4), batch_size=self.batch, epochs=4)
        train(self.artifact, config, data=self.data, report=lambda event: times.append(time.process_time()))
        return times[-1] - times[0]


def job(source: CNN | MLP, X: np.ndarray, y: np.ndarray, batch: int) -> Job:
    """Return a job of rows and the net that they decide."""
    data = Data(Rows({"X": X}, y))
    loss = LOSSES["cross_entropy" if y.dtype.kind == "i" else "l2"]()
    return Job(derive(add_loss(convert(None, ConvertConfig(source), data=data), AddLossConfig(loss))), data, batch)


def numbers(count: int) -> Job:
    """Return a linear regression that predicts so many numbers in each step."""
    return job(MLP(hidden=()), *(RNG.random((32 * STEPS, n), np.float32) for n in (16, count // 32)), 32)


def images(channels: int, kernels: int, size: int, kernel: int = 3, batch: int = 32) -> Job:
    """Return a network of one convolution."""
    X = RNG.random((batch * STEPS // 32, channels, size, size), np.float32)
    source = CNN(channels=(kernels,), kernel=kernel, norm="none", join="mean", task="multiclass")
    return job(source, X, np.arange(len(X)) % 10, batch)


def two(places: int) -> Job:
    """Return a network of two convolutions, whose second one, on 8×8 images, has a gradient of its input.

    Its channels are no multiple of four, as blocks of channels have their own form.
    """
    batch = places // 64
    X = RNG.random((batch * STEPS // 32, 3, 16, 16), np.float32)
    source = CNN(channels=(18, 18), norm="none", join="mean", task="multiclass")
    return job(source, X, np.arange(len(X)) % 10, batch)


def depthwise(size: int) -> Job:
    """Return a model of one depthwise convolution of 16 channels and the mean of each."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[N,16,{size},{size}] X) => (float[N,16] y)
        {{ c = Conv<group=16, pads=[1,1,1,1]>(X, w) axes = Constant<value_ints=[2,3]>()
        y = ReduceMean<keepdims=0>(c, axes) }}"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(RNG.random((16, 1, 3, 3), np.float32), "w"))
    X = RNG.random((REST * STEPS // 32, 16, size, size), np.float32)
    data = Data(Rows({"X": X}, RNG.random((len(X), 16), np.float32)))
    return Job(derive(add_loss(convert(model, data=data), AddLossConfig(LOSSES["l2"]()))), data, REST)


# threshold → (net of a size, its sizes, the thresholds with the form and without it)
CASES: dict[str, tuple[Callable[[int], Job], tuple[int, ...], int, int]] = {
    "sunk_elements": (numbers, (2048, 4096, 8192), ALWAYS, NEVER),
    "block_products": (lambda kernels: images(16, kernels, 16), (12, 20, 24), ALWAYS, NEVER),
    "block_kernel": (lambda kernel: images(3, 16, 16, kernel), (3, 5, 7), NEVER, ALWAYS),
    "block_images": (lambda batch: images(16, 16, 8, batch=batch), (2, 4, 8), NEVER, ALWAYS),
    "block_gradient_places": (lambda size: images(128, 128, size, batch=16), (6, 8, 12), NEVER, ALWAYS),
    "block_gradient_channels": (
        lambda channels: images(channels, channels, 6, batch=16),
        (64, 128, 256),
        ALWAYS,
        NEVER,
    ),
    "gradient_places": (lambda kernel: images(4, 34, 16, kernel, batch=REST), (2, 3, 4), ALWAYS, NEVER),
    "gradient_line": (depthwise, (32, 64, 128), ALWAYS, NEVER),
    "short_line": (lambda size: images(16, 18, size, batch=REST), (8, 16, 32), ALWAYS, NEVER),
    "flipped_places": (two, (128, 512, 2048), NEVER, ALWAYS),
    "joined_columns": (lambda channels: images(channels, 34, 24, batch=REST), (3, 6, 12), ALWAYS, NEVER),
}


def main() -> None:
    """Measure and print a line for each size."""
    fields = {field.name: field for field in dataclasses.fields(Thresholds)}
    for name in sys.argv[1:] or CASES:
        make, sizes, used, unused = CASES[name]
        print(f"{name} = {fields[name].default}: {fields[name].metadata['why']}")
        for size in sizes:
            one, least = make(size), dict[int, float]()
            for _ in range(ROUNDS):
                for value in (used, unused):
                    setattr(THRESHOLDS, name, value)
                    seconds = one.seconds()
                    least[value] = min(seconds, least.get(value, seconds))
            setattr(THRESHOLDS, name, fields[name].default)
            print(f"  {size:>6}: {least[used] / least[unused]:.2f}", flush=True)


if __name__ == "__main__":
    main()
