"""ortpipe repro: repeat a run from its record, and check that every result is the same."""

import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ortpipe import FLOW, Artifact
from ortpipe.app.assemble import open_run, plan_of
from ortpipe.app.compose import Composition, Parser, parsed
from ortpipe.app.consent import check_consent, completed
from ortpipe.app.lookup import recorded
from ortpipe.app.run.folder import kept_input, stage_artifact
from ortpipe.app.run.record import RunRecord, StageRecord, read_config, read_environment
from ortpipe.app.schema import build
from ortpipe.bounded import files_below
from ortpipe.errors import ReproError
from ortpipe.pipeline.digest import versions
from ortpipe.pipeline.events import Event, StageFinished
from ortpipe.pipeline.flatten import differing
from ortpipe.pipeline.run import run as run_plan
from ortpipe.pipeline.store import Store

ABOUT = """Repeat a run from its record alone, without the store, and compare every stage's digest and every
loss.
RUN is a run's folder, or the id of an MLflow run; key=value pairs say where runs are recorded
(recorder.tracking_uri, paths.outputs). If a stage differs, the first one is named, and what
differs: config, code, data or numbers; the exit code is 1. The model file is the run's copy; rows
are read from where the run read them. A record is data: the code that it names (a function, a
pickle) is executed, and the environment is read for it, only with --trust. Secrets that the record
masks as *** are passed as key=value."""
EXAMPLES = (
    "ortpipe repro outputs/runs/DATE/TIME",
    "ortpipe repro RUN_ID recorder.tracking_uri=http://127.0.0.1:5000",
)
SURROUNDINGS = ("packages", "machine", "format")  # may differ, with a warning


def run(arguments: Sequence[str]) -> None:
    """Repeat a run."""
    parser = Parser("repro", ABOUT, EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="a run's folder, or the id of an MLflow run")
    parser.add_argument(
        "--trust", action="store_true", help="execute the code that the record names: you know who wrote it"
    )
    options = parser.read(arguments)
    recorder_words = tuple(word for word in options.overrides if word.lstrip("+~").startswith(("recorder", "paths.")))
    pairs = parsed(word for word in options.overrides if word not in recorder_words).values()
    secrets = {override.key_or_group: override.value() for override in pairs}
    with recorded(options.run, Composition(recorder_words, options.config_dir)) as folder:
        _repeat(folder, secrets, trust=options.trust)


def _repeat(folder: Path, secrets: Mapping[str, Any], *, trust: bool) -> None:
    place = read_environment(folder).get("folder")
    values = read_config(folder)
    check_consent(values, place, trust=trust)
    values = completed(values, secrets)
    stages = RunRecord.read(folder).stages
    sys.path[:] = map(os.path.abspath, sys.path)  # an empty path means the working folder, which changes below
    if place is not None and Path(place).is_dir():
        os.chdir(place)  # for relative paths
    elif place is not None:
        print(f"warning: the run's working folder {place} is missing; paths are relative to this one", file=sys.stderr)
    for stage in FLOW:
        _use_copies(values.get(stage.name), stage.name, folder)
    config = build({**values, "recorder": {"name": "none"}, "resume": None, "start": None})
    plan = plan_of(config)[: len(stages)]
    recorded_versions = {name: version for stage in stages for name, version in stage.parts["packages"].items()}
    current_versions = {name: version for step in plan for name, version in versions(step.stage.packages).items()}
    for name, (old, new) in differing(recorded_versions, current_versions).items():
        print(f"warning: {name} was {old}, is {new}", file=sys.stderr)
    for machine in sorted({stage.parts["machine"] for stage in stages} - {platform.machine()}):
        print(f"warning: the machine was {machine}, is {platform.machine()}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ortpipe-") as fresh:
        compare = partial(_compare, stages=stages, folder=folder)
        artifact = run_plan(plan, open_run(vars(config)), [compare], Store(Path(fresh)))
    kinds = [f"losses/{kind}" for kind in ("step", "train", "validation")]
    losses = sum(artifact.tensors[kind].size for kind in kinds if kind in artifact.tensors)
    print(f"reproduced: {len(stages)} stages and {losses:,} losses are identical to the last bit")
    if len(stages) < len(plan_of(config)):
        print("(the run itself ended before its last stage)")


def _use_copies(node: Any, key: str, folder: Path) -> None:
    """Replace a config part's paths of models by those of the copies in the run's folder."""
    if not isinstance(node, dict):
        return
    if isinstance(path := node.get("path"), str):
        node["path"] = kept_input(key, path, folder) or path
    for name, inner in node.items():
        _use_copies(inner, f"{key}.{name}", folder)


def _compare(event: Event, stages: Sequence[StageRecord], folder: Path) -> None:
    """Compare a stage with its record, and raise at the first that differs."""
    if not isinstance(event, StageFinished):
        return
    record = stages[event.number - 1]
    kinds = {"version": "code", "data": "data"}
    differences = [
        f"{kinds.get(name, 'config')}: {name} was {old}, is {new}"
        for name, (old, new) in differing(record.parts, event.parts).items()
        if name.partition(".")[0] not in SURROUNDINGS
    ]
    if not differences and event.output != record.output:
        differences = [f"numbers: digest was {record.output}, is {event.output}"]
        differences += _tensor_differences(folder, f"{event.number}_{event.name}", record.output, event.artifact)
    if differences:
        raise ReproError(
            f"A repeated run must give the recorded results: {event.name} differs.", got="\n       ".join(differences)
        )
    print(f"{event.name:<9} same  {event.output}", flush=True)


def _tensor_differences(run: Path, name: str, digest: str, artifact: Artifact) -> list[str]:
    """Return the differences from the tensors that the run recorded, one line each."""
    if not any(files_below(run, f"stages/{name}")):
        return []
    recorded_artifact = stage_artifact(run, name)
    if recorded_artifact.digest() != digest:
        return [f"the artifact that the run recorded in {name} was changed since"]
    names = sorted({*recorded_artifact.tensors, *artifact.tensors})
    return [
        line
        for name in names
        for line in _tensor_difference(name, recorded_artifact.tensors.get(name), artifact.tensors.get(name))
    ]


def _tensor_difference(name: str, then: Any, now: Any) -> list[str]:
    """Return how two tensors differ, nothing if they are equal.

    >>> import numpy as np
    >>> _tensor_difference("losses/step", np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    ['losses/step: 1 of 2 differ, first at 1, by 0.5 at most']
    """
    if then is None or now is None or then.shape != now.shape or then.dtype != now.dtype:
        descriptions = [
            "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}" for tensor in (then, now)
        ]
        return [f"{name}: was {descriptions[0]}, is {descriptions[1]}"]
    unequal = np.flatnonzero(np.not_equal(then, now) & ~((then != then) & (now != now)))
    if not len(unequal):
        return []
    size = float(np.abs(now.ravel()[unequal].astype(np.float64) - then.ravel()[unequal].astype(np.float64)).max())
    return [f"{name}: {len(unequal):,} of {then.size:,} differ, first at {unequal[0]}, by {size:g} at most"]
