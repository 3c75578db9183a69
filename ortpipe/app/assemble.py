"""From a typed config to a run: check the environment, load the data, connect plan and listeners."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf

from ortpipe import FLOW, Artifact, Data, OrtpipeError
from ortpipe.app.redact import redacted
from ortpipe.app.run.checkpoint import read_checkpoint
from ortpipe.app.run.data_facts import data_facts, in_words
from ortpipe.app.run.environment import command_of, environment
from ortpipe.app.run.folder import RunFolder
from ortpipe.app.run.record import RunRecord, config_text, origin_tags, replaced
from ortpipe.app.run.screen import Screen, closing
from ortpipe.app.run.stage_log import StageLogs
from ortpipe.app.schema import RunConfig
from ortpipe.app.stop import before_the_end, stop_if_asked
from ortpipe.app.sweep import Job
from ortpipe.app.tracking import with_versions
from ortpipe.app.words import SETTINGS
from ortpipe.data import feed_inputs
from ortpipe.data.load import load
from ortpipe.errors import under, words
from ortpipe.metrics.named import check_objective, check_rows, check_value
from ortpipe.pipeline.events import Event, Listener, RunFailed, StageFinished
from ortpipe.pipeline.plan import Plan, Step
from ortpipe.pipeline.run import run
from ortpipe.pipeline.store import Store, key_of_environment
from ortpipe.runtime import check_one_runtime, check_provider
from ortpipe.stages import trained_loss

EXAMPLE_ROWS = 2  # training rows that are stored as the model's example input


def plan_of(config: RunConfig) -> Plan:
    """Return the flow with each stage's config."""
    return tuple(Step(stage, getattr(config, stage.name)) for stage in FLOW)


def store_of(config: RunConfig, run: Mapping[str, str | None] | None = None, data: Any = None) -> Store | None:
    """Return the configured store, if any; `run` describes the publisher, `data` the run's rows."""
    if config.paths.cache is None:
        return None
    who = {name: value for name, value in (run or {}).items() if value is not None}
    return Store(Path(config.paths.cache), who, {"data": data}, key_of_environment(os.environ))


def open_run(
    values: Mapping[str, Any], collect: Callable[[str], AbstractContextManager[object]] = under
) -> dict[str, Any]:
    """Return the stages' keyword arguments: check the runtime, read the checkpoint, load the rows.

    Args:
        values: typed config values by key; parts whose key is missing are left out.
        collect: returns the context in which the part of a key is read; if it suppresses an error, the part is left
            out.
    """
    context: dict[str, Any] = {"report": lambda report: None, "start": None}
    with collect("runtime"):
        check_one_runtime()
        if "runtime" in values:
            context["runtime"] = values["runtime"]
            check_provider(values["runtime"])
    if values.get("resume") is not None:
        with collect("resume"):
            context["start"] = read_checkpoint(Path(values["resume"]))
    if "data" in values:
        with collect("data"):
            context["data"] = load(values["data"])
    return context


def choice(config: Mapping[str, Any]) -> str:
    """Return the first catalogue member that a stage's config chooses, or "".

    >>> choice({"reduction": "mean", "loss": {"name": "l2"}}), choice({"terms": {}})
    ('l2', '')
    """
    return next((str(value["name"]) for value in config.values() if isinstance(value, dict) and "name" in value), "")


@words(SETTINGS)
def execute(
    config: RunConfig,
    resolved: dict[str, Any],
    hydra: HydraConf,
    job: Job | None = None,
    command: str | None = None,
) -> None:
    """Run the flow, alone or as a job of a sweep; `resolved` is the config without its secrets.

    `command` is the equivalent command if the run was started from Python.
    """
    resolved = with_versions(resolved)
    folder = Path(hydra.runtime.output_dir)
    started = time.perf_counter()
    context = open_run(vars(config))
    data: Data = context["data"]
    with under("objective"):
        check_rows(config.objective, validated=data.validation is not None)
    registers = resolved["recorder"].get("register") is not None
    facts = environment(config.seed, command or command_of(hydra, registers=registers))
    if (
        job is None
        and (config.resume is None or Path(config.resume).absolute() != folder)
        and (notice := replaced(folder))
    ):
        print(notice, file=sys.stderr, flush=True)
    record = RunRecord(folder, "", {}) if job is None else job.record
    record.name = record.name or redacted(config.name)
    record.tags |= {**origin_tags(facts, folder), "ortpipe.seed": facts["seed"], "ortpipe.data": data.digest()}
    record.plan = {stage.name: choice(resolved[stage.name]) for stage in FLOW}
    record.data = {"source": resolved["data"]["source"], **data_facts(data)}
    if data.notes:
        record.notes["data"] = tuple(data.notes)
    before_the_end(record.abandon)
    recording = config.recorder(record, resolved)
    record.mlflow = recording.run_id

    def name_settings(event: Event) -> None:
        if isinstance(event, RunFailed) and isinstance(event.error, OrtpipeError):
            event.error.said_in(SETTINGS)  # before other listeners read it

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

    def values(artifact: Artifact) -> dict[str, float]:
        part = "train" if data.validation is None else "validation"
        measured = artifact.facts.lineage[-1].get("validation", {})
        validated = {f"validation/{name}": value for name, value in measured.items()}
        return {f"{part}/loss": trained_loss(artifact.tensors, config.train.early_stop), **validated}

    def example(artifact: Artifact) -> dict[str, Any]:
        return feed_inputs(artifact.signature, artifact.facts, data.train.head(EXAMPLE_ROWS))

    screen = Screen([in_words(record.data), *data.notes], None if job is None else job.job.number)
    text = config_text(resolved)
    draws = config.figures and job is None
    listeners: list[Listener] = [
        name_settings,
        StageLogs(folder),
        RunFolder(record, text, facts, values, example, draws),
        guard,
        *([] if job is not None and job.manifest.live else [screen]),
        recording,
    ]
    store = store_of(config, {"folder": str(folder), "mlflow": recording.run_id}, resolved["data"])
    artifact = run(plan_of(config), context, listeners, store)
    if job is None:
        summary = {**recording.summary, "took": f"{time.perf_counter() - started:.1f} s"}
        print(closing(artifact, folder, summary), flush=True)
    recording.check()
