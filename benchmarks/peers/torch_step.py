"""PyTorch: a step at a time, eager or compiled (WORD `compile`)."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import torch
from plain import DEVICE, Epoch, Weights, main
from torch import nn


def network(problem: SimpleNamespace) -> nn.Sequential:
    """Return the network with the given weights."""
    if problem.kind == "cnn":
        first, second = problem.weights[0].shape[0], problem.weights[2].shape[0]
        layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, first, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.Flatten()]
        layers += [nn.Linear(second * 16, problem.classes)]
    else:
        layers = []
        for features, outputs in zip(problem.sizes, problem.sizes[1:], strict=False):
            layers += [nn.Linear(features, outputs), nn.ReLU()]
        del layers[-1]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for own, given in zip(model.parameters(), problem.weights, strict=True):
            own.copy_(torch.from_numpy(given.T if given.ndim == 2 else given))
    return model


def build(problem: SimpleNamespace, threads: int) -> tuple[Epoch, Weights]:
    """Return the epoch and the weights."""
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # a GPU would round float32 to fewer bits
    model = network(problem).to(DEVICE)
    X, y = torch.from_numpy(problem.X).to(DEVICE), torch.from_numpy(problem.y).to(DEVICE)
    if not problem.classes:
        y = y.reshape(-1, 1)
    distance = nn.CrossEntropyLoss() if problem.classes else nn.MSELoss()
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[problem.optimizer]
    optimizer = kind(model.parameters(), lr=problem.lr, fused=True)

    def forward(rows: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        return distance(model(rows), truth)

    if "compile" in sys.argv:
        forward = torch.compile(forward, dynamic=False, mode=None if DEVICE == "cpu" else "reduce-overhead")

    def epoch(index: np.ndarray) -> float:
        rows = torch.from_numpy(index).to(DEVICE)
        losses = []
        for batch, truth in zip(X[rows], y[rows], strict=True):
            optimizer.zero_grad()
            loss = forward(batch, truth)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach() if DEVICE == "cpu" else loss.detach().clone())  # a GPU's graph writes over it
        return float(torch.stack(losses).mean())

    def weights() -> dict[str, np.ndarray]:
        arrays = [p.detach().cpu().numpy() for p in model.parameters()]
        return dict(zip(problem.names, [a.T if a.ndim == 2 else a for a in arrays], strict=True))

    return epoch, weights


if __name__ == "__main__":
    main(build)
