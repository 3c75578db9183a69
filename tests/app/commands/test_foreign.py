"""Somebody else's record: it is data, and what it asks for needs the person's own word."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import pytest
import yaml
from command import ortpipe
from omegaconf import OmegaConf

from ortpipe.app.commands.repro import run as repro
from ortpipe.app.commands.show import run as show
from ortpipe.app.commands.sync import run as sync
from ortpipe.app.consent import completed, executes
from ortpipe.app.lookup import download
from ortpipe.errors import ConfigError, OrtpipeError, TrackingError


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = tmp_path_factory.mktemp("world")
    done = ortpipe("experiment=linear_regression", "train.epochs=1", "recorder=none", "hydra.run.dir=run", cwd=world)
    assert done.returncode == 0, done.stderr
    return world / "run"


@pytest.fixture
def folder(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Path(shutil.copytree(ran, tmp_path / "outputs" / "runs" / "day" / "run"))


def edit(folder: Path, **groups: dict[str, Any]) -> None:
    file = folder / "config.yaml"
    values = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**values, **groups}))


class Planted:
    """What runs a command where it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("planted",)


def test_what_a_record_would_run_needs_the_persons_word(folder: Path, tmp_path: Path) -> None:
    source = {"name": "function", "function": "os:mkdir", "params": {"path": "planted"}}
    edit(folder, data={"source": source, "split": {}})
    with pytest.raises(ConfigError, match=r"(?s)only with your consent.*data\.source\.function=os:mkdir.*--trust"):
        repro([str(folder)])
    assert not list(tmp_path.rglob("planted"))
    with pytest.raises(OrtpipeError, match="must return"):  # it ran
        repro([str(folder), "--trust"])
    assert Path("planted").is_dir()  # in the folder where the run stood


def test_a_pickle_of_a_record_is_not_opened_though_the_record_trusts_it(folder: Path) -> None:
    (folder / "inputs").mkdir(exist_ok=True)
    joblib.dump(Planted(), folder / "inputs" / "m.pkl")
    edit(folder, convert={"source": {"name": "sklearn", "path": "m.pkl", "trust": True}})
    with pytest.raises(ConfigError, match=r"(?s)only with your consent.*opening m\.pkl executes its content"):
        repro([str(folder)])
    assert not Path("planted").exists()


def test_a_record_that_executes_nothing_is_made_again_as_ever(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repro([str(folder)])
    assert "reproduced: 6 stages" in capsys.readouterr().out


def test_secrets_are_given_again_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"token": "***", "url": "a://b:***@c", "home": "Bearer ${oc.env:MINE}", "size": "${oc.decode:${oc.env:N}}"}
    config = {"data": {"source": {"params": params}}, "recorder": {"tracking_uri": "http://me:***@x"}, "seed": 0}
    base = "data.source.params"
    assert executes(config, None) == [
        f"{base}.home is read from the environment: MINE",
        f"{base}.size is read from the environment: N",
    ]
    with pytest.raises(ConfigError, match=rf"(?s)holds no secrets.*Add {base}\.token=…"):
        completed(config, {})
    given = {f"{base}.token": "a token", f"{base}.url": "a://b:word@c"}
    with pytest.raises(ConfigError, match="Set MINE"):
        completed(config, given)
    monkeypatch.setenv("MINE", "my own value")
    monkeypatch.setenv("N", "12")
    found = completed(config, given)["data"]["source"]["params"]
    assert found == {"token": "a token", "url": "a://b:word@c", "home": "Bearer my own value", "size": 12}
    with pytest.raises(ConfigError, match=r"with its own config"):
        completed(config, {**given, "seed": 1})


def test_a_name_with_dots_covers_nothing_that_a_record_asks_for() -> None:
    params = {"a": {"trust": True, "b": "${oc.env:MINE}"}, "a.trust": False, "a.b": 1}
    assert executes({"data": {"source": {"params": params}}}, None) == [
        "data.source.params.a.trust=True: opening the file executes its content",
        "data.source.params.a.b is read from the environment: MINE",
    ]
    with pytest.raises(ConfigError, match="Set MINE"):
        completed({"data": {"source": {"params": params}}}, {})


@pytest.mark.parametrize("text", ["1e-3", "010", "1:30", "[1, a]"])
def test_a_variable_is_decoded_as_the_run_decoded_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N", text)
    params = {"size": "${oc.decode:${oc.env:N}}"}
    config = {"data": {"source": {"params": params}}}
    expected = OmegaConf.to_container(OmegaConf.create(params), resolve=True)
    assert completed(config, {})["data"]["source"]["params"] == expected


def test_sync_resolves_nothing_and_asks_before_it_sends_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "x")
    own = {"name": "mlflow", "experiment": "e", "artifacts": str(tmp_path / "outputs" / "mlflow"), "alias": "champion"}
    for uri in ("http://127.0.0.1:9/${oc.env:MY_SECRET}", "http://me:***@127.0.0.1:9"):
        edit(folder, recorder={**own, "tracking_uri": uri})
        for arguments in ([str(folder)], [str(folder), "--trust"]):
            with pytest.raises(ConfigError, match="hold no passwords"):
                sync(arguments)
    for uri in ("http://127.0.0.1:9", f"sqlite:///{tmp_path.parent}/elsewhere.db"):
        edit(folder, recorder={**own, "tracking_uri": uri})
        with pytest.raises(ConfigError, match=r"(?s)folder alone does not decide.*--trust"):
            sync([str(folder)])
    edit(folder, recorder={**own, "tracking_uri": "http://127.0.0.1:9"})
    for arguments in ([str(folder), "--trust"], [str(folder), "recorder.tracking_uri=http://127.0.0.1:9"]):
        with pytest.raises(TrackingError, match="must be reachable"):
            sync(arguments)
    edit(folder, recorder={**own, "tracking_uri": f"sqlite:///{tmp_path}/outputs/mlflow.db", "register": "best"})
    with pytest.raises(ConfigError, match="does not decide which registered model"):
        sync([str(folder)])
    edit(folder, recorder={**own, "tracking_uri": f"sqlite:///{tmp_path}/outputs/mlflow.db", "artifacts": "s3://a/b"})
    with pytest.raises(ConfigError, match=r"(?s)does not decide where its artifacts.*recorder\.artifacts=s3://a/b"):
        sync([str(folder)])
    with pytest.raises(ConfigError, match="artifacts are written"):
        sync([str(folder), "recorder.tracking_uri=null"])
    assert not (tmp_path / "outputs" / "mlflow.db").exists()


def test_the_artifacts_of_a_copied_run_without_mlflow_go_to_the_folder_of_the_current_config(
    folder: Path, tmp_path: Path
) -> None:
    edit(folder, recorder={"name": "none"}, paths={"outputs": "/elsewhere/outputs"})
    sync([str(folder), f"recorder.tracking_uri=sqlite:///{tmp_path}/mlflow.db"])
    assert list((tmp_path / "outputs" / "mlflow").iterdir())


def test_sync_follows_no_links(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = tmp_path / "private"
    outside.mkdir()
    (outside / "key").write_text("private")
    (folder / "leak").symlink_to(outside)
    (folder / "figures" / "leak.png").symlink_to(outside / "key")
    os.mkfifo(folder / "figures" / "pipe")
    os.link(folder / "model.onnx", folder / "figures" / "linked.onnx")  # as the store's files are
    edit(folder, paths={"outputs": str(tmp_path / "outputs"), "cache": None})
    sync([str(folder)])
    assert f"recording in sqlite:///{tmp_path}/outputs/mlflow.db" in capsys.readouterr().out
    sent = {path.name for path in (tmp_path / "outputs" / "mlflow").rglob("*")}
    assert {"linked.onnx", "run.json", "model.onnx"} <= sent
    assert not {"leak", "key", "leak.png", "pipe"} & sent


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))


@pytest.mark.parametrize("command", [repro, sync, show])
def test_a_config_of_aliases_is_not_unfolded(command: Callable[[list[str]], None], folder: Path) -> None:
    config = folder / "config.yaml"
    config.write_text(config.read_text() + BOMB)
    with pytest.raises(ConfigError, match="it has more than 100,000 values"):
        command([str(folder)])


@pytest.mark.parametrize(
    "text", ["[1]", "[" * 100_000, '"x"', "null", '{"stages": [{}], "format": 3, "folder": 5, "convert": 1}']
)
@pytest.mark.parametrize("name", ["environment.json", "run.json", "config.yaml"])
def test_a_record_of_another_shape_is_refused(name: str, text: str, folder: Path) -> None:
    edit(folder, paths={"outputs": str(folder.parents[2]), "cache": None})
    (folder / name).write_text(text)
    commands = {"run.json": [sync, repro], "config.yaml": [repro, sync, show]}.get(name, [repro])
    for command in commands:
        with pytest.raises(OrtpipeError, match=r"must not be modified or damaged|must have a readable"):
            command([str(folder)])


def test_a_record_names_no_stage_elsewhere_and_a_damaged_ledger_is_begun_again(folder: Path, tmp_path: Path) -> None:
    edit(folder, paths={"outputs": str(tmp_path / "outputs"), "cache": None})
    (folder / "mlflow.json").write_text("[1]")
    sync([str(folder)])
    assert json.loads((folder / "mlflow.json").read_text())["done"]
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "stages": [{**run["stages"][0], "name": "../../../private"}]}))
    with pytest.raises(TrackingError, match="must be the name of a stage"):
        sync([str(folder)])


@pytest.mark.parametrize(
    "name", ["stages/../../planted", "/planted", "stages/a/b", "stages/..", "other/x", "stages/a:b"]
)
def test_a_server_names_no_place_outside(name: str, tmp_path: Path) -> None:
    class Client:
        def list_artifacts(self, _: str, path: str | None) -> list[Any]:
            entry = SimpleNamespace(path="stages" if path is None else name, is_dir=path is None, file_size=1)
            return [entry]

        def download_artifacts(self, *arguments: str) -> None:
            raise AssertionError(arguments)

    with pytest.raises(TrackingError, match="must lie in its run"):
        download(Client(), "0" * 32, "stages", tmp_path)  # type: ignore[arg-type]
