"""ortpipe's errors, by phase; every message states the rule, what it got, and a fix."""

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self


class OrtpipeError(Exception):
    """Base of every error that ortpipe raises on purpose.

    A stage names its settings as its caller in Python does; the command line adds the path in front of the key (see
    `under`).

    Args:
        rule: what must hold, as a sentence.
        got: the actual value or state.
        fix: what the user can do.
        key: the setting that the error is about, if any. In rule and fix `{key}` stands for it, `{at}name` for a
            setting beside it, and `{group}` for its config group.

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
        super().__init__(rule)  # unpickling calls the class with this, and then sets the attributes
        self._rule, self._fix, self._key, self._at = rule, fix, key, ""
        self.got = got

    def under(self, *path: str) -> Self:
        """Prepend a path to the keys in the error's texts, and return the error."""
        self._at = "".join(f"{part}." for part in path if part) + self._at
        return self

    @property
    def key(self) -> str | None:
        """The setting that the error is about, or else the group of settings, with its path."""
        return f"{self._at}{self._key or ''}".rstrip(".") or None

    @property
    def rule(self) -> str:
        """What must hold, as a sentence."""
        return self._filled(self._rule)

    @property
    def fix(self) -> str | None:
        """What the user can do."""
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
    """A name that a catalogue does not contain (a KeyError, as for any mapping)."""


class ModelError(OrtpipeError, RuntimeError):
    """An ONNX model cannot be read, checked or run."""


class DataError(OrtpipeError, ValueError):
    """Rows that cannot be trained or evaluated on."""


class ConvertError(OrtpipeError):
    """A source that cannot become a forward model."""


class NoRowsError(ConvertError):
    """A source that needs rows, without data."""


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

    tensors: Mapping[str, Any] = {}  # train's tensors after the last complete epoch, for mini-batch training


class NotFittedError(TrainError, AttributeError):
    """A result of training is read before fit (an AttributeError, as in scikit-learn)."""


class EvaluateError(OrtpipeError, RuntimeError):
    """A metric that cannot be computed."""


class StageError(OrtpipeError):
    """A stage whose input or result lacks required facts."""


class TrackingError(OrtpipeError):
    """A recorder that cannot be reached."""


class ReproError(OrtpipeError):
    """A run whose results differ when it is repeated."""


@contextmanager
def under(*path: str) -> Iterator[None]:
    """Prepend a path to the keys of errors raised in this context: `with under("source"): …`."""
    try:
        yield
    except OrtpipeError as error:
        error.under(*path)
        raise


@contextmanager
def in_words(words: Mapping[str, str]) -> Iterator[None]:
    """Replace config terms by a function's argument names in the texts of errors raised in this context."""
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
    """Return a sentence that lists the valid choices and suggests the closest one.

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
    r"""Return a string quoted by Hydra's grammar.

    >>> print(quoted("it's"), quoted("a\\"))
    'it\'s' 'a\\'
    """
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", r"\'"), text) + "'"


def listing(key: str, name: str) -> str:
    """Return the command-line argument that sets a key to a list of one name, quoted for a shell.

    >>> print(listing("columns", "age"), listing("columns", "größe"), listing("columns", "1"))
    columns=[age] "columns=['größe']" "columns=['1']"
    """
    words = ("null", "true", "false", "nan", "inf")  # Hydra parses these as values
    if re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII) and name.lower() not in words:
        return f"{key}=[{name}]"
    argument = f"{key}=[{quoted(name)}]"
    return shlex.quote(argument) if re.search(r'["$`\\!]', argument) else f'"{argument}"'
