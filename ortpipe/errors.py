"""What can go wrong, by phase; every message states the rule, what was got, and the way out."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable


class OrtpipeError(Exception):
    """Base of every error that ortpipe raises on purpose.

    Args:
        rule: what must hold, as a sentence.
        got: what was found instead.
        fix: what the user can do about it.

    >>> print(OrtpipeError("train.epochs must be at least 1.", got="0", fix="Set train.epochs=1 or more."))
    train.epochs must be at least 1.
      got: 0
      fix: Set train.epochs=1 or more.
    """

    def __init__(self, rule: str, *, got: object = None, fix: str | None = None) -> None:
        parts = [rule]
        if got is not None:
            parts.append(f"  got: {got}")
        if fix is not None:
            parts.append(f"  fix: {fix}")
        super().__init__("\n".join(parts))


class ConfigError(OrtpipeError, ValueError):
    """A config value breaks its rule (a ValueError, so that validators collect it with the others)."""


class UnknownNameError(ConfigError, KeyError):
    """A name that its catalogue does not have (a KeyError, as of any mapping)."""

    __str__ = Exception.__str__  # KeyError shows the repr of its message


class ModelError(OrtpipeError):
    """An ONNX model cannot be read, checked or run."""


class DataError(OrtpipeError):
    """Rows that cannot be trained or evaluated on."""


class ConvertError(OrtpipeError):
    """A source that cannot become a forward model."""


class LossError(OrtpipeError):
    """A loss that does not fit the model."""


class PenaltyError(OrtpipeError):
    """A penalty that does not fit the model."""


class DeriveError(OrtpipeError):
    """A graph whose gradient cannot be built."""


class TrainError(OrtpipeError):
    """Training that cannot start."""


class ConvergenceError(TrainError):
    """Training whose loss became nan or infinite."""


class NotFittedError(TrainError, AttributeError):
    """What only training gives is asked for before it (an AttributeError, as in scikit-learn)."""


class EvaluateError(OrtpipeError):
    """A metric that cannot be computed."""


class StageError(OrtpipeError):
    """A stage that broke its own promise."""


class TrackingError(OrtpipeError):
    """A recorder that cannot be reached."""


class ReproError(OrtpipeError):
    """A run that is not the same when it is made again."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return a sentence that names the valid choices and guesses the one that was meant.

    >>> nearest("adm", ["sgd", "adam"])
    "Did you mean 'adam'? Valid: adam, sgd."
    >>> nearest("xyz", ["sgd", "adam"])
    'Valid: adam, sgd.'
    """
    valid = sorted(choices)
    match = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    guess = f"Did you mean {match[0]!r}? " if match else ""
    return f"{guess}Valid: {', '.join(valid) or 'none'}."


def quoted(text: str) -> str:
    r"""Return text as Hydra's grammar quotes it.

    >>> print(quoted("it's"), quoted("a\\"))
    'it\'s' 'a\\'
    """
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + found[2].replace("'", r"\'"), text) + "'"


def listing(key: str, name: str) -> str:
    """Return the argument that sets a key to a list of one name, as a shell takes it.

    >>> print(listing("columns", "age"), listing("columns", "größe"), listing("columns", "1"))
    columns=[age] "columns=['größe']" "columns=['1']"
    """
    if re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII) and name.lower() not in (
        "null",
        "true",
        "false",
        "nan",
        "inf",
    ):
        return f"{key}=[{name}]"
    argument = f"{key}=[{quoted(name)}]"
    return shlex.quote(argument) if re.search(r'["$`\\!]', argument) else f'"{argument}"'
