"""What a person sees: a progress bar while training, then one table and where everything is."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortpipe.artifact import Artifact
from ortpipe.pipeline.events import Event, RunFailed, StageFinished, StageProgressed, StageStarted

COLUMNS = {"before": "before", "trained": "trained", "source": "source"}


class Screen:
    """Shows stages on standard error: a bar on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._terminal = sys.stderr.isatty()
        self._last_line = 0

    def __call__(self, event: Event) -> None:
        """Listen."""
        if isinstance(event, StageStarted):
            self._say(f"[{event.number}/{event.stages}] {event.name}")
        elif isinstance(event, StageProgressed) and hasattr(event.report, "loss"):
            self._progress(event.report)
        elif isinstance(event, StageFinished | RunFailed):
            self._close()

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def _progress(self, epoch: Any) -> None:
        validation = "" if epoch.validation is None else f", validation {epoch.validation:.4g}"
        rate = "" if epoch.rate is None else f", rate {epoch.rate:.3g}"
        watched = "".join(f", {name} {value:.4g}" for name, value in epoch.metrics.items())
        facts = f"loss {epoch.loss:.4g}{validation}{watched}{rate}"
        if self._terminal:
            if self._bar is None:
                from tqdm import tqdm

                columns = shutil.get_terminal_size().columns or 80
                form = "{postfix} |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
                self._bar = tqdm(total=epoch.epochs, bar_format=form, ncols=columns)
            self._bar.set_postfix_str(facts, refresh=False)
            self._bar.update(1)
        elif epoch.number == epoch.epochs or epoch.number * 10 // epoch.epochs > self._last_line:
            self._last_line = epoch.number * 10 // epoch.epochs
            self._say(
                f"  epoch {epoch.number}/{epoch.epochs}: {facts}, {epoch.steps / max(epoch.seconds, 1e-9):,.0f} steps/s"
            )

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def table(artifact: Artifact) -> str:
    """Return the metrics as text: before training, trained, and the source's own weights.

    The source of a scikit-learn run is the estimator as scikit-learn fitted it.
    """
    source = (
        str(artifact.facts.lineage[0].get("source", "source")).rpartition(".")[2]
        if artifact.facts.lineage
        else "source"
    )
    heads = ["metric", "before", "trained", "onnx file" if source == "onnx" else f"scikit-learn {source}"]
    rows = [[name, *(f"{values[k]:.4f}" for k in COLUMNS)] for name, values in artifact.facts.metrics.items()]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in [heads, ["-" * w for w in widths], *rows]
    ]
    return "\n".join(lines)


def closing(artifact: Artifact, folder: Path, record: Mapping[str, str]) -> str:
    """Return what the user reads last: the table, where the model is, and how to see the record."""
    lines = ["", table(artifact), "", f"trained model  {folder / 'model.onnx'}", f"run folder     {folder}"]
    lines += [f"{key:<14} {value}" for key, value in record.items()]
    return "\n".join(lines)
