"""The benchmark of the earlier libraries: scikit-learn and ortpipe on one network, both loss curves in one figure.

    python -m benchmarks.tutorial [picture.png]

2000 rows of 100 features, layers of 50 and 10, Nesterov's momentum, batches of 15, 100 passes, one thread each, from
random weights of their own. scikit-learn's loss is half the mean square: its curve is drawn doubled, and its learning
rate is twice ortpipe's, so that both take the same steps.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from threadpoolctl import threadpool_limits

from ortpipe import LOSSES, OPTIMIZERS, AddLossConfig, Data, TrainConfig, add_loss, convert, derive, train
from ortpipe.data.sources.synthetic import Synthetic

LAYERS, BATCH, PASSES, RATE = (50, 10), 15, 100, 5e-5


def scikit_learn(data: Data) -> tuple[np.ndarray, float]:
    """Return the loss of each pass and the seconds of the fit."""
    model = MLPRegressor(
        hidden_layer_sizes=LAYERS,
        solver="sgd",
        alpha=0.0,
        learning_rate_init=RATE,
        batch_size=BATCH,
        max_iter=PASSES,
        n_iter_no_change=PASSES,
        random_state=0,
    )
    begun = time.perf_counter()
    with threadpool_limits(1):
        model.fit(data.train.inputs["X"].astype(np.float32), data.train.label.astype(np.float32))
    return 2 * np.array(model.loss_curve_), time.perf_counter() - begun


def ortpipe(data: Data) -> tuple[np.ndarray, float]:
    """Return the loss of each pass and the seconds of the training stage."""
    start = convert(MLPRegressor(hidden_layer_sizes=LAYERS, max_iter=1, random_state=0), data=data)
    model = derive(add_loss(start, AddLossConfig(LOSSES["l2"]())))
    config = TrainConfig(OPTIMIZERS["nesterov"](lr=RATE / 2), epochs=PASSES, batch_size=BATCH, init="random")
    begun = time.perf_counter()
    trained = train(model, config, data=data)
    return trained.tensors["losses/train"], time.perf_counter() - begun


def main(path: Path) -> None:
    """Print the seconds and the last losses, and draw both curves."""
    data = Data(Synthetic(rows=2000, features=100, params={"bias": 2.0})())
    axes = (figure := Figure(figsize=(6, 4.5), dpi=120, layout="constrained")).add_subplot()
    for name, fit in (("scikit-learn", scikit_learn), ("ortpipe", ortpipe)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            losses, seconds = fit(data)
        print(f"{name}: {seconds:.2f} s, loss {losses[0]:.4g} → {losses[-1]:.4g}")
        axes.plot(np.arange(1, len(losses) + 1), losses, label=f"{name}, {seconds:.2f} s")
    axes.set(xlabel="pass", ylabel="squared error per row", title="One network, trained by both", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tutorial.png"))
