"""A plan: which stages run, in which order, with which config."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ortpipe.artifact import Artifact
from ortpipe.errors import StageError


@dataclass(frozen=True)
class Stage:
    """One pure function of the flow and what it promises.

    Attributes:
        name: its name in configs and records.
        function: `module:function`, imported when it runs.
        reads: what it reads besides its artifact and config, by keyword.
        requires: facts that must be set before it.
        ensures: facts that are set after it.
    """

    name: str
    function: str
    reads: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()

    def load(self) -> Callable[..., Artifact]:
        """Import the function."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(module), name)

    def __call__(self, artifact: Artifact | None, config: Any, **context: Any) -> Artifact:
        """Run the function and check its promise.

        Raises:
            StageError: a required fact is missing, a promised one is not set, or the input was changed.
        """
        self._check(artifact, self.requires, "requires")
        before = artifact.digest() if artifact is not None else None
        result = self.load()(artifact, config, **{name: context[name] for name in self.reads})
        if artifact is not None and (result is artifact or artifact.digest() != before):
            raise StageError(f"{self.name} must leave its input as it is and return another artifact.")
        self._check(result, self.ensures, "ensures")
        return result

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
