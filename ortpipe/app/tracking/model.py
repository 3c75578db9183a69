"""A run's trained model as an MLflow model that predicts, and its place in the model registry."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ortpipe import runtime
from ortpipe.app.tracking.client import NOTE, PARENT, made_once, open_store, reached
from ortpipe.app.tracking.target import Target
from ortpipe.artifact import Facts
from ortpipe.errors import ModelError, TrackingError
from ortpipe.facts import read_metadata
from ortpipe.graph.apart import Weights, put_together, written_beside
from ortpipe.graph.sound import is_large
from ortpipe.metrics.predictions import as_columns
from ortpipe.runtime.session import Session

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.models import Model
    from mlflow.types import Schema

NAME = "model"
DATA = "model.onnx.data"  # beside MLflow's model.onnx, of weights above 2 GB
RAW_ROWS = "ortpipe_raw_rows"  # the module in a logged model that reads rows as people have them
VERSIONS = "mlflow.modelVersions"  # the tag of a logged model by which MLflow links to its versions
MODEL_ID = "ortpipe.model_id"  # the tag of a version: MLflow's own databases have no column for it
BEST = "ortpipe.best"  # the tag of a sweep with the run of its best job


def log_model(
    client: MlflowClient,
    run: str,
    experiment: str,
    model: onnx.ModelProto,
    weights: Weights,  # the values of initializers that have none in `model`
    sizes: Mapping[str, Sequence[int]] | None = None,  # of real rows of each input: the model may not know them
    table: Mapping[str, Any]
    | None = None,  # of one that reads columns as they stand: what they hold, and a made-up row
    example: Mapping[str, np.ndarray] | None = None,  # real rows, where there are any
    params: Mapping[str, str] = MappingProxyType({}),  # what it was made with
) -> str:
    """Log a model as the run's; return the logged model's id.

    MLflow's own `log_model` works on the process's current run and server; this is it, step by step, on a given one.
    """
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    made_with = {"name": NAME, "source_run_id": run, "model_type": "onnx", "params": dict(params)}
    logged = client.create_logged_model(experiment, **made_with)
    ids = {"model_uuid": logged.model_id, "model_id": logged.model_id, "run_id": run}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, NAME)
        described = Model(artifact_path=logged.artifact_location, **ids)
        save(model, folder, described, sizes or {}, table or {}, example, weights)
        client.log_model_artifacts(logged.model_id, str(folder))
    client.log_outputs(run, [LoggedModelOutput(logged.model_id, step=0)])
    client.finalize_logged_model(logged.model_id, "READY")
    return logged.model_id


def save(
    model: onnx.ModelProto,
    folder: Path,
    described: Model,
    sizes: Mapping[str, Sequence[int]],
    table: Mapping[str, Any],
    rows: Mapping[str, np.ndarray] | None = None,
    weights: Weights = MappingProxyType({}),
) -> None:
    """Save a model as MLflow's; one of a table's columns as they stand takes and gives frames, as people have them.

    MLflow's own way from a frame to an ONNX model knows no missing text, and gives no output of several columns.
    """
    import mlflow.onnx
    from mlflow.models import ModelSignature

    beside = is_large(model)  # MLflow saves what points to a file as it stands, and would copy weights several times
    held = written_beside(model, weights, folder.with_name(DATA)) if beside else put_together(model, weights)
    columns = table.get("columns", {})
    raw = {value.name for value in model.graph.input} == set(columns) and _is_of_rows(model)
    if raw:
        signature = ModelSignature(raw_schema(model, columns), predicted_schema(model))
        example = _frame(model, table)
        described.metadata = {"columns": columns}
        needed, code = [_pinned("pandas")], [str(folder.with_name(f"{RAW_ROWS}.py"))]
        shutil.copyfile(Path(runtime.__path__[0], "raw_rows.py"), code[0])
    else:
        signature = ModelSignature(schema(model.graph.input), schema(model.graph.output))
        example, needed, code = example_of(model, sizes, rows or {}, weights), [], None
    with _unchecked():
        mlflow.onnx.save_model(
            held,
            str(folder),
            mlflow_model=described,
            signature=signature,
            input_example=example,
            code_paths=code,
            pip_requirements=[
                _pinned("onnx"),
                _pinned("onnxruntime", "onnxruntime-training"),
                *needed,
                _pinned("numpy"),
            ],
            onnx_execution_providers=["CPUExecutionProvider"],
        )
    if beside:
        shutil.move(folder.with_name(DATA), folder)
    if raw:
        described.flavors["python_function"]["loader_module"] = RAW_ROWS
        described.save(str(folder / "MLmodel"))


@contextlib.contextmanager
def _unchecked() -> Iterator[None]:
    """Keep MLflow from looking whether requirements are installed: they are pinned to what is.

    It would read the files of every installed package for that, half a second in every process.
    """
    from mlflow.utils import environment

    name = "warn_dependency_requirement_mismatches"
    check = getattr(environment, name, None)
    if check is None:  # another MLflow, which is left alone
        yield
        return
    setattr(environment, name, lambda requirements: None)
    try:
        yield
    finally:
        setattr(environment, name, check)


def _pinned(name: str, *others: str) -> str:
    """Return the requirement of the package's version here, or of the one that stands in for it here."""
    for distribution in (name, *others):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"{name}=={metadata.version(distribution).partition('+')[0]}"
    return name


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


def raw_schema(model: onnx.ModelProto, columns: Mapping[str, Mapping[str, Any]]) -> Schema:
    """Return the columns of a table that a model reads, with the types that pandas reads them as."""
    return _columns({value.name: _types(columns[value.name])[0] for value in model.graph.input})


def predicted_schema(model: onnx.ModelProto) -> Schema | None:
    """Return the columns that MLflow's model answers; None where the graph does not know how many there are."""
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
    """Return whether each row has one prediction, and not one of each of its elements."""
    return _facts(model).blank is None and all(own.class_axis is None for own in _facts(model).predictions.values())


def _facts(model: onnx.ModelProto) -> Facts:
    return Facts.from_json(read_metadata(model))


def _types(column: Mapping[str, Any]) -> tuple[str, str]:
    """Return a column's type in MLflow and in pandas; truth values are text, else MLflow makes a null in JSON False."""
    if column["kind"] != "number":
        return ("string", "object")
    whole = column["of"] == "integer" and not column["missing"]
    return ("long", "int64") if whole else ("double", "float64")


def _frame(model: onnx.ModelProto, table: Mapping[str, Any]) -> pd.DataFrame:
    """Return a row made up of the training rows, with the columns in the model's order."""
    import pandas as pd

    columns = {value.name: table["columns"][value.name] for value in model.graph.input}
    frame = pd.DataFrame({name: [table["row"][name]] for name in columns})
    frame = frame.replace({name: {"true": True, "false": False} for name in columns if columns[name]["of"] == "truth"})
    return frame.astype({name: _types(own)[1] for name, own in columns.items()})


def example_of(
    model: onnx.ModelProto,
    sizes: Mapping[str, Sequence[int]],
    rows: Mapping[str, np.ndarray] = MappingProxyType({}),
    weights: Weights = MappingProxyType({}),
) -> dict[str, np.ndarray] | None:
    """Return real rows, else two of zeros of their size, or None where the model predicts nothing from them."""
    example = dict(rows) if set(rows) == {value.name for value in model.graph.input} else {}
    for value in () if example else model.graph.input:
        tensor = value.type.tensor_type
        shape = sizes.get(value.name) or [d.dim_value or 1 for d in tensor.shape.dim[1:]]
        example[value.name] = np.zeros([2, *shape], onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    what = "its training rows" if rows else "zeros"
    try:
        Session(model, weights=weights).run(example)
    except ModelError as error:
        reason = str(error.got or error).strip().partition("\n")[0]
        print(f"MLflow's model has no input example: it does not run on {what} ({reason[:200]})", file=sys.stderr)
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
    """Make a logged model a version of the target's registered one; return which, and what became of the alias.

    The alias goes to it, but not from the model of a run that began later: what is recorded late is not the newest.
    """
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
        tags = {MODEL_ID: model_id}
        note = client.get_run(model.source_run_id).data.tags.get(NOTE)
        version = client.create_model_version(
            target.register, source, model.source_run_id, tags=tags, description=note, model_id=model_id
        )
        versions = [*json.loads(model.tags.get(VERSIONS, "[]")), {"name": target.register, "version": version.version}]
        client.set_logged_model_tags(model_id, {VERSIONS: json.dumps(versions)})
    named, later = f"{target.register} version {version.version}", _later(client, target, model.source_run_id)
    if later is not None:
        return f"{named}; {target.alias} stays version {later}, of a run that began later"
    client.set_registered_model_alias(target.register, target.alias, version.version)
    return f"{named}, as {target.alias}"


def _later(client: MlflowClient, target: Target, run: str) -> str | None:
    """Return the version that has the alias, if it is of a run that began later than this one and in no sweep of it."""
    from mlflow import MlflowException

    assert target.register is not None
    holder = client.get_registered_model(target.register).aliases.get(target.alias)
    if holder is None:
        return None
    other = client.get_model_version(target.register, holder).run_id
    if other in (None, "", run):
        return None
    try:
        then, now = client.get_run(other), client.get_run(run)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # its run was deleted
            raise
        return None
    sweep = now.data.tags.get(PARENT)
    together = sweep is not None and sweep == then.data.tags.get(PARENT)
    return str(holder) if then.info.start_time > now.info.start_time and not together else None


def register_run(target: Target, run: str) -> str:
    """Register the model that a run has logged, as the best of a sweep; return which version it is."""
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
            print(f"registered     {register_run(target, best)}")
        recorded = client.get_run(best)
        link = f"Best: [{recorded.info.run_name}](#/experiments/{recorded.info.experiment_id}/runs/{best})"
        picture = f"![what varies](get-artifact?path=summary.png&run_uuid={sweep})"
        shown = [link, client.get_run(sweep).data.tags.get(NOTE), picture]
        client.set_tag(sweep, NOTE, "\n\n".join(filter(None, shown)))
        client.set_tag(sweep, BEST, best)
