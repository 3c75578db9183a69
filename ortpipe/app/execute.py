"""Run a typed config: describe the run in its record, and connect the plan with its listeners."""

import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf

from ortpipe import FLOW, Artifact, Data, OrtpipeError
from ortpipe.app.assemble import open_run, plan_of, remember_teacher, store_of
from ortpipe.app.drift import Profiler
from ortpipe.app.gates import Gates, raise_failed
from ortpipe.app.pulse import PULSE
from ortpipe.app.redact import redacted
from ortpipe.app.run.data_facts import data_facts, in_words
from ortpipe.app.run.environment import command_of, environment
from ortpipe.app.run.folder import RunFolder
from ortpipe.app.run.record import RunRecord, config_text, origin_tags, replaced
from ortpipe.app.run.screen import Screen, closing
from ortpipe.app.run.stage_log import StageLogs
from ortpipe.app.schema import RunConfig
from ortpipe.app.stop import before_the_end, stop_if_asked
from ortpipe.app.sweep import Job
from ortpipe.app.tracking import with_start, with_versions
from ortpipe.app.words import SETTINGS
from ortpipe.data import feed_inputs
from ortpipe.data.load import read_rows, split_rows
from ortpipe.errors import under, words
from ortpipe.metrics.named import check_objective, check_rows, check_value
from ortpipe.pipeline.events import Began, Event, Listener, RunFailed, StageFinished, StageProgressed
from ortpipe.pipeline.run import run
from ortpipe.pipeline.store import Store
from ortpipe.stages import Checkpoint, trained_loss

EXAMPLE_ROWS = 2  # training rows that are stored as the model's example input
SHOWN = 3  # metrics of a fold's line


@words(SETTINGS)
@PULSE.during("preparing the run")
def execute(
    config: RunConfig,
    resolved: dict[str, Any],
    hydra: HydraConf,
    job: Job | None = None,
    command: str | None = None,
    inspect: Callable[[Data, RunRecord], None] | None = None,
) -> None:
    """Run the flow, alone or as a job of a sweep; `resolved` is the config without its secrets.

    `command` is the equivalent command if the run was started from Python. `inspect` may reject the rows, and add to
    the record.
    """
    started, resolved = time.perf_counter(), with_versions(with_start(resolved))
    if job is not None and job.manifest.live:
        PULSE.step("")  # the table shows the job
    context = open_run(vars(config), store=store_of(config, data=resolved["data"]))
    data: Data = context["data"]
    with under("objective"):
        check_rows(config.objective, validated=data.validation is not None)
    registers = resolved["recorder"].get("register") is not None
    facts = environment(config.seed, command or command_of(hydra, registers=registers))
    record = _record_of(config, hydra, job)
    _describe(record, config, resolved, facts, data)
    if inspect is not None:
        inspect(data, record)
    before_the_end(record.abandon)
    recording = config.recorder(record, resolved)
    record.mlflow = recording.run_id
    listeners: list[Listener] = [*_listeners(config, resolved, record, facts, data, job, context["start"]), recording]
    store = store_of(config, {"folder": str(record.folder), "mlflow": recording.run_id}, resolved["data"])
    record.folds = cross_validate(config, context, store) if config.evaluate.folds else {}
    artifact = run(plan_of(config), context, listeners, store)
    if job is None:
        took = f"{time.perf_counter() - started:.1f} s"
        summary = {**recording.summary, "next": next_command(config, record.folder), "took": took}
        print(closing(artifact, record, summary), flush=True)
    recording.check()
    if job is None:
        raise_failed(record)


def cross_validate(config: RunConfig, context: Mapping[str, Any], store: Store | None) -> dict[str, tuple[float, ...]]:
    """Return the trained model's metrics on the test rows of each fold; a metric undefined in a fold is left out."""
    count, results = config.evaluate.folds, list[dict[str, float]]()
    plain = replace(config.evaluate, by=(), bootstrap=0, importance=0, sensitivity=False)
    plan = plan_of(replace(config, evaluate=plain))
    with under("data"):
        rows = read_rows(config.data)
    for number in range(count):
        PULSE.step(f"fold {number + 1} of {count}")
        try:
            with under("data"):
                data = split_rows(rows, config.data, (number, count), remember_teacher(store))
            fold_context = {**context, "data": data, "start": None}
            artifact = run(plan, fold_context, [lambda event: stop_if_asked()], store)
        except OrtpipeError as error:
            error.add_note(f"{'fold':<14} {number + 1} of {count}")
            raise
        results.append({name: values["trained"] for name, values in artifact.facts.metrics.items()})
        shown = ", ".join(f"{name} {value:.4f}" for name, value in list(results[-1].items())[:SHOWN])
        print(f"fold {number + 1} of {count}: {shown}", file=sys.stderr, flush=True)
    names = [name for name in results[0] if all(name in result for result in results)] if results else []
    return {name: tuple(result[name] for result in results) for name in names}


def _record_of(config: RunConfig, hydra: HydraConf, job: Job | None) -> RunRecord:
    """Return the record of a job, or a new one; print whether it replaces an earlier run."""
    if job is not None:
        return job.record
    record = RunRecord(Path(hydra.runtime.output_dir), "", {})
    continues = config.resume is not None and Path(config.resume).absolute() == record.folder
    if not continues and (notice := replaced(record.folder)):
        print(notice, file=sys.stderr, flush=True)
    return record


def _listeners(
    config: RunConfig,
    resolved: Mapping[str, Any],
    record: RunRecord,
    facts: Mapping[str, str],
    data: Data,
    job: Job | None,
    start: Checkpoint | None,
) -> list[Listener]:
    """Return the listeners of a run in the order in which they get its events, without its recorder."""

    def example(artifact: Artifact) -> dict[str, Any]:
        return feed_inputs(artifact.signature, artifact.facts, data.train.head(EXAMPLE_ROWS))

    def values(artifact: Artifact) -> dict[str, float]:
        return _values(artifact, config, data)

    origin = [] if config.start is None else [f"starts from {resolved['start']}"]
    about = [in_words(record.data), *record.notes.get("data", ()), *origin]
    return [
        _name_settings,
        Gates(config.evaluate, config.runtime, config.recorder, data, record),
        StageLogs(record.folder),
        Profiler(record.folder, data),
        RunFolder(record, config_text(resolved), facts, values, example, config.figures and job is None),
        _guard(config, data, values, job),
        *([] if job is not None and job.manifest.live else [Screen(about, None if job is None else job.job.number)]),
        *([] if config.resume is None else [_tell_resumed(config.resume, start)]),
    ]


def next_command(config: RunConfig, folder: Path) -> str:
    """Return a command that uses the result: the prediction of rows for a model of a table's files."""
    quoted = shlex.quote(str(folder))
    endings = getattr(config.data.source, "endings", ())
    rows = f"ROWS{endings[0]}" if endings else ""
    return f"ortpipe predict {quoted} {rows} --output predicted.csv" if rows else f"ortpipe show {quoted}"


def _describe(
    record: RunRecord, config: RunConfig, resolved: Mapping[str, Any], facts: Mapping[str, str], data: Data
) -> None:
    """Add the facts that are known at the start to a record."""
    record.name = record.name or redacted(config.name)
    record.tags |= {**origin_tags(facts, record.folder), "ortpipe.seed": facts["seed"], "ortpipe.data": data.digest()}
    record.plan = {stage.name: choice(resolved[stage.name]) for stage in FLOW}
    record.data = {"source": resolved["data"]["source"], **data_facts(data)}
    if data.notes:
        record.notes["data"] = tuple(data.notes)


def choice(config: Mapping[str, Any]) -> str:
    """Return the first catalogue member that a stage's config chooses, or "".

    >>> choice({"reduction": "mean", "loss": {"name": "l2"}}), choice({"terms": {}})
    ('l2', '')
    """
    return next((str(value["name"]) for value in config.values() if isinstance(value, dict) and "name" in value), "")


def _values(artifact: Artifact, config: RunConfig, data: Data) -> dict[str, float]:
    """Return the values of a trained model by which a sweep can compare its jobs."""
    part = "train" if data.validation is None else "validation"
    measured = artifact.facts.lineage[-1].get("validation", {})
    validated = {f"validation/{name}": value for name, value in measured.items()}
    return {f"{part}/loss": trained_loss(artifact.tensors, config.train.early_stop), **validated}


def _name_settings(event: Event) -> None:
    """Put the keys of settings into an error, before other listeners read it."""
    if isinstance(event, RunFailed) and isinstance(event.error, OrtpipeError):
        event.error.said_in(SETTINGS)


def _guard(
    config: RunConfig, data: Data, values: Callable[[Artifact], Mapping[str, float]], job: Job | None
) -> Listener:
    """Return a listener that raises if the objective does not fit the model, or if the run is to stop."""

    def guard(event: Event) -> None:
        if isinstance(event, StageFinished) and event.number == 2:  # add_loss determines the measured metrics
            check_objective(config.objective, event.artifact.facts, weighted=data.weighted)
        if isinstance(event, StageFinished) and event.number == len(FLOW) and job is not None:
            check_value(config.objective, values(event.artifact))
        if isinstance(event, RunFailed):
            return
        stop_if_asked()  # after a last checkpoint
        if job is not None:
            job.stop_with_leader()

    return guard


def _tell_resumed(folder: str, start: Checkpoint | None) -> Listener:
    """Return a listener that prints whether training continues from the checkpoint in a run's folder."""

    def tell(event: Event) -> None:
        match event:
            case StageProgressed(name="train", report=Began()) if start is not None:
                print(f"  continues after epoch {start.epochs} of {folder}", file=sys.stderr, flush=True)
            case StageFinished(name="train") if event.hit is not None:
                print(f"  resume={folder} is not needed: train's result is cached", file=sys.stderr, flush=True)

    return tell
