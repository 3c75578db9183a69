"""The console output of a run: a progress bar while training, then the metrics and the paths of the results."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ortpipe import Artifact, Facts
from ortpipe.app.pulse import PULSE
from ortpipe.app.run.record import RunRecord
from ortpipe.app.table import aligned, spread
from ortpipe.metrics.titles import columns_of, label
from ortpipe.pipeline import events
from ortpipe.stages import BaselineFit, Epoch, Remark

BAR = "epoch {n_fmt}/{total_fmt} |{bar}| {desc}, {remaining} left"
SHORT_BAR = "{n_fmt}/{total_fmt} |{bar}| {desc} {remaining}"
WIDE = 100  # columns from which on names are not shortened
LONG = 10  # times as long as a baseline, from which on training gets a line
EVERY = 5.0  # seconds after which the next epoch gets a line, regardless of its number


class Screen:
    """Shows stages on standard error: a bar on a terminal and in a notebook, plain lines elsewhere.

    Args:
        notes: sentences about the data, which are printed first.
        job: the job's number in a sweep; it prefixes each line because jobs print concurrently. Information that is the
            same for all jobs (rows, stages, cache hits) is only in their logs.
    """

    def __init__(self, notes: Sequence[str] = (), job: int | None = None) -> None:
        self._notes, self._job = notes, job
        self._last_line, self._last_time = 0, time.monotonic()
        self._stages = 0
        self._trains = ""  # the numbers and parameters to train, once derive has finished
        self._bar: Any = None
        self._validated: dict[str, float] = {}  # values of the latest validation
        self._first: tuple[int, float] | None = None  # steps and seconds at the stage's first report
        self._seconds: dict[str, float] = {}  # of stages that have finished, and at the start of a baseline's fit

    def __call__(self, event: events.Event) -> None:
        """Handle an event."""
        match event:
            case events.RunStarted() if not self._job:  # of a sweep only the first job prints the notes
                for note in self._notes:
                    self._print(f"data: {note}")
            case events.StageStarted():
                self._last_line, self._last_time, self._stages = 0, time.monotonic(), event.stages
                self._step(event.name)
                if self._job is None:
                    self._print(f"[{event.number}/{event.stages}] {event.name}")
                    if event.name == "train" and self._trains:
                        self._print(f"  {self._trains}")
            case events.StageProgressed(report=Epoch() as epoch):
                self._progress(epoch, event.seconds)
            case events.StageProgressed(report=Remark(text=text)) if self._job is None:
                self._print(f"  {text}")
            case events.StageProgressed(report=BaselineFit() as fit):
                self._compare(fit, event.seconds)
            case events.StageNotice() if self._job is None or not event.stored:
                self._print(f"  {event.message}")
            case events.StageFinished():
                self._close_bar()
                self._step(f"writing the results of {event.name}")
                self._seconds[event.name] = event.seconds if event.hit is None else event.hit.seconds
                self._trains = _training_size(event.artifact)
                if self._job is None and event.hit is not None:
                    producer = event.hit.run.get("folder", "another run")
                    self._print(f"  cached: computed in {event.hit.seconds:.2f} s by {producer}")
                if self._job is None and event.number == self._stages:
                    self._print("writing the figures, the report and the record")
            case events.RunFailed():
                self._close_bar()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _step(self, name: str) -> None:
        PULSE.step(name if self._job is None else f"job {self._job}: {name}")

    def _print(self, line: str) -> None:
        PULSE.heard()
        prefix = "" if self._job is None else f"job {self._job}: "
        print(prefix + (line.lstrip() if prefix else line), file=sys.stderr, flush=True)

    def _progress(self, epoch: Epoch, seconds: float) -> None:
        if epoch.validation is not None:
            self._validated = {"validation": epoch.validation, **epoch.metrics}
        # Measured from the first epoch on; the time before is spent on waiting for a lock and set-up
        first_steps, first_seconds = self._first = self._first or (epoch.own_steps, seconds)
        speed = (epoch.own_steps - first_steps) / max(seconds - first_seconds, 1e-9)
        tenth = epoch.number * 10 // epoch.epochs
        late = time.monotonic() - self._last_time > EVERY
        if self._job is None and (sys.stderr.isatty() or _in_notebook()):
            self._draw(epoch, speed)
        elif late or (self._job is None and (epoch.number == epoch.epochs or tenth > self._last_line)):
            self._last_line, self._last_time = tenth, time.monotonic()
            self._print(f"  epoch {epoch.number}/{epoch.epochs}: {self._facts(epoch, speed)}")

    def _compare(self, fit: BaselineFit, seconds: float) -> None:
        """Print how much longer than the fit of a baseline training took, from LONG times on."""
        if not fit.ended:
            self._seconds[fit.name] = seconds
        elif (trained := self._seconds.get("train", 0)) > LONG * (fitted := seconds - self._seconds[fit.name]):
            times = f"{trained / fitted:,.0f} times"
            self._print(f"  training took {trained:.2f} s, {times} the {fitted:.2f} s of {fit.name}")

    def _draw(self, epoch: Epoch, speed: float) -> None:
        short = not _in_notebook() and os.get_terminal_size(sys.stderr.fileno()).columns < WIDE
        facts, form = self._facts(epoch, speed, short=short), SHORT_BAR if short else BAR
        if self._bar is None:
            from tqdm import tqdm

            PULSE.step("")
            initial, total = epoch.number, epoch.epochs
            self._bar = tqdm(total=total, initial=initial, desc=facts, bar_format=form, dynamic_ncols=True)
        else:
            self._bar.desc, self._bar.bar_format = facts, form
            self._bar.update(1)

    def _facts(self, epoch: Epoch, speed: float, *, short: bool = False) -> str:
        numbers = {"loss": epoch.loss, **self._validated, **({} if epoch.rate is None else {"rate": epoch.rate})}
        form, separator, unit = (".3g", " ", "/s") if short else (".4g", ", ", " steps/s")
        texts = [f"{_short(name) if short else name} {value:{form}}" for name, value in numbers.items()]
        return separator.join([*texts, *([f"{speed:,.0f}{unit}"] if speed else [])])


def _in_notebook() -> bool:
    """Return whether standard error is a notebook cell, which treats a carriage return as a terminal does."""
    return type(sys.stderr).__module__.partition(".")[0] == "ipykernel"


def _training_size(artifact: Artifact) -> str:
    """Return the numbers and parameters that the next stage trains, for a model with gradients."""
    sizes = [artifact.initializers[name].size for name in artifact.facts.gradients]
    return f"{sum(sizes):,} numbers in {len(sizes)} parameters" if sizes else ""


def _short(name: str) -> str:
    """Return a shortened name.

    >>> [_short(name) for name in ("loss", "accuracy", "validation", "mean_absolute_error")]
    ['loss', 'accuracy', 'val', 'mae']
    """
    if len(name) < 10:
        return name
    return "".join(word[0] for word in name.split("_")) if "_" in name else name[:3]


def table(artifact: Artifact, folds: Mapping[str, tuple[float, ...]] | None = None) -> str:
    """Return the table of metrics: before training, trained, quantized to int8, of the baselines and the source model.

    The source of a scikit-learn run is the estimator as fitted by scikit-learn.
    """
    metrics = artifact.facts.metrics
    heads = columns_of(metrics, source_of(artifact.facts))
    edges = artifact.facts.lineage[-1].get("intervals", {}) if artifact.facts.lineage else {}
    rows = [[label(name, metrics), *(_cell(values.get(state)) for state in heads)] for name, values in metrics.items()]
    for row, name in zip(rows if edges else (), metrics, strict=False):
        row.append(" to ".join(f"{edge:.4f}" for edge in edges.get(name, ())))
    for row, name in zip(rows if folds else (), metrics, strict=False):
        row.append(spread(folds[name]) if folds and name in folds else "")
    count = len(next(iter(folds.values()))) if folds else 0
    titles = ["metric", *heads.values(), *(["95 % of trained"] if edges else [])]
    titles += [f"{count} folds"] if folds else []
    return "\n".join(aligned(rows, titles, text_columns=1))


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def source_of(facts: Facts) -> str:
    """Return the kind of a model's source in words."""
    origin = str(facts.lineage[0].get("source", "")) if facts.lineage else ""
    path, _, name = origin.rpartition(".")
    kinds = {"": "source", "onnx": "onnx file", "pt2": "pt2 file"}
    is_plain = ":" in name or not path  # a PyTorch module:name, or a network of the config
    return kinds.get(name, name if is_plain else f"scikit-learn {name}")


def closing(artifact: Artifact, record: RunRecord, summary: Mapping[str, str]) -> str:
    """Return the last lines of a run: the metrics, the paths of the results, and the recorder's summary."""
    folder = record.folder
    lines = ["", table(artifact, record.folds), "", f"trained model  {folder / 'model.onnx'}"]
    lines += [f"report         {report}"] if (report := folder / "report.html").is_file() else []
    lines += [f"run folder     {folder}"]
    lines += [f"{key:<14} {value}" for key, value in summary.items()]
    return "\n".join(lines)
