"""A run's trained model as an MLflow model that predicts, and its place in the model registry."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ortpipe.app.tracking.client import made_once, open_store, reached
from ortpipe.app.tracking.target import Target
from ortpipe.errors import TrackingError
from ortpipe.runtime.session import Session

if TYPE_CHECKING:
    from mlflow import MlflowClient

NAME = "model"


def log_model(client: MlflowClient, run: str, experiment: str, model: onnx.ModelProto) -> str:
    """Log a model as the run's; return the logged model's id.

    MLflow's own `log_model` works on the process's current run and server; this is it, step by step, on a given one.
    """
    from mlflow.entities import LoggedModelOutput

    logged = client.create_logged_model(experiment, name=NAME, source_run_id=run, model_type="onnx")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, NAME)
        _save(model, folder, run, logged.model_id, logged.artifact_location)
        client.log_model_artifacts(logged.model_id, str(folder))
    client.log_outputs(run, [LoggedModelOutput(logged.model_id, step=0)])
    client.finalize_logged_model(logged.model_id, "READY")
    return logged.model_id


def logged_model(client: MlflowClient, run: str, experiment: str) -> str | None:
    """Return the id of a run's logged model, if it has one; one that a broken recording left half-made is deleted."""
    for model in client.search_logged_models([experiment], f"source_run_id = '{run}'"):
        if model.status == "READY":
            return str(model.model_id)
        client.delete_logged_model(model.model_id)
    return None


def register(client: MlflowClient, target: Target, model_id: str) -> str:
    """Make a logged model the newest version of the registered one, under its alias; return the version.

    Raises:
        ValueError: nothing is to be registered.
    """
    if target.register is None:
        raise ValueError("recorder.register names the registered model")
    model = client.get_logged_model(model_id)
    with made_once():
        client.create_registered_model(target.register)
    versions = client.search_model_versions(f"name = '{target.register}' and run_id = '{model.source_run_id}'")
    if versions:
        version = versions[0]
    else:
        by_server = target.tracking_uri.startswith("http")  # else MLflow looks for it in the process's own database
        source = f"models:/{model_id}" if by_server else model.artifact_location
        version = client.create_model_version(target.register, source, model.source_run_id, model_id=model_id)
    client.set_registered_model_alias(target.register, target.alias, version.version)
    return str(version.version)


def register_run(target: Target, run: str) -> str:
    """Register the model that a run has logged, as the best of a sweep; return the version.

    Raises:
        TrackingError: the database or server cannot be reached, or the run has no model.
    """
    client, experiment = open_store(target, run)
    with reached(target.tracking_uri):
        model = logged_model(client, run, experiment)
        if model is not None:
            return register(client, target, model)
    fix = "Complete its record: ortpipe sync RUN_FOLDER."
    raise TrackingError("A run that is registered has a model.", got=f"run {run}", fix=fix)


def _save(model: onnx.ModelProto, folder: Path, run: str, model_id: str, location: str) -> None:
    import mlflow.onnx
    from mlflow.models import Model, infer_signature

    example = _example(model)
    session = Session(model)
    outputs = dict(zip(session.outputs, session.run(example), strict=True))
    mlflow.onnx.save_model(
        model,
        str(folder),
        mlflow_model=Model(artifact_path=location, model_uuid=model_id, run_id=run, model_id=model_id),
        signature=infer_signature(example, outputs),
        input_example=example,
        pip_requirements=["onnx", "onnxruntime", "numpy"],
        onnx_execution_providers=["CPUExecutionProvider"],
    )


def _example(model: onnx.ModelProto) -> dict[str, Any]:
    """Return two rows of zeros for every input; a dimension that is not known is 1."""
    example = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [2, *(d.dim_value or 1 for d in tensor.shape.dim[1:])]
        example[value.name] = np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return example
