"""Likelihood of a simulator: a network learns that of the drift-diffusion model, and HMC samples with its gradient."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from recipe import main

PACKAGE = "a new network"
NEEDS = ("scipy",)
METRIC = "mean_absolute_error"
CHECK = "share of true parameters in 90 % intervals of HMC"
NAMES = ("drift", "boundary", "start", "delay")
LOW, HIGH = np.array([-2.0, 0.8, 0.3, 0.1]), np.array([2.0, 2.0, 0.7, 0.6])  # of the uniform prior
LONGEST, STEP = 6.0, 0.01  # seconds
FLOOR = -7.0  # the least log density
PARTS = {"train": 3000, "validation": 200, "test": 200}  # parameters that are simulated
TRIALS = 2000  # of each
SUBJECTS, ANSWERS = 12, 150
LAPSES = 0.02  # the share of trials whose time and choice are uniform, so that no single trial decides


def simulate(theta: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the response time and the choice, 1 or -1, of a trial for each row of parameters [N, 4]."""
    drift, boundary, start, delay = theta.T
    bound = boundary - 0.5826 * np.sqrt(STEP)  # a walk in steps overshoots by so much (Siegmund, 1985)
    x, time, choice = (2 * start - 1) * boundary, np.full(len(theta), LONGEST), np.ones(len(theta))
    active = np.arange(len(theta))
    for number in range(1, int(LONGEST / STEP)):
        x[active] += drift[active] * STEP + np.sqrt(STEP) * random.standard_normal(len(active))
        ended = active[np.abs(x[active]) >= bound[active]]
        time[ended], choice[ended] = number * STEP, np.sign(x[ended])
        active = active[np.abs(x[active]) < bound[active]]
    return time + delay, choice


def rows(folder: Path, short: bool) -> None:
    """Write parameters, times and choices with their log density, by a kernel estimate of simulated trials."""
    random = np.random.default_rng(0)
    for part, count in PARTS.items():
        chosen, trials = random.uniform(LOW, HIGH, (3 if short else count, 4)), 200 if short else TRIALS
        parts = [_labelled(theta, trials, random) for theta in chosen]
        X, y = (np.concatenate(arrays).astype(np.float32) for arrays in zip(*parts, strict=True))
        np.savez(folder / f"{part}.npz", X=X, y=y)
    subjects, answers = (2, 50) if short else (SUBJECTS, ANSWERS)
    theta = random.uniform(LOW + (HIGH - LOW) / 10, HIGH - (HIGH - LOW) / 10, (subjects, 4))
    trials = np.stack(simulate(theta.repeat(answers, axis=0), random), axis=1)
    np.savez(folder / "subjects.npz", theta=theta, trials=trials.reshape(subjects, answers, 2))


def dropin(model: Path, folder: Path) -> float:
    """Return the share of true parameters between the 5th and 95th percentile of their samples."""
    truth = np.load(folder / "subjects.npz")["theta"]
    low, high = np.percentile(_samples(model, folder), [5, 95], axis=1)
    return float(np.mean((low <= truth) & (truth <= high)))


def picture(folder: Path):
    """Return posterior means and 90 % intervals of each parameter over the true ones."""
    import matplotlib.pyplot as plt

    truth, samples = np.load(folder / "subjects.npz")["theta"], _samples(folder / "trained.onnx", folder)
    mean, (low, high) = samples.mean(1), np.percentile(samples, [5, 95], axis=1)
    figure, panels = plt.subplots(1, 4, figsize=(11, 2.8), layout="constrained")
    for axes, name, x, y, a, b, first, last in zip(
        panels, NAMES, truth.T, mean.T, low.T, high.T, LOW, HIGH, strict=True
    ):
        axes.plot([first, last], [first, last], color="0.7")
        axes.errorbar(x, y, (y - a, b - y), fmt="o", markersize=4)
        axes.set(title=name, xlabel="true")
    panels[0].set_ylabel("posterior mean, 90 %")
    return figure


def sample(session, trials: np.ndarray, count: int = 600, steps: int = 8, seed: int = 0) -> np.ndarray:
    """Return samples of the parameters [count / 2, 4] by Hamiltonian Monte Carlo, given trials [N, 2].

    A parameter is LOW + (HIGH - LOW) / (1 + exp(-u)); u has the prior of the logistic distribution. `session` returns
    the log density of each row and its gradient. In the first half, the step adapts to an acceptance of 0.8.
    """
    random, width, size = np.random.default_rng(seed), HIGH - LOW, 0.05
    kept = np.empty((count // 2, 4))

    def energy(u: np.ndarray) -> tuple[float, np.ndarray]:
        share = 1 / (1 + np.exp(-u))
        X = np.column_stack([np.tile(LOW + width * share, (len(trials), 1)), trials]).astype(np.float32)
        gradient, value = session.run(["X_grad", "prediction"], {"X": X})
        known, lapse = (1 - LAPSES) * np.exp(value), LAPSES / (2 * LONGEST)
        density = np.log(known + lapse).sum(dtype=float) + np.log(share * (1 - share)).sum()
        slope = (gradient[:, :4] * known / (known + lapse)).sum(0, dtype=float)
        return -density, -(slope * width * share * (1 - share) + 1 - 2 * share)

    u = np.zeros(4)
    now, slope = energy(u)
    for number in range(count):
        momentum = random.standard_normal(4)
        new, new_slope, moving = u, slope, momentum - size / 2 * slope
        for _ in range(steps):
            new = new + size * moving
            after, new_slope = energy(new)
            moving = moving - size * new_slope
        moving = moving + size / 2 * new_slope
        change = now + momentum @ momentum / 2 - after - moving @ moving / 2
        accepted = np.exp(min(0.0, change)) if np.isfinite(change) else 0.0
        if random.uniform() < accepted:
            u, now, slope = new, after, new_slope
        if number < count // 2:
            size *= np.exp((accepted - 0.8) / np.sqrt(10 + number))
        else:
            kept[number - count // 2] = LOW + width / (1 + np.exp(-u))
    return kept


def _samples(model: Path, folder: Path) -> np.ndarray:
    """Return samples of each subject's parameters [subjects, samples, 4]."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.stack([sample(session, trials) for trials in np.load(folder / "subjects.npz")["trials"]])


def _labelled(theta: np.ndarray, trials: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return rows [180, 6] of parameters, time and choice, and their log densities."""
    from scipy.stats import gaussian_kde

    time, choice = simulate(np.tile(theta, (trials, 1)), random)
    asked = np.concatenate([time[:150], theta[3] + random.uniform(0.02, LONGEST, 30)])
    sides = np.concatenate([choice[:150], random.choice([-1.0, 1.0], 30)])
    y = np.full(len(asked), FLOOR)
    for side in (-1, 1):
        chosen, of_side = np.log(time[choice == side] - theta[3]), sides == side
        if len(chosen) > 5:
            after = asked[of_side] - theta[3]
            density = gaussian_kde(chosen, 0.5 * len(chosen) ** -0.2)(np.log(after)) * np.mean(choice == side) / after
            y[of_side] = np.log(np.maximum(density, np.exp(FLOOR)))
    return np.column_stack([np.tile(theta, (len(asked), 1)), asked, sides]), y[:, None]


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
