"""One round of federated averaging on the server."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ortpipe.errors import ConfigError, TrainError

OUTSIZE = 10.0  # times the median norm of a round


@dataclass(frozen=True, eq=False)
class Update:
    """The result of one client.

    Attributes:
        client: its name.
        values: its weights after local training, or their change, one vector [P].
        weight: its share in the average relative to the others', such as its number of rows.
    """

    client: str
    values: np.ndarray
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Round:
    """The result of one round.

    Attributes:
        weights: the new weights [P], in the dtype of the old ones.
        norms: ‖Δ‖₂ of each accepted client's change before clipping, by name.
        rejected: the reason for each client whose update was left out, by name.
    """

    weights: np.ndarray
    norms: Mapping[str, float]
    rejected: Mapping[str, str] = field(default_factory=dict)


def aggregate(
    weights: np.ndarray,
    updates: Iterable[Update],
    *,
    of: Literal["weights", "changes"] = "weights",
    clip: float | None = None,
    noise: float = 0.0,
    expected: float | None = None,
    outsize: float = OUTSIZE,
    seed: int | None = None,
) -> Round:
    """Return the weights after one round: θ + Σᵢ nᵢ·Δᵢ / Σᵢ nᵢ, for changes Δᵢ with weights nᵢ.

    With `clip`, Δᵢ·min(1, C/‖Δᵢ‖₂) replaces Δᵢ, and all nᵢ are 1: no client changes the sum by more than C. With
    `expected`, m replaces Σᵢ nᵢ. With `noise`, the result is θ + (Σᵢ Δᵢ + N(0, z²·C²·I)) / m, even without updates;
    `epsilon` is its privacy. The order of the updates does not change the result.

    An update is rejected if it has the wrong length, a number that is not finite, numbers that θ's dtype cannot hold,
    or a weight nᵢ that is not positive, or if its client sent several; without noise, also if its norm is over
    `outsize` times the round's median of clients that changed something. The others are averaged.

    Args:
        weights: θ [P], float32 or float64.
        updates: of the clients of this round.
        of: whether `values` are clients' weights, or their changes.
        clip: C, the largest norm of a change.
        noise: z, the standard deviation of the noise as a multiple of C.
        expected: m, with clip: the number of clients that a round samples on average.
        outsize: the largest norm relative to the median.
        seed: of the noise; by default from the operating system, so that it cannot be computed again.

    Raises:
        ConfigError: θ is no vector of finite floats, noise without `clip` or `expected`, `expected` without
            `clip`, or a setting out of its bounds.
        TrainError: no update can be averaged, without noise.

    >>> result = aggregate(np.zeros(2), [Update("a", np.array([1.0, 0]), 3), Update("b", np.array([0.0, np.nan]))])
    >>> result.weights.tolist(), dict(result.rejected)
    ([1.0, 0.0], {'b': 'numbers that are not finite'})

    McMahan, Moore, Ramage, Hampson and Agüera y Arcas (2017), Communication-efficient learning of deep networks from
    decentralized data; with noise, McMahan, Ramage, Talwar and Zhang (2018), Learning differentially private recurrent
    language models.
    """
    if of not in ("weights", "changes"):
        raise ConfigError("of must be weights or changes.", got=of, fix="Write one of them.")
    if weights.dtype.kind != "f" or not np.isfinite(weights).all():
        got = f"{weights.dtype}" if weights.dtype.kind != "f" else "numbers that are not finite"
        raise ConfigError("weights must be finite floats.", got=got, fix="Start from the weights of the bundle.")
    _check(clip, noise, expected, outsize)
    changes, reasons = _checked(weights, updates, of)
    norms = {update.client: float(np.linalg.norm(change)) for update, change in changes}
    if not noise:
        most = outsize * float(np.median([norm for norm in norms.values() if norm] or [0.0]))  # others learned nothing
        reasons |= {name: f"a norm of {norm:.3g}, over {most:.3g}" for name, norm in norms.items() if norm > most}
    accepted = [(update, change) for update, change in changes if update.client not in reasons]
    if not accepted and not noise:
        got = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "no update"
        raise TrainError("A round needs an update that can be averaged.", got=got, fix="Correct the clients.")
    total = np.zeros(weights.shape)
    for update, change in accepted:
        norm = norms[update.client]
        total += change * (update.weight if clip is None else min(1.0, clip / norm) if norm else 1.0)
    count = expected or sum(update.weight if clip is None else 1.0 for update, _ in accepted)
    if noise and clip is not None:
        total = total + np.random.default_rng(seed).normal(0, noise * clip, weights.shape)
    after = (weights + total / count).astype(weights.dtype)
    return Round(after, {update.client: norms[update.client] for update, _ in accepted}, reasons)


def _check(clip: float | None, noise: float, expected: float | None, outsize: float) -> None:
    for name, number in (("clip", clip), ("expected", expected), ("outsize", outsize)):
        if number is not None and not 0 < number < np.inf:
            raise ConfigError(f"{name} must be positive.", got=number, fix="Give a positive number.")
    if not 0 <= noise < np.inf:
        raise ConfigError("noise must be at least 0.", got=noise, fix="Give a positive number, or leave it out.")
    if noise and (clip is None or expected is None):
        rule, fix = "noise needs clip, and expected, the number of clients per round.", "Pass both."
        raise ConfigError(rule, got=f"clip={clip}, expected={expected}", fix=fix)
    if expected is not None and clip is None:
        rule, fix = "expected needs clip, with which all clients count the same.", "Pass clip, or leave out expected."
        raise ConfigError(rule, got=f"expected={expected}", fix=fix)


def _checked(
    weights: np.ndarray, updates: Iterable[Update], of: str
) -> tuple[list[tuple[Update, np.ndarray]], dict[str, str]]:
    """Return the changes of usable updates, by client's name, and the reasons against the others."""
    changes, reasons = list[tuple[Update, np.ndarray]](), dict[str, str]()
    updates = sorted(updates, key=lambda update: str(update.client))
    counts, most = Counter(update.client for update in updates), np.finfo(weights.dtype).max
    for update in updates:
        if counts[update.client] > 1:
            reasons[update.client] = f"{counts[update.client]} updates"
            continue
        try:
            values = np.asarray(update.values)
        except ValueError:
            values = np.empty(0)  # ragged
        if values.shape != weights.shape:
            reasons[update.client] = f"shape {values.shape}, not {weights.shape}"
        elif values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            reasons[update.client] = "numbers that are not finite" if values.dtype.kind == "f" else f"{values.dtype}"
        elif np.asarray(update.weight).dtype.kind not in "fiu" or not 0 < update.weight < np.inf:
            reasons[update.client] = f"a weight of {update.weight}"
        else:
            change = values.astype(np.float64) - (weights if of == "weights" else 0)
            if np.abs(weights + change).max(initial=0) <= most:
                changes.append((update, change))
            else:
                reasons[update.client] = f"numbers over the largest of {weights.dtype}"
    return changes, reasons
