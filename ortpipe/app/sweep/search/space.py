"""The search space: Hydra's sweep overrides as Optuna's distributions."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ortpipe.app.compose import parsed
from ortpipe.app.redact import redacted
from ortpipe.errors import ConfigError

LOG = "log"  # the tag of a range or interval with a logarithmic scale


@dataclass(frozen=True)
class Space:
    """The keys that a search varies, and the overrides that all its jobs share."""

    distributions: dict[str, BaseDistribution] = field(default_factory=dict)
    values: dict[str, list[Any]] = field(default_factory=dict)  # of the same keys; of an interval, its ends
    intervals: list[str] = field(default_factory=list)  # those of the keys that have one
    fixed: dict[str, str] = field(default_factory=dict)  # overrides by key

    @classmethod
    def of(cls, arguments: Sequence[str], loader: ConfigLoader | None) -> Self:
        """Return the space of some overrides; if a key occurs twice, the last one counts."""
        space = cls()
        for key, override in parsed(arguments, loader).items():
            if not override.is_sweep_override():
                space.fixed[key] = str(override.input_line)
                continue
            space.distributions[key], space.values[key] = _distribution(key, override)
            space.intervals.extend([key] if override.is_interval_sweep() else [])
        if not space.distributions:
            rule, fix = "A search needs keys to vary.", "Add one, such as 'train.optimizer.lr=interval(0.001, 0.1)'."
            raise ConfigError(rule, key="hydra.sweeper.params", got="none", fix=fix)
        return space

    def combinations(self) -> list[dict[str, Any]]:
        """Return every combination of values."""
        if self.intervals:
            rule, fix = "A grid needs a list or a range of values.", "Set {key}=choice(…), or another sampler."
            raise ConfigError(rule, key=self.intervals[0], got="an interval", fix=fix)
        return [dict(zip(self.values, job, strict=True)) for job in itertools.product(*self.values.values())]

    def choices(self) -> dict[str, list[str]]:
        """Return the overrides to choose from by key; of an interval, its ends."""
        varied = {key: [f"{key}={value}" for value in values] for key, values in self.values.items()}
        return {**{key: [override] for key, override in self.fixed.items()}, **varied}


def _distribution(key: str, override: Override) -> tuple[BaseDistribution, list[Any]]:
    """Return the distribution of a key, and its values or its ends."""
    sweep: Any = override.value()
    is_number = isinstance(sweep, IntervalSweep | RangeSweep)
    if getattr(sweep, "shuffle", False) or set(getattr(sweep, "tags", ())) - ({LOG} if is_number else set()):
        rule, fix = "A search knows the tag log of ranges and intervals, and no shuffle.", "Write {key} without it."
        raise ConfigError(rule, key=key, got=redacted(str(override.input_line)), fix=fix)
    if not is_number:
        values = list(override.sweep_string_iterator())
        return CategoricalDistribution(values), values
    if isinstance(sweep, IntervalSweep):
        step, ends = None, [sweep.start, sweep.end]
    else:
        step, ends = sweep.step, list(np.arange(sweep.start, sweep.stop, sweep.step).tolist())
    whole = all(isinstance(end, int) for end in ends)
    kind, log = IntDistribution if whole else FloatDistribution, LOG in sweep.tags
    try:
        return kind(ends[0], ends[-1], log=log, **({} if log or step is None else {"step": step})), ends
    except (ValueError, IndexError) as error:
        rule, fix = "An interval or a range must not be empty, and with tag(log, …) begin above 0.", "Correct {key}."
        raise ConfigError(rule, key=key, got=redacted(str(override.input_line)), fix=fix) from error
