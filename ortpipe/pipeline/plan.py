"""A plan: which stages run, in which order, with which config."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol, runtime_checkable

from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import DataError, OrtpipeError, StageError


@runtime_checkable
class ReadsFiles(Protocol):
    """A config that reads files, whose content is part of the key: the first one, and those that lie beside it."""

    def files(self) -> tuple[Path, ...]:
        """Return the files, none where it reads none."""


@dataclass(frozen=True)
class Stage:
    """One pure function of the flow and what it promises."""

    name: str  # in configs and records
    function: str  # `module:function`, imported when it runs
    # Likewise, called with (facts, config, **reads) as soon as the first artifact is there, to refuse what cannot work
    # before any later stage has worked; it may return facts that later checks will find.
    check: str | None = None
    reads: tuple[str, ...] = ()  # what it reads besides its artifact and config, by keyword
    takes: tuple[str, ...] = ()  # what else it is given, by keyword, that cannot change its result
    packages: tuple[str, ...] = ()  # those whose versions can change its result
    requires: tuple[str, ...] = ()  # facts that must be set before it
    ensures: tuple[str, ...] = ()  # facts that are set after it

    @property
    def version(self) -> int:
        """The `VERSION` of the function's module, which counts the changes of its results."""
        return int(resolve_name(f"{self.function.partition(':')[0]}:VERSION"))

    def __call__(self, artifact: Artifact | None, config: Any, **context: Any) -> Artifact:
        """Run the function and check its promise."""
        self._check(artifact, self.requires, "requires")
        result: Artifact = self._call(self.function, artifact, config, context)
        if artifact is not None and result is artifact:
            raise StageError(f"{self.name} must return another artifact than its input.")
        self._check(result, self.ensures, "ensures")
        return result

    def refuse_early(self, facts: Facts, config: Any, **context: Any) -> Facts:
        """Call the stage's own check, if it has one, on what is known of its input; return what then holds behind it.

        That are the facts of the first artifact, with those that the checks of the stages between foresee.
        """
        foreseen = None if self.check is None else self._call(self.check, facts, config, context)
        return facts if foreseen is None else foreseen

    def _call(self, function: str, subject: Artifact | Facts | None, config: Any, context: Mapping[str, Any]) -> Any:
        """Call it with what it reads and takes; its errors speak of the config's keys, for rows of theirs."""
        try:
            named = {name: context[name] for name in (*self.reads, *self.takes)}
            return resolve_name(function)(subject, config, **named)
        except OrtpipeError as error:
            error.under("data" if isinstance(error, DataError) else self.name)
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
