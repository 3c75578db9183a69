"""Does a step of Adam take longer late in training, when running means would be subnormal numbers?

`python -m benchmarks.subnormal` trains an MLP on scikit-learn's digits for 5,000 steps and more, with and without
flushed subnormal numbers in turn, and prints the median µs of a step early and late, and the processor.
"""

import argparse
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from ortpipe.data.rows import Data, Rows
from ortpipe.runtime import subnormal
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.training import Epoch

BATCH, STEPS, SHARE = 64, 5000, 5  # early and late are a fifth of the steps each


def step_times(steps: int) -> list[float]:
    """Return the µs of CPU time of a step, epoch by epoch."""
    x, y = load_digits(return_X_y=True)
    data = Data(Rows({"X": (x / 16).astype(np.float32)}, y))
    forward = convert(None, ConvertConfig(MLP(hidden=(100,), dropout=0.0)), data=data)
    model = derive(add_loss(forward, AddLossConfig(LOSSES["auto"]()), data=data))
    per_epoch = -(-len(x) // BATCH)
    times = [time.process_time()]

    def report(event: Any) -> None:
        if isinstance(event, Epoch):
            times.append(time.process_time())

    config = TrainConfig(OPTIMIZERS["adam"](), epochs=-(-steps // per_epoch), batch_size=BATCH)
    train(model, config, data=data, report=report)
    return (np.diff(times)[1:] / per_epoch * 1e6).tolist()  # the first epoch loads the session


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    print(cpu[0].partition(": ")[2] if cpu else platform.processor())
    modes = dict(subnormal.MODES)
    for _ in range(options.pairs):
        for flushes in (True, False):
            subnormal.MODES.clear()
            subnormal.MODES.update(modes if flushes else {})
            times = step_times(options.steps)
            part = max(1, len(times) // SHARE)
            early, late = statistics.median(times[:part]), statistics.median(times[-part:])
            kind = "flushed" if flushes else "kept   "
            print(f"{kind}  early {early:.1f} µs  late {late:.1f} µs  late / early {late / early:.2f}", flush=True)


if __name__ == "__main__":
    main()
