"""The listener that decides at the end of a run, before the run is recorded."""

from ortpipe import Artifact, Data, EvaluateConfig, RuntimeConfig
from ortpipe.app.gates.champion import compared
from ortpipe.app.gates.champion import in_words as comparison_in_words
from ortpipe.app.gates.require import check_model, in_words, required
from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking import GATES, Mlflow
from ortpipe.errors import OrtpipeError
from ortpipe.pipeline.events import Event, RunFinished, StageFinished
from ortpipe.stages import score


class GateError(OrtpipeError):
    """A trained model that fails its requirements, or is not better than the champion; its run is complete."""

    code = 3  # of the process


class Gates:
    """Checks the settings once the model's task is known, and decides when the run has finished."""

    def __init__(
        self, config: EvaluateConfig, runtime: RuntimeConfig, recorder: object, data: Data, record: RunRecord
    ) -> None:
        self._config, self._runtime, self._data, self._record = config, runtime, data, record
        better = isinstance(recorder, Mlflow) and recorder.only_if_better is not None
        self._target = recorder if isinstance(recorder, Mlflow) and better else None

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if self._target is None and not self._config.require:
            return
        if isinstance(event, StageFinished) and event.name == "add_loss":
            check_model(self._config, self._target, event.artifact.facts, self._data)
        elif isinstance(event, RunFinished):
            self._decide(event.artifact)

    def _decide(self, artifact: Artifact) -> None:
        record, rows = self._record, self._data.validation
        assert rows is not None
        scored = score(*artifact.apart(), artifact.facts, rows, self._config.rows, self._runtime)
        record.gates = required(self._config, scored, self._data)
        if self._target is not None and record.passed:
            record.champion = compared(self._target, scored, rows, self._config, self._runtime)
        words = [*in_words(record.gates), *comparison_in_words(record.champion)]
        record.tags[GATES] = "; ".join(["passed" if record.passed else "failed", *words])
        record.notes["evaluate"] = (*record.notes.get("evaluate", ()), *words)


def raise_failed(record: RunRecord) -> None:
    """Raise GateError if the model of a finished run failed."""
    if record.passed:
        return
    champion = record.champion.get("version")
    failed = in_words({name: gate for name, gate in record.gates.items() if not gate["passed"]})
    failed += comparison_in_words(record.champion)
    fix = f"{champion} keeps its alias." if champion else "Change the training, or the limits in evaluate.require."
    raise GateError("A model that fails its gates is not registered.", got="\n       ".join(failed), fix=fix)
