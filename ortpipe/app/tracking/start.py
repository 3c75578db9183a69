"""Resolve `start`: the run or registered model whose trained weights a run starts from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ortpipe import FLOW
from ortpipe.app.model_uri import is_uri
from ortpipe.app.run.record import FILE, ID, RunRecord
from ortpipe.app.tracking.client import client_at, or_none, reached
from ortpipe.app.tracking.models import tracking_uri, version_of
from ortpipe.bounded import has_file
from ortpipe.errors import ConfigError, under

GRAPH, WEIGHTS = (f"stages/{i}_{s.name}" for i, s in enumerate(FLOW, 1) if s.name in ("convert", "train"))


class Origin(NamedTuple):
    """The model that a run starts from: its exact name, its graph, and the file of its weights unless the graph's."""

    name: str
    graph: str
    weights: str | None
    run: str | None = None  # the MLflow run or the folder that trained it


def with_start(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config whose `convert` reads the model that `start` names, if any; its exact name replaces an alias.

    The graph is convert's, in training mode: the trained model has neither dropout nor batch statistics.
    """
    name, convert = config.get("start"), config.get("convert")
    if name is None or not isinstance(convert, Mapping):
        return {**config}
    with under("start"):
        if convert.get("init") is not None:
            fix = "Remove convert.init, or {key}."
            raise ConfigError("{key} sets the initial weights.", got="convert.init too", fix=fix)
        origin = origin_of(str(name), config.get("recorder"))
    strict = convert.get("head") is None
    init = None if origin.weights is None else {"path": origin.weights, "strict": strict}
    source = {"name": "onnx", "path": origin.graph}
    return {**config, "start": origin.name, "convert": {**convert, "source": source, "init": init}}


def origin_of(name: str, recorder: Any) -> Origin:
    """Return the model of a run's folder, of the id of an MLflow run, or of a registered version."""
    if has_file(Path(name), FILE):
        _check_trained(RunRecord.read(Path(name)).stage_folders, name)
        return Origin(name, f"{name}/{GRAPH}/model.onnx", f"{name}/{WEIGHTS}/model.onnx", name)
    if not is_uri(name) and not ID.fullmatch(name):
        fix = "Write models:/NAME@ALIAS, the id of an MLflow run, or a run's folder. To train a file, set convert=onnx."
        raise ConfigError("{key} must name a run or a registered model.", got=name, fix=fix)
    if name.startswith("runs:"):
        raise ConfigError("{key} takes the run's id alone.", got=name, fix=f"Write {{key}}={name.split('/')[1]}.")
    uri = tracking_uri(recorder)
    with reached(uri):
        client = client_at(uri)
        run, exact = (name, name) if not is_uri(name) else _version(client, name)
        stages = {f"stages/{Path(entry.path).name}" for entry in client.list_artifacts(run, "stages")} if run else set()
    if run is None or (is_uri(name) and not {GRAPH, WEIGHTS} <= stages):
        return Origin(exact, name, None, run)  # of another tool; `convert.source` reads it, or raises
    _check_trained([Path(stage).name for stage in stages], name)
    return Origin(exact, f"runs:/{run}/{GRAPH}", f"runs:/{run}/{WEIGHTS}", run)


def _version(client: Any, name: str) -> tuple[str | None, str]:
    """Return the run of a registered model's version, and the version's URI."""
    version = or_none(lambda: version_of(client, name))
    run = None if version is None else or_none(lambda: client.get_run(version.run_id))
    if version is None or run is None:  # reading the model explains it
        return None, name
    return run.info.run_id, f"models:/{version.name}/{version.version}"


def _check_trained(folders: list[str], name: str) -> None:
    if not {GRAPH, WEIGHTS} <= {f"stages/{folder}" for folder in folders}:
        rule, fix = "{key} needs a run that finished training.", "Choose another run."
        raise ConfigError(rule, got=f"{name} with {', '.join(sorted(folders)) or 'no stage'}", fix=fix)
