"""Record to MLflow: config, graphs, tensors, losses, metrics, figures, environment, and a model that predicts."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ortpipe.app.run.state import RunState
from ortpipe.app.tracking.live import Epochs
from ortpipe.app.tracking.record import Record
from ortpipe.app.tracking.results import Results
from ortpipe.app.tracking.sqlite import PLAIN, database_of, uri_of
from ortpipe.errors import ConfigError
from ortpipe.pipeline.events import Event, Listener, RunFailed, RunFinished, RunStarted, StageFinished, StageProgressed
from ortpipe.settings import Config, Fix, Must

if TYPE_CHECKING:
    from ortpipe.app.tracking.parent import Parent

Registered = Annotated[
    str, Must("a name without /, : and quotes", re.compile(r"[^/:'\"]+").fullmatch), Fix("Choose another.")
]
Alias = Annotated[
    str,
    Must(
        "letters, digits, _ and -, and neither latest nor v and a number",
        re.compile(r"(?!latest$|v\d+$)[\w-]+", re.IGNORECASE).fullmatch,
    ),
    Fix("Choose another, such as champion."),
]


@dataclass(frozen=True)
class Mlflow(Config):
    """An MLflow run per job.

    Attributes:
        tracking_uri: `sqlite:///` and a path (with %25 for % and %3F for ?), a server's address, or any other that
            MLflow takes.
        experiment: its name; made when it is not there.
        artifacts: where a new experiment of a database keeps its artifacts; a server keeps its own.
        register: the name in the model registry that the trained model gets a new version of; of a sweep, the best's.
        alias: what that version is called there, until a later one is.
    """

    tracking_uri: str
    experiment: str = "ortpipe"
    artifacts: str | None = None
    register: Registered | None = None
    alias: Alias = "champion"

    def __post_init__(self) -> None:
        database = database_of(self.tracking_uri)
        if database is not None:
            literal = Path(self.tracking_uri.removeprefix(PLAIN))
            if literal.parent.is_dir() and literal.parent.absolute() != database.parent.absolute():
                rule = "{key} must be a URI: in the path of a database, % and ? are written %25 and %3F."
                fix = f"Set {{key}}='{uri_of(literal)}'."
                raise ConfigError(rule, key="tracking_uri", got=self.tracking_uri, fix=fix)
            query = "".join(self.tracking_uri.partition("?")[1:])
            object.__setattr__(self, "tracking_uri", f"{uri_of(database)}{query}")

    def __call__(self, state: RunState, config: dict[str, Any]) -> Listener:
        """Open a run's record.

        Raises:
            TrackingError: the database or server cannot be reached.
        """
        return Recording(self, state)

    def sweep(self, state: RunState) -> Parent:
        """Open a sweep's record.

        Raises:
            TrackingError: the database or server cannot be reached.
        """
        from ortpipe.app.tracking.parent import Parent

        return Parent(self, state)


class Recording:
    """Keeps a run's record up to date; a failure while the run goes on is said once and stops nothing.

    Attributes:
        run_id: the MLflow run.
    """

    def __init__(self, target: Mlflow, state: RunState) -> None:
        self._target, self._folder = target, state.folder
        self._results = Results()
        self._record, self._failed = Record(target, state, results=self._results), False
        self._epochs = Epochs()
        self.run_id = self._record.run_id

    @property
    def summary(self) -> dict[str, str]:
        """What to tell the user: the run id and the command that opens the page."""
        uri = self._target.tracking_uri
        page = uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
        return {"MLflow run": self.run_id, "open the page": page}

    def __call__(self, event: Event) -> None:
        """Listen; after a failure the rest waits for the run's end, where it is tried once more."""
        self._results(event)
        last = isinstance(event, RunFinished | RunFailed)
        try:
            if last or (isinstance(event, RunStarted | StageFinished) and not self._failed):
                self._record.push()
            elif isinstance(event, StageProgressed) and not self._failed and (due := self._epochs.due(event.report)):
                self._record.send(due)
        except Exception as error:  # noqa: BLE001 - tracking never kills training, whatever it raises
            self._say(str(error).strip().splitlines(), last)
            self._failed = True

    def _say(self, reason: list[str], last: bool) -> None:
        if not self._failed:
            print(f"warning: MLflow did not record everything: {(reason or ['?'])[0][:300]}", file=sys.stderr)
        if last:
            command = f"ortpipe sync {shlex.quote(str(self._folder))}"
            print(f"  the run folder holds it; record it later with: {command}", file=sys.stderr)
