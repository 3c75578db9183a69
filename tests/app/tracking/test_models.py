"""Models that MLflow keeps are read as if their files had been given, whichever way they are named."""

from __future__ import annotations

import contextlib
import importlib.util
import sqlite3
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import schema_once
from sklearn.linear_model import Ridge

import ortpipe
from ortpipe.app.compose import Composition
from ortpipe.app.run.folder import SOURCE, keep_inputs, kept_input
from ortpipe.app.tracking.client import client_at
from ortpipe.app.tracking.models import FetchedModel, with_files, with_versions
from ortpipe.app.tracking.models import model_file as file_of
from ortpipe.errors import ConfigError, ConvertError, TrackingError
from ortpipe.flow import FLOW
from ortpipe.pipeline.digest import identity
from ortpipe.pipeline.plan import Step
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator

X = np.random.default_rng(0).normal(size=(20, 10))
ESTIMATOR = Ridge().fit(X, X[:, 0])
NET = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,1] y) <float[2,1] w = {1, 2}>
    { y = MatMul(X, w) }"""


class Registry(NamedTuple):
    uri: str
    run: str
    ids: dict[str, str]  # of logged models, by name

    @property
    def recorder(self) -> dict[str, str]:
        return {"name": "mlflow", "tracking_uri": self.uri}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Return an MLflow with versions 1 (skops, the champion) and 2 (a pickle) of `ridge`, and version 1 of `net`."""
    import mlflow.onnx
    import mlflow.sklearn
    import mlflow.store.model_registry.sqlalchemy_store

    schema_once.patch()
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = client_at(uri)
    experiment = client.create_experiment("e", artifact_location=(folder / "artifacts").as_uri())
    run, ids = client.create_run(experiment).info.run_id, {}

    def log(name: str, registered: str, save: Any, model: Any, **options: Any) -> None:
        logged = client.create_logged_model(experiment, name=name, source_run_id=run)
        with tempfile.TemporaryDirectory() as scratch:
            save(model, f"{scratch}/model", pip_requirements=[], **options)
            client.log_model_artifacts(logged.model_id, f"{scratch}/model")
        client.finalize_logged_model(logged.model_id, "READY")
        client.create_model_version(registered, logged.artifact_location, run)
        ids[name] = logged.model_id

    for name in ("ridge", "net"):
        client.create_registered_model(name)
    log("safe", "ridge", mlflow.sklearn.save_model, ESTIMATOR, serialization_format="skops")
    log("pickled", "ridge", mlflow.sklearn.save_model, ESTIMATOR, serialization_format="cloudpickle")
    log("net", "net", mlflow.onnx.save_model, onnx.parser.parse_model(NET))
    client.set_registered_model_alias("ridge", "champion", "1")
    return Registry(uri, run, ids)


def _read(registry: Registry, path: str, name: str = "sklearn") -> Path:
    node = {"source": {"name": name, "path": path}, "dtype": "float32"}
    return Path(with_files("convert", node, registry.recorder)["source"]["path"])


@pytest.mark.parametrize(
    ("path", "exact", "file"),
    [
        ("models:/ridge@champion", "models:/ridge/1", "model.skops"),
        ("models:/ridge/1", "models:/ridge/1", "model.skops"),
        ("models:/ridge/latest", "models:/ridge/2", "model.pkl"),
        ("models:/ID", "models:/ID", "model.skops"),
        ("runs:/RUN/safe", "runs:/RUN/safe", "model.skops"),
    ],
)
def test_each_name_of_a_model_is_that_of_its_file(registry: Registry, path: str, exact: str, file: str) -> None:
    path, exact = (one.replace("ID", registry.ids["safe"]).replace("RUN", registry.run) for one in (path, exact))
    found = _read(registry, path)
    assert found.name == file
    if file == "model.skops":
        import skops.io

        np.testing.assert_array_equal(skops.io.load(found).coef_, ESTIMATOR.coef_)
        assert (
            identity(SklearnEstimator(path=str(found)))["files"]
            == identity(SklearnEstimator(path=str(_read(registry, "models:/ridge/1"))))["files"]
        )
    config = {"convert": {"source": {"path": path}}, "recorder": registry.recorder, "name": path}
    assert with_versions(config) == {**config, "convert": {"source": {"path": exact}}}


def test_an_onnx_model_is_read_wherever_a_config_names_one(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    assert onnx.load(_read(registry, "models:/net/1", "onnx")).graph.initializer[0].name == "w"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.uri)
    node = with_files("add_loss", {"loss": {"name": "onnx", "path": "models:/net/1"}}, {"name": "none"})
    assert Path(node["loss"]["path"]).name == "model.onnx"
    read = with_files("data", {n: {"path": "models:/net/1"} for n in ("source", "teacher")}, {"name": "none"})
    assert (read["source"]["path"], Path(read["teacher"]["path"]).name) == ("models:/net/1", "model.onnx")


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("models:/rigde@champion", "sklearn", r"(?s)rigde.*Did you mean 'ridge'"),
        ("models:/ridge@best", "sklearn", r"(?s)alias best.*@champion \(version 1\), version 1, version 2"),
        ("models:/ridge/7", "sklearn", r"(?s)version=7.*version 1, version 2"),
        ("models:/m-nothing", "sklearn", "m-nothing"),
        ("runs:/0123/model", "sklearn", "Run with id=0123"),
        ("models:/net/1", "sklearn", r"(?s)reads models of MLflow's flavour sklearn.*of flavours onnx.*convert=onnx"),
        ("models:/ridge/1", "mlp", r"(?s)convert=mlp cannot read models from MLflow.*convert=sklearn"),
    ],
)
def test_what_is_not_there_or_of_another_kind_is_said(registry: Registry, path: str, name: str, message: str) -> None:
    with pytest.raises((TrackingError, ConvertError), match=message):
        _read(registry, path, name)


@pytest.mark.parametrize(
    ("recorder", "message"),
    [
        ({"name": "none"}, "Set MLFLOW_TRACKING_URI"),
        ({"tracking_uri": "sqlite:////nowhere/mlflow.db"}, "no database"),
        ({"tracking_uri": "http://127.0.0.1:9"}, "must be reachable"),
    ],
)
def test_a_place_that_does_not_answer_is_said(recorder: dict[str, str], message: str) -> None:
    with pytest.raises(TrackingError, match=message):
        with_files("convert", {"source": {"name": "onnx", "path": "models:/net/1"}}, recorder)


class Theirs:
    pass


def test_of_mlmodel_neither_its_trusted_types_nor_paths_outside_are_believed(tmp_path: Path) -> None:
    estimator = Ridge().fit(X, X[:, 0])
    estimator.theirs_ = Theirs()
    import skops.io

    skops.io.dump(estimator, tmp_path / "model.skops")
    theirs = f"pickled_model: model.skops, skops_trusted_types: [{Theirs.__module__}.Theirs]"
    (tmp_path / "MLmodel").write_text(f"flavors: {{sklearn: {{{theirs}}}, onnx: {{data: {__file__}}}}}")
    model = FetchedModel(tmp_path, "models:/m/1")
    with pytest.raises(ConvertError, match=r"(?s)only types that skops trusts.*Theirs"):
        SklearnEstimator(path=str(file_of(model, "sklearn")))(None, "float32")
    with pytest.raises(ConvertError, match="must hold its file"):
        file_of(model, "onnx")
    (tmp_path / "MLmodel").write_text("flavors: {pytorch: {model_data: data}}")
    with pytest.raises(ConvertError, match=r"(?s)no model\.pt2 in data.*serialization_format='pt2'"):
        file_of(model, "torch")


def test_a_run_reads_keeps_and_converts_it_as_its_file(registry: Registry, tmp_path: Path) -> None:
    common = ["~experiment", "data=diabetes", "add_loss=l2", "convert=sklearn", f"recorder.tracking_uri={registry.uri}"]
    config = Composition([*common, "convert.source.path=models:/ridge@champion"]).config
    artifact = FLOW[0](None, config.convert, data=None)
    np.testing.assert_allclose(artifact.initializers["coefficient"].ravel(), ESTIMATOR.coef_, rtol=1e-6)
    keep_inputs((Step(FLOW[0], config.convert),), tmp_path)
    copy = kept_input(SOURCE, "models:/ridge/1", tmp_path)
    assert copy == str(tmp_path / "inputs" / "model.skops")
    config = Composition([*common, "convert.source.path=models:/ridge/2"]).config
    with pytest.raises(ConvertError, match="runs code when it is opened"):
        FLOW[0](None, config.convert, data=None)
    with pytest.raises(
        ConfigError, match=r"(?s)models:/ridge/9.*set: convert\.source\.path=models:/ridge/9 on the comm"
    ):
        Composition([*common, "convert.source.path=models:/ridge/9"]).config  # noqa: B018


def test_the_next_run_of_a_process_reads_the_version_that_has_the_alias_now(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client = client_at(registry.uri)
    client.create_registered_model("moved")
    for version, file in {"1": "model.skops", "2": "model.pkl"}.items():
        client.create_model_version("moved", client.get_model_version("ridge", version).source, registry.run)
        client.set_registered_model_alias("moved", "champion", version)
        run = ortpipe.run(
            *("~experiment", "data=diabetes", "convert=sklearn", "convert.source.trust=true", "add_loss=l2"),
            *("convert.source.path=models:/moved@champion", "figures=false", f"hydra.run.dir={version}"),
            f"recorder.tracking_uri={registry.uri}",
        )
        assert run.config["convert"]["source"]["path"] == f"models:/moved/{version}"
        assert [path.name for path in (run.folder / "inputs").iterdir()] == [file]


def test_a_version_on_s3_without_its_package_names_the_package(registry: Registry) -> None:
    if importlib.util.find_spec("boto3"):
        pytest.skip("boto3 is installed")
    client = client_at(registry.uri)
    client.create_registered_model("far")
    client.create_model_version("far", "s3://bucket/model")
    with pytest.raises(TrackingError, match=r"(?s)s3://bucket/model, and no boto3.*pip install boto3"):
        _read(registry, "models:/far/1")


def test_versions_that_lead_to_themselves_are_told(registry: Registry) -> None:
    client = client_at(registry.uri)
    for name in ("loop", "pool"):
        client.create_registered_model(name)
        client.create_model_version(name, "s3://bucket/model")
    with contextlib.closing(sqlite3.connect(registry.uri.removeprefix("sqlite:///"))) as database, database:
        for name, other in {"loop": "pool", "pool": "loop"}.items():
            source = "UPDATE model_versions SET source = ?, storage_location = ? WHERE name = ?"
            database.execute(source, (f"models:/{other}/1", f"models:/{other}/1", name))
    with pytest.raises(TrackingError, match="A registered version must lead to a model"):
        _read(registry, "models:/loop/1")
