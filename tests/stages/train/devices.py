"""A small training on devices; as a script: print digests for some numbers of devices of XLA's CPU, a line per case."""

import dataclasses
import functools

import numpy as np
from sample import ALL

from ortpipe.artifact import Artifact
from ortpipe.data.rows import Data, Rows
from ortpipe.parallel import ParallelConfig
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import ClipConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

CONFIG = TrainConfig(OPTIMIZERS["adam"](0.01), epochs=2, batch_size=10, drop_last=True, clip=ClipConfig(norm=0.5))


def rows() -> Data:
    x = np.random.default_rng(0).normal(size=(33, 5)).astype(np.float32)
    return Data(Rows({"X": x}, (x[:, 0] > x[:, 1]).astype(np.int64) + (x[:, 2] > 1)))


@functools.cache
def gradient_model(**network: object) -> Artifact:
    source = MLP(**{"hidden": (6,), "dropout": 0.0, **network})
    forward = convert(None, ConvertConfig(source), data=rows())
    return derive(add_loss(forward, AddLossConfig(LOSSES["cross_entropy"]()), data=rows()))


def on_devices(workers: int | None, batch_size: int = 10, **network: object) -> Artifact:
    parallel = ParallelConfig(4, transport="devices", workers=workers)
    config = dataclasses.replace(CONFIG, batch_size=batch_size, parallel=parallel)
    return train(gradient_model(**network), config, data=rows(), runtime=RuntimeConfig(engine="xla"))


if __name__ == "__main__":
    print(*(on_devices(workers, norm="batch").digest() for workers in (1, 3)))
    print(
        *(on_devices(workers, 12).digest() for workers in ((1, None) if ALL else ()))
    )  # one slice per device, of one size
