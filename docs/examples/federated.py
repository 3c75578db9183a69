"""Federated averaging of 20 clients with uneven digits, compared with pooled training.

python federated.py BUNDLE [ROUNDS [PICTURE]]
"""

import functools
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from ortpipe.federated import BundleClient, Update, aggregate, epsilon

CLIENTS, BATCH, CLIP, NOISE, DELTA = 20, 16, 1.0, 1.0, 0.01
folder, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 50
X, y = load_digits(return_X_y=True)
rows, test, labels, expected = train_test_split(X.astype(np.float32), y, test_size=0.25, random_state=0, stratify=y)


@functools.cache
def clients(alpha: float) -> dict[str, BundleClient]:
    """Split each class over the clients by shares from a Dirichlet distribution: the smaller alpha, the less even."""
    rng, places = np.random.default_rng(0), [[] for _ in range(CLIENTS)]
    for digit in range(10):
        mine = rng.permutation(np.flatnonzero(labels == digit))
        ends = (np.cumsum(rng.dirichlet(np.full(CLIENTS, alpha))) * len(mine)).astype(int)[:-1]
        for place, part in zip(places, np.split(mine, ends), strict=True):
            place.extend(part)
    return {f"client {i}": client(place) for i, place in enumerate(places) if place}


def client(place: object) -> BundleClient:
    """Return a client with some of the rows."""
    return BundleClient(folder, {"X": rows[place], "label_1": labels[place][:, None]})


everyone = client(slice(None))


def accuracy(weights: np.ndarray) -> float:
    """Return the share of right predictions."""
    return float((everyone.predict(weights, {"X": test})["label"] == expected).mean())


def federated(alpha: float, broken: bool = False, **settings: float) -> list[float]:
    """Return the accuracy after each round."""
    weights, curve, parts = everyone.weights, [], clients(alpha)
    for number in range(rounds):
        updates = [
            Update(name, part.fit(weights, epochs=1, batch_size=BATCH, seed=number)[0], part.count)
            for name, part in parts.items()
        ]
        if broken:
            wrong = {"short": weights[1:], "missing": weights * np.nan, "outsize": weights + 1000}
            updates += [Update(name, values.astype(np.float32)) for name, values in wrong.items()]
        result = aggregate(weights, updates, seed=number, **settings)
        weights = result.weights
        curve.append(accuracy(weights))
    if result.rejected:
        print("rejected in each round:", "; ".join(f"{name}: {reason}" for name, reason in result.rejected.items()))
    return curve


def pooled() -> list[float]:
    """Return the accuracy after each epoch on all rows."""
    weights, curve = everyone.weights, []
    for number in range(rounds):
        weights = everyone.fit(weights, epochs=1, batch_size=BATCH, seed=number)[0]
        curve.append(accuracy(weights))
    return curve


curves = {"pooled": pooled()}
curves |= {f"α = {alpha:g}": federated(alpha) for alpha in (100, 1, 0.1)}
curves["α = 1, three broken clients"] = federated(1, broken=True)
curves[f"α = 1, clipped at {CLIP:g}"] = federated(1, clip=CLIP)
private = epsilon(noise=NOISE, rounds=rounds, delta=DELTA)
name = f"α = 1, clipped at {CLIP:g}, noise of z = {NOISE:g}: ε = {private:.0f} at δ = {DELTA:g}"
curves[name] = federated(1, clip=CLIP, noise=NOISE, expected=CLIENTS)
print(
    f"| accuracy on {len(test)} test rows | after {max(rounds // 5, 1)} rounds | after {rounds} rounds |\n|---|---|---|"
)
for name, curve in curves.items():
    print(f"| {name} | {curve[max(rounds // 5, 1) - 1]:.3f} | {curve[-1]:.3f} |")

if len(sys.argv) > 3:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name in (name for name in curves if "broken" not in name and not name.endswith(f"clipped at {CLIP:g}")):
        axes.plot(range(1, rounds + 1), curves[name], label=name, color="black" if name == "pooled" else None)
    axes.set(xlabel="round (pooled: epoch)", ylabel="accuracy on test rows", ylim=(0.5, 1))
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[3], dpi=150)
