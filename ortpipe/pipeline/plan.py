"""A plan: the stages to run in order, with their configs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol, runtime_checkable

from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import OrtpipeError, StageError


@runtime_checkable
class ReadsFiles(Protocol):
    """A config that reads files, whose content is part of the key: the main file first, then its companions."""

    def files(self) -> tuple[Path, ...]:
        """Return the files, () if it reads none."""


@runtime_checkable
class NeedsPackages(Protocol):
    """A config that uses further packages; their versions are part of the key."""

    def packages(self) -> tuple[str, ...]:
        """Return the packages; () if the stage's own are enough."""


@dataclass(frozen=True)
class Stage:
    """One pure function of the flow, with its requirements and promises."""

    name: str  # in configs and records
    function: str  # `module:function`, imported when it runs
    check: str | None = None  # same, called with (facts, config, **reads) after the first stage, see `check_early`
    reads: tuple[str, ...] = ()  # keyword arguments besides artifact and config that its result depends on
    takes: tuple[str, ...] = ()  # further keyword arguments, which cannot change its result
    packages: tuple[str, ...] = ()  # packages whose versions can change its result
    requires: tuple[str, ...] = ()  # facts that its input must have
    ensures: tuple[str, ...] = ()  # facts that its result must have
    continued: str | None = None  # a module that continues stored results with fewer epochs, see `continued.py`

    @property
    def version(self) -> int:
        """The `VERSION` in the module `config` beside the function's, which can be read without the function."""
        return int(resolve_name(f"{self.function.rpartition('.')[0]}.config:VERSION"))

    def __call__(self, artifact: Artifact | None, config: Any, **context: Any) -> Artifact:
        """Run the function, and check the facts that it requires and ensures."""
        self._check(artifact, self.requires, "requires")
        result: Artifact = self._call(self.function, artifact, config, context)
        if artifact is not None and result is artifact:
            raise StageError(f"{self.name} must return another artifact than its input.")
        self._check(result, self.ensures, "ensures")
        return result

    def check_early(self, facts: Facts, config: Any, **context: Any) -> Facts:
        """Call the stage's check, if it has one, with the facts expected of its input; return those of its result.

        The facts are those of the first artifact, updated by the checks of the stages before.
        """
        expected = None if self.check is None else self._call(self.check, facts, config, context)
        return facts if expected is None else expected

    def _call(self, function: str, subject: Artifact | Facts | None, config: Any, context: Mapping[str, Any]) -> Any:
        """Call a function with the context that it reads and takes; its errors get the full keys of the config."""
        try:
            named = {name: context[name] for name in (*self.reads, *self.takes)}
            return resolve_name(function)(subject, config, **named)
        except OrtpipeError as error:
            error.under(error.group or self.name)
            raise

    def _check(self, artifact: Artifact | None, facts: tuple[str, ...], promise: str) -> None:
        missing = [fact for fact in facts if artifact is None or not getattr(artifact.facts, fact)]
        if missing:
            raise StageError(
                f"{self.name} {promise} facts of its {'input' if promise == 'requires' else 'result'}.",
                got=f"not set: {', '.join(missing)}",
                fix="Run the stages before it." if promise == "requires" else None,
            )


@dataclass(frozen=True)
class Step:
    """A stage with its config."""

    stage: Stage
    config: Any


Plan = tuple[Step, ...]
