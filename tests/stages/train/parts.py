"""The parts around an optimizer, and PyTorch's own, which they have to equal.

python -m stages.train.parts    (from tests/, with PyTorch installed) writes parts.json anew
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WEIGHTS = Path(__file__).parent / "parts.json"
ROWS, BATCH, EPOCHS = 22, 4, 2  # five batches and a half
START = {
    "w": [[0.5, -0.7], [1.1, 0.3], [-0.4, 0.9]],
    "b": [0.2, -0.1],
    "u": [[0.8], [-0.6]],
}
# case → (our optimizer, its settings, the parts, PyTorch's optimizer, settings by parameter)
CASES = {
    "clip.value": ("sgd", {"lr": 0.1}, {"clip": {"value": 0.2}}, "SGD", {}),
    "clip.norm": ("sgd", {"lr": 0.1}, {"clip": {"norm": 0.3}}, "SGD", {}),
    "clip.norm of adam": ("adam", {"lr": 0.05}, {"clip": {"norm": 0.3}}, "Adam", {}),
    "weight_decay": ("adam", {"lr": 0.05}, {"weight_decay": 0.4}, "AdamW", {"*": {"weight_decay": 0.4}}),
    "weight_decay by name": (
        *("adam", {"lr": 0.05}, {"weight_decay": {"[wu]": 0.4}}),
        *("AdamW", {"*": {"weight_decay": 0.4}, "b": {"weight_decay": 0.0}}),
    ),
    "factors": ("rmsprop", {"lr": 0.02}, {"factors": {"u": 0.25, "b": 3.0}}, "RMSprop", {"u": 0.25, "b": 3.0}),
    "factors of momentum": ("momentum", {"lr": 0.02}, {"factors": {"*": 0.5, "b": 2.0}}, "SGD", {"*": 0.5, "b": 2.0}),
    "accumulate": ("sgd", {"lr": 0.1}, {"accumulate": 2}, "SGD", {}),
    "accumulate for adam": ("adam", {"lr": 0.05}, {"accumulate": 3}, "Adam", {}),
    "average": ("nesterov", {"lr": 0.02}, {"average": 0.9}, "SGD", {}),
    "all of them": (
        *("adam", {"lr": 0.05}),
        {
            "clip": {"value": 0.5, "norm": 0.4},
            "accumulate": 2,
            "weight_decay": 0.4,
            "factors": {"w": 0.5},
            "average": 0.8,
        },
        *("AdamW", {"*": {"weight_decay": 0.4}, "w": 0.5}),
    ),
}
MOMENTUM = {"momentum": {"momentum": 0.9}, "nesterov": {"momentum": 0.9, "nesterov": True}}


def rows():
    """Return features [N, 3] and labels [N, 1]."""
    rng = np.random.default_rng(8)
    return rng.normal(size=(ROWS, 3)), rng.normal(size=(ROWS, 1))


def updates(accumulate):
    """Return the batches of each update of an epoch: what whole batches are left over, then the partial one."""
    whole = [slice(i, i + BATCH) for i in range(0, ROWS - BATCH + 1, BATCH)]
    groups = [whole[i : i + accumulate] for i in range(0, len(whole), accumulate)]
    return [*groups, [slice(len(whole) * BATCH, ROWS)]]


def trained(case):
    """Return PyTorch's weights by name after two epochs of tanh(X·w + b)·u on the mean squared error."""
    import torch

    ours, settings, parts, kind, own = CASES[case]
    weights = torch.nn.ParameterDict(
        {name: torch.nn.Parameter(torch.tensor(v, dtype=torch.float64)) for name, v in START.items()}
    )
    groups = []
    for name, weight in weights.items():
        group = {"params": [weight], "lr": settings["lr"]}
        for given in (own.get("*", {}), own.get(name, {})):
            group |= given if isinstance(given, dict) else {"lr": settings["lr"] * given}
        groups.append(group)
    optimizer = getattr(torch.optim, kind)(
        groups, **MOMENTUM.get(ours, {}), **({"alpha": 0.99} if ours == "rmsprop" else {})
    )
    ema = torch.optim.swa_utils.get_ema_multi_avg_fn(parts.get("average", 0.0))
    averages = torch.optim.swa_utils.AveragedModel(weights, multi_avg_fn=ema)
    averages.n_averaged += 1  # the first weights count
    X, y = map(torch.tensor, rows())
    clip = parts.get("clip", {})
    for group in updates(parts.get("accumulate", 1)) * EPOCHS:
        optimizer.zero_grad()
        for batch in group:
            predicted = torch.tanh(X[batch] @ weights["w"] + weights["b"]) @ weights["u"]
            (torch.nn.functional.mse_loss(predicted, y[batch]) / len(group)).backward()
        if "value" in clip:
            torch.nn.utils.clip_grad_value_(weights.values(), clip["value"])
        if "norm" in clip:
            torch.nn.utils.clip_grad_norm_(weights.values(), clip["norm"])
        optimizer.step()
        averages.update_parameters(weights)
    kept = averages.module if "average" in parts else weights
    return {name: kept[name].detach().numpy() for name in START}


if __name__ == "__main__":
    made = {case: {name: array.tolist() for name, array in trained(case).items()} for case in CASES}
    WEIGHTS.write_text(json.dumps(made, separators=(",", ":")) + "\n")
