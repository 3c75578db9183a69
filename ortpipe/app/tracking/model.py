"""A run's trained model as an MLflow model that predicts, and its place in the model registry."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from ortpipe.app.tracking.client import made_once, open_store, reached
from ortpipe.app.tracking.target import Target
from ortpipe.errors import ModelError, TrackingError
from ortpipe.runtime.session import Session

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.types import Schema

NAME = "model"
BEST = "ortpipe.best"  # the tag of a sweep with the run of its best job


def log_model(
    client: MlflowClient,
    run: str,
    experiment: str,
    model: onnx.ModelProto,
    sizes: Mapping[str, Sequence[int]] | None = None,  # of real rows of each input: the model may not know them
) -> str:
    """Log a model as the run's; return the logged model's id.

    MLflow's own `log_model` works on the process's current run and server; this is it, step by step, on a given one.
    """
    import mlflow.onnx
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model, ModelSignature

    logged = client.create_logged_model(experiment, name=NAME, source_run_id=run, model_type="onnx")
    ids = {"model_uuid": logged.model_id, "model_id": logged.model_id, "run_id": run}
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(Path(scratch, NAME))
        mlflow.onnx.save_model(
            model,
            folder,
            mlflow_model=Model(artifact_path=logged.artifact_location, **ids),
            signature=ModelSignature(schema(model.graph.input), schema(model.graph.output)),
            input_example=example_of(model, sizes or {}),
            pip_requirements=["onnx", "onnxruntime", "numpy"],
            onnx_execution_providers=["CPUExecutionProvider"],
        )
        client.log_model_artifacts(logged.model_id, folder)
    client.log_outputs(run, [LoggedModelOutput(logged.model_id, step=0)])
    client.finalize_logged_model(logged.model_id, "READY")
    return logged.model_id


def schema(values: Sequence[onnx.ValueInfoProto]) -> Schema:
    """Return what a model says of its inputs or outputs; −1 is any size, as that of the rows always is."""
    from mlflow.types import Schema, TensorSpec

    specs = []
    for value in values:
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        specs.append(TensorSpec(dtype, (-1, *shape[1:]), value.name))
    return Schema(specs)


def example_of(model: onnx.ModelProto, sizes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray] | None:
    """Return two rows of zeros, of the size of real rows, or None where the model predicts nothing from them."""
    example = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = sizes.get(value.name) or [d.dim_value or 1 for d in tensor.shape.dim[1:]]
        example[value.name] = np.zeros([2, *shape], onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    try:
        Session(model).run(example)
    except ModelError as error:
        reason = str(error.got or error).strip().partition("\n")[0]
        print(f"MLflow's model has no input example: it does not run on zeros ({reason[:200]})", file=sys.stderr)
        return None
    return example


def logged_model(client: MlflowClient, run: str, experiment: str) -> str | None:
    """Return the id of a run's logged model, if it has one; one that a broken recording left half-made is deleted."""
    for model in client.search_logged_models([experiment], f"source_run_id = '{run}'"):
        if model.status == "READY":
            return str(model.model_id)
        client.delete_logged_model(model.model_id)
    return None


def register(client: MlflowClient, target: Target, model_id: str) -> str:
    """Make a logged model the newest version of the target's registered one, under its alias; return the version."""
    assert target.register is not None
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
    """Register the model that a run has logged, as the best of a sweep; return the version."""
    client, experiment = open_store(target, run)
    with reached(target.tracking_uri):
        model = logged_model(client, run, experiment)
        if model is not None:
            return register(client, target, model)
    fix = "Complete its record: ortpipe sync RUN_FOLDER."
    raise TrackingError("A run that is registered has a model.", got=f"run {run}", fix=fix)


def name_best(target: Target, sweep: str, best: str) -> None:
    """Say in a sweep's MLflow run which is the best job's, and register that one's model if it is to be; once."""
    client, _ = open_store(target, sweep)
    with reached(target.tracking_uri):
        if client.get_run(sweep).data.tags.get(BEST) == best:
            return
        if target.register is not None:
            version = register_run(target, best)
            print(f"registered     {target.register} version {version}, as {target.alias}")
        client.set_tag(sweep, BEST, best)
