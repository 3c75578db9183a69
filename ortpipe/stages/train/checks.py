"""What the settings of optimizers and schedules must keep to."""

from __future__ import annotations

from ortpipe.errors import ConfigError


def check_rate(lr: float) -> None:
    """Refuse a learning rate that is not positive and finite."""
    if not 0 < lr < float("inf"):
        raise ConfigError("A learning rate is positive and finite.", got=lr, fix="Set train.optimizer.lr=0.01.")


def check_decay(name: str, value: float, group: str | None = "optimizer") -> None:
    """Refuse a momentum, decay or share outside [0, 1)."""
    if not 0 <= value < 1:
        key = f"train.{group}.{name}" if group else f"train.{name}"
        raise ConfigError(f"{key} lies in [0, 1).", got=value, fix=f"Set {key}=0.9.")


def check_setting(name: str, value: float, least: float) -> None:
    """Refuse a schedule's setting that is not finite, or below the least that makes sense."""
    if not least <= value < float("inf"):
        fix = f"Set train.schedule.{name}={max(least, 1)}."
        raise ConfigError(f"train.schedule.{name} is finite and at least {least}.", got=value, fix=fix)


def check_epsilon(epsilon: float) -> None:
    """Refuse an ε that is negative or not finite."""
    if not 0 <= epsilon < float("inf"):
        fix = "Set train.optimizer.epsilon=1e-8."
        raise ConfigError("train.optimizer.epsilon is finite and not negative.", got=epsilon, fix=fix)


def check_weight_decay(weight_decay: float) -> None:
    """Refuse a weight decay that is negative or not finite."""
    if not 0 <= weight_decay < float("inf"):
        fix = "Set train.optimizer.weight_decay=0.01."
        raise ConfigError("train.optimizer.weight_decay is finite and not negative.", got=weight_decay, fix=fix)
