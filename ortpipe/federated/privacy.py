"""The differential privacy of rounds with Gaussian noise."""

import math

import numpy as np

from ortpipe.errors import ConfigError

ORDERS = range(2, 513)  # α; the best one is chosen


def epsilon(*, noise: float, rounds: int, delta: float, rate: float = 1.0) -> float:
    """Return ε of the (ε, δ)-differential privacy of a client in all rounds of `aggregate` together.

    Each round samples every client with probability q, independently, and adds noise of standard deviation z·C to a sum
    that one client changes by at most C. Its Rényi divergence of order α is at most

        ρ(α) = log(Σₖ binom(α, k)·(1 − q)^(α−k)·q^k·exp((k² − k)/(2z²))) / (α − 1),   k = 0 … α,

    with q = 1: α/(2z²). R rounds have R·ρ(α), and

        ε = min over α = 2 … 512 of  R·ρ(α) + log((α − 1)/α) − (log δ + log α)/(α − 1).

    Only orders that are integers are tried: libraries that try fractions too, such as dp-accounting, find up to a tenth
    less.

    Args:
        noise: z, as for `aggregate`.
        rounds: R.
        delta: δ; less than 1 / number of clients.
        rate: q, the share of the clients in a round.

    Raises:
        ConfigError: an argument is out of its bounds.

    >>> round(epsilon(noise=1.0, rounds=100, rate=0.01, delta=1e-5), 3)
    1.225

    Mironov, Talwar and Zhang (2019), Rényi differential privacy of the sampled Gaussian mechanism; Canonne, Kamath and
    Steinke (2020), The discrete Gaussian for differential privacy, proposition 12.
    """
    for name, number, most in (("noise", noise, math.inf), ("rounds", rounds, math.inf), ("delta", delta, 1)):
        if not 0 < number < most:
            bounds = "positive" if most == math.inf else f"between 0 and {most}"
            raise ConfigError(f"{name} must be {bounds}.", got=number, fix="Change it.")
    if not 0 < rate <= 1:
        raise ConfigError("rate must be over 0, and at most 1.", got=rate, fix="Give the share of clients per round.")
    bounds_of_orders = (
        rounds * _divergence(order, noise, rate)
        + math.log((order - 1) / order)
        - (math.log(delta) + math.log(order)) / (order - 1)
        for order in ORDERS
    )
    return max(0.0, min(bounds_of_orders))


def _divergence(order: int, noise: float, rate: float) -> float:
    """Return ρ(α) of one round."""
    if rate == 1:
        return order / (2 * noise**2)
    k = np.arange(order + 1)
    binomial = np.array([math.lgamma(order + 1) - math.lgamma(i + 1) - math.lgamma(order - i + 1) for i in k])
    terms = binomial + (order - k) * math.log1p(-rate) + k * math.log(rate) + (k**2 - k) / (2 * noise**2)
    return float(np.logaddexp.reduce(terms)) / (order - 1)
