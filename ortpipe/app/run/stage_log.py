"""A log per stage: its start, its reports, log records and warnings, and its end."""

import logging
import sys
import traceback
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from ortpipe.app.redact import redacted
from ortpipe.pipeline import events
from ortpipe.stages import Checkpoint, Epoch, Remark

MOST_LINES = 1000  # lines about epochs; of more epochs, evenly spaced ones and the last are logged


class StageLogs(logging.Handler):
    """Writes `logs/<number>_<name>.log` for each stage, unbuffered, each line with its time in UTC.

    While a stage runs, Python's log records and warnings go into its log too. If a log cannot be written, a warning is
    printed and the run continues.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder / "logs"
        self._numbers: dict[str, int] = {}
        self._file: IO[bytes] | None = None
        self._pending: tuple[Epoch, float] | None = None  # the last epoch that has no line yet, and its time
        self._show_warning: Any = None  # `warnings.showwarning` before the stage began

    def __call__(self, event: events.Event) -> None:
        """Handle an event."""
        match event:
            case events.RunStarted():
                self._numbers = {step.stage.name: i for i, step in enumerate(event.plan, start=1)}
            case events.StageStarted():
                self._open(event.name)
                self._log(f"stage {event.number} of {event.stages}: {event.name}")
            case events.StageProgressed(report=Epoch() as epoch):
                self._pending = epoch, event.seconds
                if epoch.number % max(1, epoch.epochs // MOST_LINES) == 0:
                    self._log_pending()
            case events.StageProgressed(report=Checkpoint(epochs=epochs)):
                self._log(f"checkpoint after epoch {epochs}")
            case events.StageProgressed(report=Remark(text=text)):
                self._log(text)
            case events.StageNotice():
                self._log(event.message)
            case events.StageFinished():
                self._log_pending()
                if (hit := event.hit) is not None:
                    stored_at = datetime.fromtimestamp(hit.made, UTC).isoformat(timespec="seconds")
                    producer = ", ".join(f"{name} {value}" for name, value in hit.run.items()) or "an unnamed run"
                    self._log(f"cached: computed in {hit.seconds:.3f} s at {stored_at} by {producer}")
                self._log(f"result {event.output}")
                self._log(f"finished in {event.seconds:.3f} s")
                self._close()
            case events.RunFailed():
                if self._file is None and event.stage:  # an early check failed, or the run failed between stages
                    self._open(event.stage)
                self._log_pending()
                self._log("stopped" if event.killed else "failed")
                self._log("".join(traceback.format_exception(event.error)).rstrip())
                self._close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record of Python's logging."""
        self._log(f"{record.levelname} {record.name}: {self.format(record)}")

    def _open(self, stage: str) -> None:
        self._close()  # of a stage whose log could not be written
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = (self.folder / f"{self._numbers[stage]}_{stage}.log").open("ab", buffering=0)
        except OSError as error:
            self._give_up(error)
        logging.getLogger().addHandler(self)
        self._show_warning, warnings.showwarning = warnings.showwarning, self._log_warning

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        logging.getLogger().removeHandler(self)
        if self._show_warning is not None:
            warnings.showwarning, self._show_warning = self._show_warning, None

    def _log_warning(self, message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        self._log(f"{category.__name__}: {message}")
        self._show_warning(message, category, *place, **options)

    def _log(self, text: str) -> None:
        if self._file is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        try:
            self._file.write(f"{now} {redacted(text)}\n".encode(errors="backslashreplace"))
        except OSError as error:
            self._file.close()
            self._file = None
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        print(f"warning: no log in {self.folder}: {error.strerror}; the run continues.", file=sys.stderr)

    def _log_pending(self) -> None:
        if self._pending is not None:
            self._log(line(*self._pending))
            self._pending = None


def line(epoch: Epoch, seconds: float) -> str:
    """Return an epoch as a line, with the seconds since the stage started.

    >>> line(Epoch(3, 60, 0.25, 0.5, 0.1, 300, 300, {"accuracy": 0.9}), 1.5)
    'epoch 3/60: loss 0.25, validation 0.5, accuracy 0.9, rate 0.1, step 300, 1.50 s'
    """
    numbers = {"loss": epoch.loss, "validation": epoch.validation, **epoch.metrics, "rate": epoch.rate}
    texts = [f"{name} {value:.6g}" for name, value in numbers.items() if value is not None]
    texts += [f"step {epoch.steps}", f"{seconds:.2f} s"]
    return f"epoch {epoch.number}/{epoch.epochs}: {', '.join(texts)}"
