"""ortpipe repro: make a run again from what it left behind, and prove that it is the same."""

import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser

from ortpipe.app.assemble import open_run, plan_of
from ortpipe.app.compose import Composition, Parser
from ortpipe.app.consent import completed, executes
from ortpipe.app.lookup import recorded
from ortpipe.app.run.folder import kept_input
from ortpipe.app.run.record import RunRecord, StageRecord, read_config, read_environment
from ortpipe.app.schema import build
from ortpipe.artifact import Artifact, load_artifact
from ortpipe.errors import ConfigError, ReproError
from ortpipe.flow import FLOW
from ortpipe.pipeline.digest import versions
from ortpipe.pipeline.events import Event, StageFinished
from ortpipe.pipeline.flatten import differing
from ortpipe.pipeline.run import run as run_plan
from ortpipe.pipeline.store import Store

ABOUT = """Make a run again from its record alone, with nothing stored, and compare every stage's digest and every loss.
RUN is a run's folder, or the id of an MLflow run; key=value pairs say where runs are recorded (recorder.tracking_uri,
paths.outputs). Where something differs, the first stage that does is named, and how: config, code, data or numbers;
the exit code is 1. The model file is the copy that the run kept; rows are read from where the run read them. A record
is data: what it asks to execute (a function, a pickle), or to read from the environment, needs --trust. Secrets that it
writes as *** are given as key=value."""
SURROUNDINGS = ("packages", "machine", "format")


def run(arguments: Sequence[str]) -> None:
    """Repeat a run."""
    parser = Parser("repro", ABOUT)
    parser.add_argument("run", metavar="RUN", help="a run's folder, or the id of an MLflow run")
    parser.add_argument("--trust", action="store_true", help="execute what the record asks for: you know who wrote it")
    given = parser.read(arguments)
    where = tuple(word for word in given.overrides if word.lstrip("+~").startswith(("recorder", "paths.")))
    parsed = OverridesParser.create().parse_overrides([word for word in given.overrides if word not in where])
    secrets = {override.key_or_group: override.value() for override in parsed}
    with recorded(given.run, Composition(where, given.config_dir)) as folder:
        _repeat(folder, secrets, trust=given.trust)


def _repeat(folder: Path, secrets: Mapping[str, Any], *, trust: bool) -> None:
    place = read_environment(folder).get("folder")
    values = read_config(folder)
    if (asks := executes(values, place)) and not trust:
        fix = "Look at it in the record; if you want it, add --trust."
        rule = "What a record asks to execute is executed on your word only."
        raise ConfigError(rule, got="\n       ".join(asks), fix=fix)
    values = completed(values, secrets)
    stages = RunRecord.read(folder).stages
    sys.path[:] = [os.path.abspath(path) for path in sys.path]  # an empty one means the working folder: not the run's
    if place is not None and Path(place).is_dir():
        os.chdir(place)  # for relative paths
    elif place is not None:
        print(f"warning: the run's working folder {place} is gone; paths start at this one", file=sys.stderr)
    for stage in FLOW:
        _use_kept(values.get(stage.name), stage.name, folder)
    config = build({**values, "recorder": {"name": "none"}, "resume": None})
    plan = plan_of(config)[: len(stages)]
    then = {name: version for stage in stages for name, version in stage.parts["packages"].items()}
    now = {name: version for step in plan for name, version in versions(step.stage.packages).items()}
    for name, (old, new) in differing(then, now).items():
        print(f"warning: {name} was {old}, is {new}", file=sys.stderr)
    for machine in sorted({stage.parts["machine"] for stage in stages} - {platform.machine()}):
        print(f"warning: the machine was {machine}, is {platform.machine()}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ortpipe-") as fresh:
        compare = partial(_compare, stages=stages, folder=folder)
        artifact = run_plan(plan, open_run(vars(config)), [compare], Store(Path(fresh)))
    kinds = [f"losses/{kind}" for kind in ("step", "train", "validation")]
    losses = sum(artifact.tensors[kind].size for kind in kinds if kind in artifact.tensors)
    print(f"reproduced: {len(stages)} stages and {losses:,} losses are the same to the last bit")
    if len(stages) < len(plan_of(config)):
        print("(the run itself ended before its last stage)")


def _use_kept(node: Any, key: str, folder: Path) -> None:
    """Let a part of the config read the models that the run's folder has copies of."""
    if not isinstance(node, dict):
        return
    if isinstance(path := node.get("path"), str):
        node["path"] = kept_input(key, path, folder) or path
    for name, inner in node.items():
        _use_kept(inner, f"{key}.{name}", folder)


def _compare(event: Event, stages: Sequence[StageRecord], folder: Path) -> None:
    """Compare a stage with what the run recorded of it, and end the run at the first that differs."""
    if not isinstance(event, StageFinished):
        return
    then = stages[event.number - 1]
    kinds = {"version": "code", "data": "data"}
    differences = [
        f"{kinds.get(name, 'config')}: {name} was {old}, is {new}"
        for name, (old, new) in differing(then.parts, event.parts).items()
        if name.partition(".")[0] not in SURROUNDINGS
    ]
    if not differences and event.output != then.output:
        differences = [f"numbers: digest was {then.output}, is {event.output}"]
        differences += _numbers(folder / "stages" / f"{event.number}_{event.name}", then.output, event.artifact)
    if differences:
        raise ReproError(f"A run is made again as it was: {event.name} differs.", got="\n       ".join(differences))
    print(f"{event.name:<9} same  {event.output}", flush=True)


def _numbers(place: Path, digest: str, now: Artifact) -> list[str]:
    """Return how tensors differ from those that the run recorded."""
    if not place.is_dir():
        return []
    before = load_artifact(place)
    if before.digest() != digest:
        return [f"what the run recorded in {place.name} was changed since"]
    names = sorted({*before.tensors, *now.tensors})
    return [line for name in names for line in _apart(name, before.tensors.get(name), now.tensors.get(name))]


def _apart(name: str, then: Any, now: Any) -> list[str]:
    """Return how two tensors differ, if they do.

    >>> import numpy as np
    >>> _apart("losses/step", np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    ['losses/step: 1 of 2 differ, first at 1, by 0.5 at most']
    """
    if then is None or now is None or then.shape != now.shape or then.dtype != now.dtype:
        said = ["missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}" for tensor in (then, now)]
        return [f"{name}: was {said[0]}, is {said[1]}"]
    other = np.flatnonzero(np.not_equal(then, now) & ~((then != then) & (now != now)))
    if not len(other):
        return []
    size = float(np.abs(now.ravel()[other].astype(np.float64) - then.ravel()[other].astype(np.float64)).max())
    return [f"{name}: {len(other):,} of {then.size:,} differ, first at {other[0]}, by {size:g} at most"]
