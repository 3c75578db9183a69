"""A training loop of PyTorch as a config: ortpipe trains the module with the same batches and the same losses."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from recipe import main

PACKAGE = "a PyTorch module"
NEEDS = ("torch", "onnxscript", "safetensors")
METRIC = "accuracy"
CHECK = "accuracy of the PyTorch module"
PARTS = {"train": (0, 1200), "validation": (1200, 1400), "test": (1400, 1797)}  # in the order of the file
EPOCHS, REPEATS = 20, 7
TOLERANCE = 1e-4  # between the losses of an epoch


def module():
    """Return the untrained module, always with the same weights."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


def loop(net, X: np.ndarray, y: np.ndarray, epochs: int) -> list[float]:
    """Train a module in place, and return the mean loss of each epoch."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(y)), batch_size=32)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    criterion = nn.CrossEntropyLoss()
    losses = []
    for _ in range(epochs):
        total = 0.0
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        losses.append(total / len(y))
    return losses


def rows(folder: Path, short: bool) -> None:
    """Write scikit-learn's digits, the untrained module, and the losses of the loop."""
    import torch
    from safetensors.torch import save_file
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)
    digits = load_digits()
    X, y = digits.images[:, None].astype(np.float32) / 16, digits.target
    for part, (start, end) in PARTS.items():
        np.savez(folder / f"{part}.npz", X=X[start:end], y=y[start:end])
    net = module()
    torch.onnx.export(
        net,
        (torch.from_numpy(X[:2]),),
        folder / "before.onnx",
        input_names=["X"],
        output_names=["logits"],
        dynamic_shapes=({0: "N"},),
        external_data=False,
        dynamo=True,
        verbose=False,
    )
    save_file(net.state_dict(), folder / "before.safetensors")
    losses = loop(net, *_arrays(folder, "train"), 1 if short else EPOCHS)
    (folder / "losses.json").write_text(json.dumps(losses))


def dropin(model: Path, folder: Path) -> float:
    """Return the accuracy on test rows of the module with the weights beside a model file.

    Raises:
        SystemExit: the losses of the loop and of ortpipe differ
    """
    import torch
    from safetensors.torch import load_file

    theirs, ours = _losses(folder)
    if not np.allclose(theirs, ours, rtol=0, atol=TOLERANCE):
        raise SystemExit(f"the losses differ: {theirs} in the loop, {ours} in ortpipe")
    net = module()
    net.load_state_dict(load_file(model.with_suffix(".safetensors")))
    net.eval()
    X, y = _arrays(folder, "test")
    with torch.no_grad():
        return float(np.mean(net(torch.from_numpy(X)).argmax(1).numpy() == y))


def picture(folder: Path):
    """Return the losses of both, and their seconds per epoch."""
    import matplotlib.pyplot as plt

    theirs, ours = _losses(folder)
    seconds = _seconds(folder)
    print(f"largest difference of the losses {np.abs(theirs - ours).max():.1e}; seconds per epoch {seconds}")
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), width_ratios=[2, 1], layout="constrained")
    epochs = np.arange(1, len(ours) + 1)
    left.plot(epochs, theirs, color="tab:orange", linewidth=4, alpha=0.6, label="PyTorch loop")
    left.plot(epochs, ours, "o", color="tab:blue", markersize=4, label="ortpipe")
    left.set(xlabel="epoch", ylabel="training loss", yscale="log", xticks=range(5, EPOCHS + 1, 5))
    left.legend()
    bars = right.bar(["PyTorch loop", "ortpipe"], [1000 * each for each in seconds], color=["tab:orange", "tab:blue"])
    right.bar_label(bars, fmt="%.0f")
    right.set(ylabel="ms per epoch")
    right.margins(y=0.12)
    return figure


def _arrays(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    arrays = np.load(folder / f"{part}.npz")
    return arrays["X"], arrays["y"]


def _losses(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the training losses of all epochs in the loop, and in ortpipe."""
    import ortpipe

    losses = ortpipe.Run(folder / "run").losses
    return np.array(json.loads((folder / "losses.json").read_text())), losses.value[losses.kind == "train"].to_numpy()


def _seconds(folder: Path) -> tuple[float, float]:
    """Return the medians of the seconds per epoch, of the loop and of ortpipe in turn, each with one thread."""
    import torch

    import ortpipe

    torch.set_num_threads(1)
    X, y = _arrays(folder, "train")
    derived, data = ortpipe.Run(folder / "run").artifact("derive"), ortpipe.Data(ortpipe.Rows({"X": X}, y))
    adam = ortpipe.TrainConfig(ortpipe.OPTIMIZERS["adam"](lr=0.001), epochs=EPOCHS, batch_size=32, shuffle=False)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        loop(module(), X, y, EPOCHS)
        middle = time.perf_counter()
        ortpipe.train(derived, adam, data=data)
        times.append((middle - start, time.perf_counter() - middle))
    theirs, ours = np.median(times, axis=0) / EPOCHS
    return float(theirs), float(ours)


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
