"""The published schedules that ours have to equal.

python -m stages.train.rates    (from tests/, with PyTorch installed) writes rates.json anew
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

RATES = Path(__file__).parent / "rates.json"
STEPS, LR = 60, 0.3
LOSSES = np.round(np.abs(np.random.default_rng(4).normal(size=STEPS)) + 10 / np.arange(1, STEPS + 1), 3)
# test → (member, its settings, PyTorch's scheduler, its settings)
PUBLISHED = {
    "constant": ("constant", {}, "ConstantLR", {"factor": 1.0}),
    "step": ("step", {"every": 7, "gamma": 0.4}, "StepLR", {"step_size": 7, "gamma": 0.4}),
    "exponential": ("exponential", {"gamma": 0.9}, "ExponentialLR", {"gamma": 0.9}),
    "polynomial": ("polynomial", {"power": 1.7}, "PolynomialLR", {"total_iters": STEPS, "power": 1.7}),
    "cosine": ("cosine", {"lowest": 0.02}, "CosineAnnealingLR", {"T_max": STEPS, "eta_min": 0.02}),
    "cosine, restarts": ("cosine", {"period": 13}, "CosineAnnealingWarmRestarts", {"T_0": 13}),
    "cosine, growth": (
        *("cosine", {"period": 5, "growth": 2, "lowest": 0.01}),
        *("CosineAnnealingWarmRestarts", {"T_0": 5, "T_mult": 2, "eta_min": 0.01}),
    ),
    "one_cycle": ("one_cycle", {}, "OneCycleLR", {"max_lr": LR, "total_steps": STEPS}),
    "one_cycle, other": (
        *("one_cycle", {"rise": 0.45, "start": 5.0, "end": 50.0}),
        *(
            "OneCycleLR",
            {"max_lr": LR, "total_steps": STEPS, "pct_start": 0.45, "div_factor": 5, "final_div_factor": 50},
        ),
    ),
    "reduce_on_plateau": (
        *("reduce_on_plateau", {"by": 0.5, "patience": 2, "threshold": 0.01}),
        *("ReduceLROnPlateau", {"factor": 0.5, "patience": 2, "threshold": 0.01}),
    ),
    "reduce_on_plateau, greater is better": (
        *("reduce_on_plateau", {"by": 0.5, "patience": 2, "threshold": 0.01}),
        *("ReduceLROnPlateau", {"factor": 0.5, "patience": 2, "threshold": 0.01, "mode": "max"}),
    ),
}


def published(name):
    """Return PyTorch's rate of every step; the one that watches a loss gets LOSSES."""
    import torch

    _, _, kind, options = PUBLISHED[name]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=LR)
    scheduler = getattr(torch.optim.lr_scheduler, kind)(optimizer, **options)
    found = []
    for loss in LOSSES:
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step(*([float(loss)] if kind == "ReduceLROnPlateau" else []))
    return found


if __name__ == "__main__":
    RATES.write_text(json.dumps({name: published(name) for name in PUBLISHED}, separators=(",", ":")) + "\n")
