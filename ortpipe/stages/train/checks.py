"""What the settings of optimizers and schedules must keep to."""

from __future__ import annotations

from ortpipe.errors import ConfigError


def check_rate(lr: float) -> None:
    """Refuse a learning rate that is not positive and finite."""
    if not 0 < lr < float("inf"):
        raise ConfigError("{key} must be positive and finite.", key="lr", got=lr, fix="Set {key}=0.01.")


def check_decay(name: str, value: float) -> None:
    """Refuse a momentum, decay or share outside [0, 1)."""
    if not 0 <= value < 1:
        raise ConfigError("{key} must lie in [0, 1).", key=name, got=value, fix="Set {key}=0.9.")


def check_setting(name: str, value: float, least: float) -> None:
    """Refuse a schedule's setting that is not finite, or below the least that makes sense."""
    if not least <= value < float("inf"):
        fix = f"Set {{key}}={max(least, 1)}."
        raise ConfigError(f"{{key}} must be finite and at least {least}.", key=name, got=value, fix=fix)


def check_epsilon(epsilon: float) -> None:
    """Refuse an ε that is negative or not finite."""
    if not 0 <= epsilon < float("inf"):
        rule = "{key} must be finite and not negative."
        raise ConfigError(rule, key="epsilon", got=epsilon, fix="Set {key}=1e-8.")


def check_weight_decay(weight_decay: float) -> None:
    """Refuse a weight decay that is negative or not finite."""
    if not 0 <= weight_decay < float("inf"):
        rule = "{key} must be finite and not negative."
        raise ConfigError(rule, key="weight_decay", got=weight_decay, fix="Set {key}=0.01.")
