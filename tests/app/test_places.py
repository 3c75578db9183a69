"""Relative paths are below the folder in which a command starts; a URI never becomes a local folder."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

import ortpipe
from ortpipe.app.command_list import command
from ortpipe.app.tracking.client import open_store
from ortpipe.app.tracking.recorders.mlflow import Mlflow
from ortpipe.errors import ConfigError, TrackingError

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
TINY = ("experiment=linear_regression", "train.epochs=1", "recorder=none", "figures=false")


def test_a_uri_as_a_folder_of_results_is_rejected_by_name(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for key, uri in {"paths.outputs": "gs://b/x", "hydra.run.dir": "file:///tmp/x"}.items():
        with pytest.raises(ConfigError, match=f"^{key} must be a path on this machine, not a URI"):
            ortpipe.run(*TINY, f"{key}={uri}")
    with pytest.raises(ConfigError, match=r"^paths.cache must be a path on this machine, or a URL such as s3://"):
        ortpipe.run(*TINY, "paths.cache=dbfs:/x")
    done = cli(*TINY, "hydra.run.dir=s3://bucket/x")
    assert done.returncode == 1
    assert "hydra.run.dir must be a path on this machine, not a URI" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_uri_as_the_folder_of_a_sweep_is_rejected_by_name(cli: Callable[..., Any], tmp_path: Path) -> None:
    done = cli(*TINY, "seed=0,1", "hydra.sweep.dir=s3://bucket/x", "-m")
    assert done.returncode == 1
    assert "hydra.sweep.dir must be a path on this machine" in done.stderr
    assert not list(tmp_path.glob("**/s3:"))


def test_a_uri_as_the_output_of_a_command_is_rejected_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), "m.onnx")
    before = sorted(tmp_path.iterdir())
    given = {
        "gradient": ["m.onnx", "--of", "y", "--wrt", "x", "--output", "s3://bucket/g.onnx"],
        "predict": ["m.onnx", "rows.csv", "--output", "s3://bucket/p.csv"],
        "adapter": ["m.onnx", "--output", "s3://bucket/a.onnx_adapter"],
        "run-stage": ["convert", "--output", "s3://bucket/stage"],
        "restore": ["m.onnx", "--into", "m.onnx", "--output", "s3://bucket/m.onnx"],
        "show": ["m.onnx", "--svg", "s3://bucket/m.svg"],
        "init": ["s3://bucket/project"],
    }
    for name, words in given.items():
        with pytest.raises(ConfigError, match=r"(--output|--svg|DIR) must be a path on this machine, not a URI"):
            command(name)(words)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("sweep", [False, True])
def test_with_chdir_relative_paths_are_below_the_folder_of_the_command(
    cli: Callable[..., Any], tmp_path: Path, sweep: bool
) -> None:
    (tmp_path / "rows.csv").write_text("a,y\n" + "".join(f"{i},{2 * i}\n" for i in range(40)))
    table = ["~experiment", "name=mine", "data=csv", "data.source.path=rows.csv", "data.source.label=y", "add_loss=l2"]
    table += ["convert.source.estimator=sklearn.linear_model.LinearRegression", "train.epochs=1", "figures=false"]
    places = [
        "recorder=mlflow",
        "recorder.tracking_uri=sqlite:///runs.db",
        "recorder.artifacts=art",
        "paths.cache=kept",
    ]
    folders = ["hydra.sweep.dir=jobs", "seed=0,1", "-m"] if sweep else ["hydra.run.dir=job"]
    done = cli(*table, *places, "hydra.job.chdir=true", *folders)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        *("rows.csv", "runs.db", "art", "kept"),
        *(["jobs"] if sweep else ["job"]),
    }
    assert not list(tmp_path.glob("job*/**/kept")) + list(tmp_path.glob("job*/**/runs.db"))


@pytest.mark.parametrize(("artifacts", "location"), [("s3://bucket/x", "s3://bucket/x"), ("art", "file:///HERE/art")])
def test_a_uri_of_artifacts_is_mlflows_own(
    artifacts: str, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "boto3", types.ModuleType("boto3"))
    monkeypatch.setattr(sys.modules["boto3"], "__spec__", importlib.machinery.ModuleSpec("boto3", None))
    client, experiment = open_store(Mlflow(f"sqlite:///{tmp_path}/mlflow.db", artifacts=artifacts))
    expected = location.replace("/HERE", str(tmp_path))
    assert client.get_experiment(experiment).artifact_location == expected
    assert not (tmp_path / "s3:").exists()


def test_a_place_of_artifacts_without_its_package_is_told_before_any_work(tmp_path: Path) -> None:
    if importlib.util.find_spec("boto3"):
        pytest.skip("boto3 is installed")
    with pytest.raises(TrackingError, match=r"(?s)s3://bucket/x.*pip install boto3"):
        open_store(Mlflow(f"sqlite:///{tmp_path}/mlflow.db", artifacts="s3://bucket/x"))
