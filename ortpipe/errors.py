"""ortpipe's errors, by phase; every message has a rule, the actual value, and a fix."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from ortpipe.doors import later

if TYPE_CHECKING:
    from ortpipe.error_text import filled
    from ortpipe.error_text import in_words as in_words
    from ortpipe.error_text import nearest as nearest
else:
    later(__name__)


class OrtpipeError(Exception):
    """Base of every error that ortpipe raises on purpose.

    A stage names its settings like a Python caller; the command line prepends the path to the key (see `under`).

    Args:
        rule: the violated rule, as a sentence.
        got: the actual value or state.
        fix: an action for the user.
        key: the setting that the error is about, if any. In rule and fix, `{key}` is replaced by it, `{at}name` by a
            setting in its group, and `{group}` by its config group. `{@train.epochs}` is a setting of another stage,
            and `{@cut}` the caller's argument for the preceding advice, or nothing (see `error_text.filled`).

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

    group: str | None = None  # of the settings that these errors are about, if it is not that of the stage

    def __init__(self, rule: str, *, got: object = None, fix: str | None = None, key: str | None = None) -> None:
        super().__init__(rule)  # unpickling calls the class with this, and then sets the attributes
        self._rule, self._fix, self._key, self._at = rule, fix, key, ""
        self._words: dict[str, str] = {}
        self.got = got

    def under(self, *path: str) -> Self:
        """Prepend a path to the keys in the error's texts, and return the error."""
        self._at = "".join(f"{part}." for part in path if part) + self._at
        return self

    def said_in(self, words: Mapping[str, str]) -> Self:
        """Name settings and arguments by a caller's words, unless an inner caller has its own; return the error."""
        self._words = {**words, **self._words}
        return self

    @property
    def key(self) -> str | None:
        """The setting that the error is about, or else the group of settings, with its path."""
        return f"{self._at}{self._key or ''}".rstrip(".") or None

    @property
    def rule(self) -> str:
        """The violated rule, as a sentence."""
        return filled(self._rule, self.key or "", self._at, self._words)

    @property
    def fix(self) -> str | None:
        """An action for the user, if there is one."""
        return None if self._fix is None else filled(self._fix, self.key or "", self._at, self._words)

    def __str__(self) -> str:
        lines = {"": self.rule, "  got: ": self.got, "  fix: ": self.fix}
        return "\n".join(f"{label}{text}" for label, text in lines.items() if text is not None)


class ConfigError(OrtpipeError, ValueError):
    """A config value breaks its rule."""


class UnknownNameError(ConfigError, KeyError):
    """A name that a catalogue does not contain (a KeyError, as for any mapping)."""


class ModelError(OrtpipeError, RuntimeError):
    """An ONNX model cannot be read, checked or run."""


class EngineError(ModelError):
    """A device or an engine that this machine lacks, or that cannot run a model."""

    group = "runtime"


class DataError(OrtpipeError, ValueError):
    """Rows that cannot be trained or evaluated on."""

    group = "data"


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
def words(names: Mapping[str, str]) -> Iterator[None]:
    """Name settings in errors raised in this context by the caller's words (see `OrtpipeError.said_in`)."""
    try:
        yield
    except OrtpipeError as error:
        error.said_in(names)
        raise
