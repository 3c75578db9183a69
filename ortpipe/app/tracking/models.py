"""Models that configs name by MLflow's URIs, such as models:/name@champion, as files of this machine."""

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
from ortpipe.app.tracking.client import client_at, reached
from ortpipe.app.tracking.sqlite import database_of
from ortpipe.errors import ConvertError, TrackingError, nearest, under

if TYPE_CHECKING:
    from mlflow import MlflowClient

FLAVOURS = {"onnx": "onnx", "sklearn": "sklearn", "torch": "pytorch"}  # of a source of models
ROLES = ("convert.", "add_loss.")  # whose `path` may be such a model


class FetchedModel(NamedTuple):
    """A model's folder here, and the URI of exactly this one."""

    folder: Path
    uri: str


def with_files(key: str, node: Any, recorder: Any) -> Any:
    """Return a part of a config whose models from MLflow are files; each one's content tells it apart from others."""

    def file(key: str, value: Any) -> Any:
        if not key.endswith(".path") or not is_uri(value):
            return value
        source = node["source"].get("name") if key == "convert.source.path" else "onnx"
        with under(*key.split(".")[1:-1]):
            return str(_file(_fetched(value, _tracking_uri(recorder)), source))

    return mapped(node, file, key) if f"{key}." in ROLES else node


def with_versions(config: Mapping[str, Any]) -> Any:
    """Return a config that names exact versions where it names aliases: those that `with_files` has fetched."""

    def version(key: str, value: Any) -> Any:
        named = key.startswith(ROLES) and key.endswith(".path") and is_uri(value)
        return _fetched(value, _tracking_uri(config.get("recorder"))).uri if named else value

    return mapped(config, version)


def _tracking_uri(recorder: Any) -> str:
    uri = recorder.get("tracking_uri") if isinstance(recorder, Mapping) else None
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        rule = "A model in MLflow is looked up at an address."
        fix = "Set MLFLOW_TRACKING_URI, or recorder=mlflow recorder.tracking_uri=…."
        raise TrackingError(rule, key="path", got="a recorder without one", fix=fix)
    return str(uri)


@functools.cache  # a sweep's jobs and a config's checks ask again
def _fetched(uri: str, tracking_uri: str) -> FetchedModel:
    """Copy a model's folder here for as long as this process lives."""
    if (database := database_of(tracking_uri)) is not None and not database.is_file():
        fix = "Set recorder.tracking_uri, or MLFLOW_TRACKING_URI, to where the model is registered."
        rule = "A model in MLflow is looked up where it is."
        raise TrackingError(rule, key="path", got=f"no database {tracking_uri}", fix=fix)
    import mlflow.artifacts

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with reached(tracking_uri):
        client = client_at(tracking_uri)
        try:
            place, exact = _place(client, uri)
            folder = Path(tempfile.mkdtemp(prefix="ortpipe-model-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            mlflow.artifacts.get_artifact_repository(place, tracking_uri=tracking_uri).download_artifacts(
                "", str(folder)
            )
        except mlflow.exceptions.MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            raise TrackingError(
                "A model from MLflow is one that is there: models:/NAME@ALIAS, models:/NAME/VERSION, models:/ID or "
                "runs:/RUN/NAME.",
                key="path",
                got=f"{uri} in {tracking_uri}: {str(error).partition(chr(10))[0][:200]}",
                fix=_known(client, uri),
            ) from error
    return FetchedModel(folder, exact)


def _place(client: MlflowClient, uri: str) -> tuple[str, str]:
    """Return where a model's files are, and the URI of exactly this model; each needs more asking than MLflow's own.

    MLflow's looks models up in the registry of the process, not in that of a client.
    """
    parts = URI.fullmatch(uri)
    assert parts is not None
    name, alias, rest = parts["name"], parts["alias"], parts["rest"]
    if uri.startswith("runs:"):
        run = client.get_run(name)
        for model in client.search_logged_models([run.info.experiment_id], f"source_run_id = '{name}'"):
            if model.name == rest:
                return str(model.artifact_location), uri
        return f"{run.info.artifact_uri.rstrip('/')}/{rest or 'model'}", uri
    if alias is None and rest is None:
        return str(client.get_logged_model(name).artifact_location), uri
    if alias is not None:
        version = client.get_model_version_by_alias(name, alias).version
    elif rest == "latest":
        versions = client.search_model_versions(f"name = '{name}'")
        version = max((int(one.version) for one in versions), default="latest")  # which MLflow refuses
    else:
        version = rest
    source = client.get_model_version_download_uri(name, str(version))
    return (_place(client, source)[0] if is_uri(source) else source), f"models:/{name}/{version}"


def _known(client: MlflowClient, uri: str) -> str:
    """Return what a URI that MLflow does not know may have meant."""
    parts = URI.fullmatch(uri)
    assert parts is not None
    if uri.startswith("runs:") or not (parts["alias"] or parts["rest"]):
        return "Take it from the page of the model or the run."
    models = {model.name: model for model in client.search_registered_models(max_results=1000)}
    if parts["name"] not in models:
        return nearest(parts["name"], models) if models else "No model is registered there."
    aliases = models[parts["name"]].aliases
    versions = sorted(int(one.version) for one in client.search_model_versions(f"name = '{parts['name']}'"))
    named = [f"@{alias} (version {version})" for alias, version in sorted(aliases.items())]
    return f"It has {', '.join([*named, *(f'version {number}' for number in versions)]) or 'no version'}."


def _file(model: FetchedModel, source: str) -> Path:
    """Return the file of a flavour in a model's folder; of MLmodel, nothing is believed but where that is."""
    try:
        said = yaml.safe_load((model.folder / "MLmodel").read_text(encoding="utf-8"))["flavors"]
        flavours = {name: value for name, value in said.items() if name in FILES and isinstance(value, dict)}
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        rule, fix = "A model in MLflow has a file MLmodel that says its flavours.", "Log it again."
        raise ConvertError(rule, got=f"{model.uri}: {type(error).__name__}", key="path", fix=fix) from error
    flavour = FLAVOURS.get(source)
    if flavour is None or flavour not in flavours:
        sources = [name for name, known in FLAVOURS.items() if known in flavours]
        raise ConvertError(
            f"convert={source} reads models of MLflow's flavour {flavour}."
            if flavour
            else f"convert={source} reads no models of MLflow.",
            key="path",
            got=f"{model.uri}, of flavours {', '.join(said)}",
            fix=f"Choose convert={sources[0]}." if sources else "Log it as onnx, sklearn or pytorch.",
        )
    key, names = FILES[flavour]
    stored = model.folder / str(flavours[flavour].get(key, ""))
    found = [stored, *(stored / name for name in names)]
    file = next((one for one in found if one.is_file()), None)
    if file is None or not file.resolve().is_relative_to(model.folder.resolve()):
        rule, as_pt2 = "The file of a model in MLflow lies in its folder.", ", with serialization_format='pt2'"
        got = f"{model.uri}: no {' or '.join(names)} in {stored.name or 'it'}"
        raise ConvertError(rule, got=got, key="path", fix=f"Log it again{as_pt2 if flavour == 'pytorch' else ''}.")
    return file
