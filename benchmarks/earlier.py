"""The earlier libraries' benchmark, scikit-learn against ortpipe.compat: `python -m benchmarks.earlier [ROUNDS]`.

1000 rows of 100 features, 100 passes in batches of 15, plain or Nesterov SGD, in one process with one thread. A round
fits scikit-learn, then each optimizer, gradients and sessions built anew; each ratio is the median of the ratios within
a round.
"""

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import make_classification, make_regression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from threadpoolctl import threadpool_limits

from ortpipe import convert
from ortpipe.compat import (
    ElasticLearningPenalty,
    LearningRateSGDNesterov,
    NegLogLearningLoss,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    add_loss_output,
    get_train_initializer,
    select_model_inputs_outputs,
)

PASSES, BATCH = 100, 15
SKLEARN = {"solver": "sgd", "max_iter": PASSES, "n_iter_no_change": 3 * PASSES, "batch_size": BATCH, "random_state": 0}
COMMON = {"max_iter": PASSES, "batch_size": BATCH, "warm_start": False}
Fit = Callable[[], Any]


def regression(layers: tuple[int, ...], rate: float) -> dict[str, Fit]:
    """Return what fits a network, or with no layers a line, to numbers."""
    X, y = (a.astype(np.float32) for a in make_regression(1000, 100, bias=2, random_state=0))
    plain = {"alpha": 0, "momentum": 0, "nesterovs_momentum": False, "learning_rate": "invscaling"}
    model = MLPRegressor(hidden_layer_sizes=layers, learning_rate_init=rate, **plain, **SKLEARN).fit(X, y)
    onx = convert(model).model
    weights = list(get_train_initializer(onx))
    first = OrtGradientOptimizer(add_loss_output(onx), weights, learning_rate=rate, **COMMON)
    second = OrtGradientForwardBackwardOptimizer(onx, weights, learning_rate=rate, **COMMON)
    return {"scikit-learn": lambda: model.fit(X, y), **_fits(first, second, X, y)}


def classification() -> dict[str, Fit]:
    """Return what fits a network to two classes, with Nesterov's momentum and an L2 penalty."""
    X, y = make_classification(1000, 100, random_state=0)
    X = X.astype(np.float32)
    nesterov = {"alpha": 1e-4, "momentum": 0.9, "nesterovs_momentum": True, "learning_rate": "invscaling"}
    model = MLPClassifier(hidden_layer_sizes=(50, 10), learning_rate_init=0.01, **nesterov, **SKLEARN).fit(X, y)
    onx = convert(model).model
    last = next(node for node in reversed(onx.graph.node) if node.op_type == "Sigmoid")
    optimizer = OrtGradientForwardBackwardOptimizer(
        select_model_inputs_outputs(onx, outputs=[last.input[0]]),
        learning_loss=NegLogLearningLoss(),
        learning_rate=LearningRateSGDNesterov(0.01, nesterov=True, momentum=0.9),
        learning_penalty=ElasticLearningPenalty(l1=0, l2=1e-4),
        **COMMON,
    )
    return {"scikit-learn": lambda: model.fit(X, y), **_fits(None, optimizer, X, y)}


def _fits(first: Any, second: Any, X: np.ndarray, y: np.ndarray) -> dict[str, Fit]:
    named = {"OrtGradientOptimizer": first, "OrtGradientForwardBackwardOptimizer": second}
    return {name: (lambda o=optimizer: o.fit(X, y)) for name, optimizer in named.items() if optimizer is not None}


def timed(fits: dict[str, Fit], rounds: int) -> dict[str, np.ndarray]:
    """Return seconds of processor time and of wall time [rounds, 2], by name; one round before them warms up."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in fits}
    for number in range(rounds + 1):
        for name, fit in fits.items():
            cpu, wall = time.process_time(), time.perf_counter()
            fit()
            if number:
                seconds[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: np.array(values) for name, values in seconds.items()}


def print_speed(rounds: int) -> None:
    """Print the table."""
    print("| workload | | processor s | wall s | against scikit-learn |\n|---|---|---|---|---|")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workloads = {
            "NN (50, 10)": regression((50, 10), 5e-4),
            "linear": regression((), 1e-2),
            "classifier (50, 10), Nesterov": classification(),
        }
        for workload, fits in workloads.items():
            seconds = timed(fits, rounds)
            for name, values in seconds.items():
                cpu, wall = np.median(values, axis=0)
                ratio = np.median(seconds["scikit-learn"][:, 0] / values[:, 0])
                print(f"| {workload} | {name} | {cpu:.3f} | {wall:.3f} | {ratio:.1f}× as fast |", flush=True)


if __name__ == "__main__":
    print_speed(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
