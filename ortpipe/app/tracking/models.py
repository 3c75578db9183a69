"""Download the models that a config names by MLflow URIs, such as models:/name@champion, and move its alias."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from ortpipe.app.consent import mapped
from ortpipe.app.model_uri import FILES, URI, is_uri
from ortpipe.app.tracking.client import check_packages, client_at, or_none, reached
from ortpipe.app.tracking.sqlite import database_of
from ortpipe.app.tracking.target import Target
from ortpipe.bounded import has_file, parse_yaml, read_below
from ortpipe.errors import ConvertError, TrackingError, nearest, under

if TYPE_CHECKING:
    from mlflow import MlflowClient

FLAVOURS = {"onnx": "onnx", "sklearn": "sklearn", "torch": "pytorch"}  # of MLflow, by source of `convert`
ROLES = ("convert.", "add_loss.", "data.teacher.")  # whose `path` may be such a URI
REPLACED = "ortpipe.replaced"  # the tag of a version with the version that had the alias before it


class FetchedModel(NamedTuple):
    """The local folder of a model, and the URI of its exact version."""

    folder: Path
    uri: str


def with_files(key: str, node: Any, recorder: Any) -> Any:
    """Return a part of a config with MLflow URIs replaced by the paths of downloaded files."""

    def file(key: str, value: Any) -> Any:
        if not key.startswith(ROLES) or not key.endswith(".path") or not is_uri(value):
            return value
        source = node["source"].get("name") if key == "convert.source.path" else "onnx"
        with under(*key.split(".")[1:-1]):
            return str(model_file(fetch(value, tracking_uri(recorder)), source))

    return mapped(node, file, key)


def with_versions(config: Mapping[str, Any]) -> Any:
    """Return a config with aliases in MLflow URIs replaced by the versions that `with_files` has downloaded."""

    def version(key: str, value: Any) -> Any:
        is_model_uri = key.startswith(ROLES) and key.endswith(".path") and is_uri(value)
        return fetch(value, tracking_uri(config.get("recorder"))).uri if is_model_uri else value

    return mapped(config, version)


def tracking_uri(recorder: Any) -> str:
    """Return the address of the MLflow that has the models of a config."""
    uri = recorder.get("tracking_uri") if isinstance(recorder, Mapping) else None
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        rule = "A model in MLflow needs the address of its server or database."
        fix = "Set MLFLOW_TRACKING_URI, or recorder=mlflow recorder.tracking_uri=…."
        raise TrackingError(rule, key="path", got="a recorder without an address", fix=fix)
    return str(uri)


@functools.cache  # a sweep's jobs and a config's checks call it again
def fetch(uri: str, tracking_uri: str) -> FetchedModel:
    """Download a model's folder, which is deleted when this process ends."""
    if (database := database_of(tracking_uri)) is not None and not database.is_file():
        fix = "Set recorder.tracking_uri, or MLFLOW_TRACKING_URI, to the address where the model is registered."
        rule = "The database of a model in MLflow must exist."
        raise TrackingError(rule, key="path", got=f"no database {tracking_uri}", fix=fix)
    from mlflow import MlflowException

    with reached(tracking_uri):
        client = client_at(tracking_uri)
        try:
            place, exact = _location(client, uri)
            return FetchedModel(_download(place, tracking_uri), exact)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            raise TrackingError(
                "MLflow must have the model: models:/NAME@ALIAS, models:/NAME/VERSION, models:/ID or runs:/RUN/NAME.",
                key="path",
                got=f"{uri} in {tracking_uri}: {str(error).partition(chr(10))[0][:200]}",
                fix=_suggestion(client, uri),
            ) from error


def forget_aliases() -> None:
    """Look up the version of each model again, as a new run must: its alias may have moved."""
    fetch.cache_clear()


@functools.cache  # also for the next run of this process
def _download(place: str, tracking_uri: str) -> Path:
    import mlflow.artifacts

    check_packages(place)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    folder = Path(tempfile.mkdtemp(prefix="ortpipe-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    mlflow.artifacts.get_artifact_repository(place, tracking_uri=tracking_uri).download_artifacts("", str(folder))
    return folder


def _location(client: MlflowClient, uri: str, passed: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return the location of a model's files, and the URI of its exact version.

    MLflow's own function searches the registry of the process, not that of a client.
    """
    parts = URI.fullmatch(uri)
    assert parts is not None
    name, suffix = parts["name"], parts["rest"]
    if uri.startswith("runs:"):
        run = client.get_run(name)
        for model in client.search_logged_models([run.info.experiment_id], f"source_run_id = '{name}'"):
            if model.name == suffix:
                return str(model.artifact_location), uri
        return f"{run.info.artifact_uri.rstrip('/')}/{suffix or 'model'}", uri
    if parts["alias"] is None and suffix is None:
        return str(client.get_logged_model(name).artifact_location), uri
    version = version_of(client, uri).version
    source = client.get_model_version_download_uri(name, str(version))
    exact = f"models:/{name}/{version}"
    if exact in passed:
        rule, fix = "A registered version must lead to a model.", "Register it again, from a run."
        raise TrackingError(rule, key="path", got=f"{uri}, which leads back to itself", fix=fix)
    return (_location(client, source, (*passed, exact))[0] if is_uri(source) else source), exact


def version_of(client: MlflowClient, uri: str) -> Any:
    """Return the registered version that a URI names; MLflow raises an error if there is none."""
    parts = URI.fullmatch(uri)
    assert parts is not None
    name, alias, number = parts["name"], parts["alias"], parts["rest"]
    if alias is not None:
        return client.get_model_version_by_alias(name, alias)
    if number == "latest":
        versions = client.search_model_versions(f"name = '{name}'")
        number = max((int(entry.version) for entry in versions), default=number)  # MLflow rejects the word
    return client.get_model_version(name, str(number))


def _suggestion(client: MlflowClient, uri: str) -> str:
    """Return the fix for a URI that MLflow does not have: the nearest name, or the versions."""
    parts = URI.fullmatch(uri)
    assert parts is not None
    if uri.startswith("runs:") or not (parts["alias"] or parts["rest"]):
        return "Copy it from MLflow's page of the model or the run."
    models = {model.name: model for model in client.search_registered_models(max_results=1000)}
    if parts["name"] not in models:
        return nearest(parts["name"], models) if models else "No model is registered at this address."
    aliases = models[parts["name"]].aliases
    versions = sorted(int(entry.version) for entry in client.search_model_versions(f"name = '{parts['name']}'"))
    alias_texts = [f"@{alias} (version {version})" for alias, version in sorted(aliases.items())]
    return f"It has {', '.join([*alias_texts, *(f'version {number}' for number in versions)]) or 'no version'}."


def model_file(model: FetchedModel, source: str) -> Path:
    """Return the file of the flavour that a source reads; only its path is taken from the file MLmodel."""
    if source == "onnx" and has_file(model.folder, "artifact.json"):  # a stage's folder of a run
        return model.folder / "model.onnx"
    try:
        flavors = parse_yaml(read_below(model.folder, "MLmodel").decode())["flavors"]
        flavours = {name: value for name, value in flavors.items() if name in FILES and isinstance(value, dict)}
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        rule, fix = "A model in MLflow must have a file MLmodel with its flavours.", "Log it again."
        raise ConvertError(rule, got=f"{model.uri}: {type(error).__name__}", key="path", fix=fix) from error
    flavour = FLAVOURS.get(source)
    if flavour is None or flavour not in flavours:
        sources = [name for name, name_in_mlflow in FLAVOURS.items() if name_in_mlflow in flavours]
        raise ConvertError(
            f"convert={source} reads models of MLflow's flavour {flavour}."
            if flavour
            else f"convert={source} cannot read models from MLflow.",
            key="path",
            got=f"{model.uri}, of flavours {', '.join(flavors)}",
            fix=f"Choose convert={sources[0]}." if sources else "Log it as onnx, sklearn or pytorch.",
        )
    key, names = FILES[flavour]
    path = model.folder / str(flavours[flavour].get(key, ""))
    candidates = [path, *(path / name for name in names)]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None or not file.resolve().is_relative_to(model.folder.resolve()):
        rule, as_pt2 = "The folder of a model in MLflow must hold its file.", ", with serialization_format='pt2'"
        actual = f"{model.uri}: no {' or '.join(names)} in {path.name or 'it'}"
        raise ConvertError(rule, got=actual, key="path", fix=f"Log it again{as_pt2 if flavour == 'pytorch' else ''}.")
    return file


class Champion(NamedTuple):
    """The file of the version that has the alias, and that version's URI."""

    uri: str
    file: Path


def holder_of(client: Any, target: Target) -> Any:
    """Return the version with the alias, None if there is none."""
    return or_none(lambda: client.get_model_version_by_alias(target.register, target.alias))


def champion_of(target: Target) -> Champion | None:
    """Return the champion, if there is one."""
    with reached(target.tracking_uri):
        holder = holder_of(client_at(target.tracking_uri), target)
    if holder is None:
        return None
    model = fetch(f"models:/{target.register}/{holder.version}", target.tracking_uri)
    return Champion(model.uri, model_file(model, "onnx"))


def move_alias(client: Any, target: Target, version: str) -> None:
    """Give a version the alias, which MLflow moves in one step; the version records the one before it."""
    holder = holder_of(client, target)
    if holder is not None and str(holder.version) != version:
        client.set_model_version_tag(target.register, version, f"{REPLACED}.{target.alias}", str(holder.version))
    client.set_registered_model_alias(target.register, target.alias, version)


def roll_back(target: Target) -> tuple[str, str]:
    """Give the alias back to the version before the champion; return the versions that have lost and got it."""
    name, fix = f"{target.register}@{target.alias}", "See the versions in MLflow, and recorder.tracking_uri."
    with reached(target.tracking_uri):
        client = client_at(target.tracking_uri)
        holder = holder_of(client, target)
        if holder is None:
            raise TrackingError("The registered model must have a champion.", got=f"{name}: none", fix=fix)
        before = holder.tags.get(f"{REPLACED}.{target.alias}")
        if before is None:
            rule = "A champion that replaced no version cannot be rolled back."
            raise TrackingError(rule, got=f"{name}, version {holder.version}", fix=fix)
        if or_none(lambda: client.get_model_version(target.register, before)) is None:
            rule = "The version before the champion must exist."
            raise TrackingError(rule, got=f"{name}: version {before} was deleted", fix=fix)
        client.set_registered_model_alias(target.register, target.alias, before)
    return str(holder.version), before
