"""Log a run's trained model as an MLflow model that predicts, and register it."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ortpipe import Facts, runtime
from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking.client import NOTE, PARENT, made_once, open_store, or_none, reached
from ortpipe.app.tracking.models import holder_of, move_alias
from ortpipe.app.tracking.target import Target
from ortpipe.data import FORMS, TextReading
from ortpipe.errors import ModelError, TrackingError
from ortpipe.facts_json import read_facts, read_metadata
from ortpipe.graph import Weights, is_large, put_together, written_beside
from ortpipe.metrics.columns import as_columns
from ortpipe.runtime import Session

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.models import Model
    from mlflow.types import Schema

NAME = "model"
DATA = "model.onnx.data"  # weights above 2 GB, next to MLflow's model.onnx
RAW_ROWS = "ortpipe_raw_rows"  # the module in a logged model that reads raw rows
VERSIONS = "mlflow.modelVersions"  # the tag of a logged model by which MLflow links to its versions
MODEL_ID = "ortpipe.model_id"  # the tag of a version with its logged model: MLflow's databases have no column for it
BEST = "ortpipe.best"  # the tag of a sweep with the run id of its best job


def log_model(
    client: MlflowClient,
    run: str,
    experiment: str,
    model: onnx.ModelProto,
    weights: Weights,  # the values of initializers that have none in `model`
    sizes: Mapping[str, Sequence[int]] | None = None,  # of each input's rows: the model may leave them open
    table: Mapping[str, Any] | None = None,  # facts about the raw columns that the model reads, and a made-up row
    example: Mapping[str, np.ndarray] | None = None,  # real rows, if there are any
    params: Mapping[str, str] = MappingProxyType({}),  # that determine the model
) -> str:
    """Log a model as the run's; return the logged model's id.

    MLflow's own `log_model` uses the process's current run and server; these are its steps for any run and client.
    """
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    creation = {"name": NAME, "source_run_id": run, "model_type": "onnx", "params": dict(params)}
    logged = client.create_logged_model(experiment, **creation)
    ids = {"model_uuid": logged.model_id, "model_id": logged.model_id, "run_id": run}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, NAME)
        mlflow_model = Model(artifact_path=logged.artifact_location, **ids)
        save(model, folder, mlflow_model, sizes or {}, table or {}, example, weights)
        client.log_model_artifacts(logged.model_id, str(folder))
    client.log_outputs(run, [LoggedModelOutput(logged.model_id, step=0)])
    client.finalize_logged_model(logged.model_id, "READY")
    return logged.model_id


def save(
    model: onnx.ModelProto,
    folder: Path,
    mlflow_model: Model,
    sizes: Mapping[str, Sequence[int]],
    table: Mapping[str, Any],
    rows: Mapping[str, np.ndarray] | None = None,
    weights: Weights = MappingProxyType({}),
) -> None:
    """Save a model as an MLflow model; one that reads a table's raw columns maps data frames to data frames.

    MLflow's own loader of ONNX models supports neither missing text in a data frame nor outputs of several columns.
    """
    import mlflow.onnx
    from mlflow.models import ModelSignature

    is_external = is_large(model)  # external weights are saved directly; MLflow would copy others several times
    onnx_model = written_beside(model, weights, folder.with_name(DATA)) if is_external else put_together(model, weights)
    columns = table.get("columns", {})
    raw = {value.name for value in model.graph.input} == set(columns) and _is_of_rows(model)
    if raw:
        signature = ModelSignature(raw_schema(model, columns), predicted_schema(model))
        example = _frame(model, table)
        forms = {name: {"form": FORMS.get(column["of"] or column["kind"])} for name, column in columns.items()}
        mlflow_model.metadata = {"columns": {name: {**column, **forms[name]} for name, column in columns.items()}}
        requirements, code = [_requirement("pandas")], [str(folder.with_name(f"{RAW_ROWS}.py"))]
        shutil.copyfile(Path(runtime.__path__[0], "raw_rows.py"), code[0])
    else:
        signature = ModelSignature(schema(model.graph.input), schema(model.graph.output))
        example, requirements, code = example_of(model, sizes, rows or {}, weights), [], None
    pinned = [_requirement("onnx"), _requirement("onnxruntime", "onnxruntime-training")]
    mlflow.onnx.save_model(
        onnx_model,
        str(folder),
        mlflow_model=mlflow_model,
        signature=signature,
        input_example=example,
        code_paths=code,
        pip_requirements=[*pinned, *requirements, _requirement("numpy")],
        onnx_execution_providers=["CPUExecutionProvider"],
    )
    if is_external:
        shutil.move(folder.with_name(DATA), folder)
    if raw:
        mlflow_model.flavors["python_function"]["loader_module"] = RAW_ROWS
        mlflow_model.save(str(folder / "MLmodel"))


@functools.cache  # for the jobs of a sweep
def _requirement(name: str, *substitutes: str) -> str:
    """Return the requirement of the installed version of a package, or of an installed substitute."""
    for distribution in (name, *substitutes):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"{name}=={metadata.version(distribution).partition('+')[0]}"
    return name


def schema(values: Sequence[onnx.ValueInfoProto]) -> Schema:
    """Return the MLflow schema of a model's inputs or outputs; −1, also for the number of rows, is any size."""
    from mlflow.types import Schema, TensorSpec

    specs = []
    for value in values:
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        specs.append(TensorSpec(dtype, (-1, *shape[1:]), value.name))
    return Schema(specs)


def raw_schema(model: onnx.ModelProto, columns: Mapping[str, Mapping[str, Any]]) -> Schema:
    """Return the schema of a table's columns that a model reads.

    Every number is a double, unless its column was text in training, such as $1,234: MLflow casts 5.9 to 5 for a column
    of whole numbers (long). Truth values are text: MLflow casts a null to False for a column of booleans.
    """
    is_number = {
        value.name: columns[value.name]["kind"] == "number" and "written" not in columns[value.name]
        for value in model.graph.input
    }
    return _columns({name: "double" if number else "string" for name, number in is_number.items()})


def predicted_schema(model: onnx.ModelProto) -> Schema | None:
    """Return the schema of the MLflow model's output columns; None if the graph leaves their number open."""
    columns: dict[str, np.ndarray] = {}
    shapes = {value.name: value.type.tensor_type.shape.dim for value in model.graph.output}
    for head, facts in _facts(model).predictions.items():
        widths = [size.dim_value for size in shapes[facts.prediction][1:]]
        if 0 in widths:
            return None
        count = math.prod(widths)
        columns |= as_columns(facts, np.full((1, count), 1 / count), f"{head}_" if head else "")
    kinds = {"f": "double", "i": "long", "U": "string"}
    return _columns({name: kinds[values.dtype.kind] for name, values in columns.items()})


def _columns(types: Mapping[str, str]) -> Schema:
    from mlflow.types import ColSpec, Schema

    return Schema([ColSpec(kind, name) for name, kind in types.items()])


def _is_of_rows(model: onnx.ModelProto) -> bool:
    """Return whether each row has one prediction, not one for each of its elements."""
    return _facts(model).blank is None and all(
        prediction.class_axis is None for prediction in _facts(model).predictions.values()
    )


def _facts(model: onnx.ModelProto) -> Facts:
    return read_facts(read_metadata(model))


def _frame(model: onnx.ModelProto, table: Mapping[str, Any]) -> pd.DataFrame:
    """Return a made-up row of typical training values, with the columns in the model's order."""
    import pandas as pd

    columns = {value.name: table["columns"][value.name] for value in model.graph.input}
    frame = pd.DataFrame({name: [table["row"][name]] for name in columns})
    written = {
        name: TextReading.from_record(column["written"]) for name, column in columns.items() if "written" in column
    }
    for name, reading in written.items():
        frame[name] = frame[name].map(reading.text_of, na_action="ignore").astype(object)
    truth = {"true": True, "false": False}
    of_truth = [name for name, column in columns.items() if column["of"] == "truth" and name not in written]
    frame = frame.replace(dict.fromkeys(of_truth, truth))
    numbers = {name for name, column in columns.items() if column["kind"] == "number" and name not in written}
    return frame.astype({name: float if name in numbers else object for name in columns})


def example_of(
    model: onnx.ModelProto,
    sizes: Mapping[str, Sequence[int]],
    rows: Mapping[str, np.ndarray] = MappingProxyType({}),
    weights: Weights = MappingProxyType({}),
) -> dict[str, np.ndarray] | None:
    """Return the real rows, else two rows of zeros, or None if the model does not run on them."""
    example = dict(rows) if set(rows) == {value.name for value in model.graph.input} else {}
    for value in () if example else model.graph.input:
        tensor = value.type.tensor_type
        shape = sizes.get(value.name) or [d.dim_value or 1 for d in tensor.shape.dim[1:]]
        example[value.name] = np.zeros([2, *shape], onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    rows_text = "its training rows" if rows else "zeros"
    try:
        Session(model, weights=weights).run(example)
    except ModelError as error:
        reason = str(error.got or error).strip().partition("\n")[0]
        print(f"MLflow's model has no input example: it does not run on {rows_text} ({reason[:200]})", file=sys.stderr)
        return None
    return example


def logged_model(client: MlflowClient, run: str, experiment: str) -> str | None:
    """Return the id of a run's logged model, or None; a model that was not completely logged is deleted."""
    for model in client.search_logged_models([experiment], f"source_run_id = '{run}'"):
        if model.status == "READY":
            return str(model.model_id)
        client.delete_logged_model(model.model_id)
    return None


def register(client: MlflowClient, target: Target, model_id: str, record: RunRecord | None = None) -> str:
    """Register a logged model as a version of the target's registered model; return the version and alias in words.

    The version gets the alias, unless the alias is at the version of a run that began later, or no longer at the
    version that the run's `record` compares the model with.
    """
    assert target.register is not None
    model = client.get_logged_model(model_id)
    with made_once():
        client.create_registered_model(target.register)
    versions = client.search_model_versions(f"name = '{target.register}' and run_id = '{model.source_run_id}'")
    if versions:
        version = versions[0]
    else:
        by_server = target.tracking_uri.startswith("http")  # else MLflow would search in the process's own database
        source = f"models:/{model_id}" if by_server else model.artifact_location
        tags = {MODEL_ID: model_id}
        note = client.get_run(model.source_run_id).data.tags.get(NOTE)
        version = client.create_model_version(
            target.register, source, model.source_run_id, tags=tags, description=note, model_id=model_id
        )
        versions = [*json.loads(model.tags.get(VERSIONS, "[]")), {"name": target.register, "version": version.version}]
        client.set_logged_model_tags(model_id, {VERSIONS: json.dumps(versions)})
    version_name = f"{target.register} version {version.version}"
    if (later := _later_version(client, target, model.source_run_id)) is not None:
        return f"{version_name}; {target.alias} stays version {later}, of a run that began later"
    if record is not None and (version_uri := record.champion.get("version", "")) != "":
        compared = None if version_uri is None else version_uri.rpartition("/")[2]
        present = None if (holder := holder_of(client, target)) is None else str(holder.version)
        if present not in (compared, str(version.version)):
            return f"{version_name}; {target.alias} is version {present}, with which it was not compared: run it again"
    move_alias(client, target, str(version.version))
    return f"{version_name}, as {target.alias}"


def _later_version(client: MlflowClient, target: Target, run: str) -> str | None:
    """Return the version with the alias, if its run began later than this one and does not belong to the same sweep."""
    holder = holder_of(client, target)
    if holder is None or holder.run_id in (None, "", run):
        return None
    other_run, this_run = or_none(lambda: client.get_run(holder.run_id)), client.get_run(run)
    if other_run is None:  # it was deleted
        return None
    sweep = this_run.data.tags.get(PARENT)
    same_sweep = sweep is not None and sweep == other_run.data.tags.get(PARENT)
    return str(holder.version) if other_run.info.start_time > this_run.info.start_time and not same_sweep else None


def register_run(target: Target, run: str, record: RunRecord | None = None) -> str:
    """Register the logged model of a run, such as a sweep's best job; return the version in words."""
    client, experiment = open_store(target, run)
    with reached(target.tracking_uri):
        model = logged_model(client, run, experiment)
        if model is not None:
            return register(client, target, model, record)
    fix = "Complete its record: ortpipe sync RUN_FOLDER."
    raise TrackingError("The run must have a logged model to register.", got=f"run {run}: none", fix=fix)


def name_best(target: Target, sweep: str, best: str, record: RunRecord) -> None:
    """Link a sweep's MLflow run to its best job, and register that job's model once if the target is configured so
    and its `record` has passed the gates."""
    client, _ = open_store(target, sweep)
    with reached(target.tracking_uri):
        if client.get_run(sweep).data.tags.get(BEST) == best:
            return
        if target.register is not None and record.passed:
            print(f"registered     {register_run(target, best, record)}")
        best_run = client.get_run(best)
        link = f"Best: [{best_run.info.run_name}](#/experiments/{best_run.info.experiment_id}/runs/{best})"
        picture = f"![what varies](get-artifact?path=summary.png&run_uuid={sweep})"
        note_parts = [link, client.get_run(sweep).data.tags.get(NOTE), picture]
        client.set_tag(sweep, NOTE, "\n\n".join(filter(None, note_parts)))
        client.set_tag(sweep, BEST, best)
