"""What can go wrong, by phase; every message states the rule, what was got, and the way out."""

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self


class OrtpipeError(Exception):
    """Base of every error that ortpipe raises on purpose.

    A stage speaks of its own settings by name, as its caller in Python does; the command line, where the same setting
    is a key, puts the way to it in front (`under`).

    Args:
        rule: what must hold, as a sentence.
        got: what there was instead.
        fix: what the user can do about it.
        key: the setting that the error is about, if it is one; rule and fix write it as `{key}`, and settings beside it
            as `{at}name`, and a group of files of which one is chosen as `{group}`.

    >>> error = OrtpipeError("{key} must be at least 1.", key="epochs", got="0", fix="Set {key}=1 or {at}average=null.")
    >>> print(error)
    epochs must be at least 1.
      got: 0
      fix: Set epochs=1 or average=null.
    >>> print(error.under("train"))
    train.epochs must be at least 1.
      got: 0
      fix: Set train.epochs=1 or train.average=null.
    """

    def __init__(self, rule: str, *, got: object = None, fix: str | None = None, key: str | None = None) -> None:
        super().__init__(rule)  # a process pool makes the error anew from this, and then sets its attributes
        self._rule, self._fix, self._key, self._at = rule, fix, key, ""
        self.got = got

    def under(self, *path: str) -> Self:
        """Return the error, which now speaks of settings that lie under a path of keys."""
        self._at = "".join(f"{part}." for part in path if part) + self._at
        return self

    @property
    def key(self) -> str | None:
        """The setting, or else the group of settings, that the error is about, with the path that it lies under."""
        return f"{self._at}{self._key or ''}".rstrip(".") or None

    @property
    def rule(self) -> str:
        """What must hold, as a sentence."""
        return self._filled(self._rule)

    @property
    def fix(self) -> str | None:
        """What the user can do about it."""
        return None if self._fix is None else self._filled(self._fix)

    def _filled(self, text: str) -> str:
        key = self.key or ""
        return text.replace("{key}", key).replace("{group}", key.replace(".", "/")).replace("{at}", self._at)

    def __str__(self) -> str:
        lines = {"": self.rule, "  got: ": self.got, "  fix: ": self.fix}
        return "\n".join(f"{label}{text}" for label, text in lines.items() if text is not None)


class ConfigError(OrtpipeError, ValueError):
    """A config value breaks its rule."""


class UnknownNameError(ConfigError, KeyError):
    """A name that its catalogue does not have (a KeyError, as of any mapping)."""


class ModelError(OrtpipeError, RuntimeError):
    """An ONNX model cannot be read, checked or run."""


class DataError(OrtpipeError, ValueError):
    """Rows that cannot be trained or evaluated on."""


class ConvertError(OrtpipeError):
    """A source that cannot become a forward model."""


class NoRowsError(ConvertError):
    """A source that needs rows and gets none."""


class LossError(OrtpipeError, ValueError, RuntimeError):
    """A loss that does not fit the model."""


class PenaltyError(OrtpipeError, ValueError):
    """A penalty that does not fit the model."""


class DeriveError(OrtpipeError, ValueError):
    """A graph whose gradient cannot be built."""


class TrainError(OrtpipeError, ValueError, RuntimeError):
    """Training that cannot start."""


class ConvergenceError(TrainError):
    """Training whose loss became nan or infinite."""

    tensors: Mapping[str, Any] = {}  # train's after the last whole epoch, where batches were trained on


class NotFittedError(TrainError, AttributeError):
    """What only training gives is asked for before it (an AttributeError, as in scikit-learn)."""


class EvaluateError(OrtpipeError, RuntimeError):
    """A metric that cannot be computed."""


class StageError(OrtpipeError):
    """A stage that broke its own promise."""


class TrackingError(OrtpipeError):
    """A recorder that cannot be reached."""


class ReproError(OrtpipeError):
    """A run that is not the same when it is made again."""


@contextmanager
def under(*path: str) -> Iterator[None]:
    """Let the errors of a part of the settings speak of them from further out: `with under("source"): …`."""
    try:
        yield
    except OrtpipeError as error:
        error.under(*path)
        raise


@contextmanager
def in_words(words: Mapping[str, str]) -> Iterator[None]:
    """Let errors speak of a function's arguments, by these words in place of what a config calls them."""
    try:
        yield
    except OrtpipeError as error:
        rule, fix = error.rule, error.fix or ""
        for word, argument in words.items():
            rule, fix = rule.replace(word, argument), fix.replace(word, argument)
        if (rule, fix) == (error.rule, error.fix or ""):
            raise
        raise type(error)(rule, got=error.got, fix=fix or None) from error


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
    words = ("null", "true", "false", "nan", "inf")  # which Hydra reads as values
    if re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII) and name.lower() not in words:
        return f"{key}=[{name}]"
    argument = f"{key}=[{quoted(name)}]"
    return shlex.quote(argument) if re.search(r'["$`\\!]', argument) else f'"{argument}"'
