"""A run's record is made of what the run knows: what others do to its folder meanwhile changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from mlflow import MlflowClient
from sklearn.datasets import load_diabetes

from ortpipe.app.run.folder import RunFolder
from ortpipe.app.run.record import COMMAND, RunRecord
from ortpipe.app.tracking.metrics import Results, metrics, stage_tags
from ortpipe.app.tracking.mlflow_run import MlflowRun
from ortpipe.app.tracking.recorders.mlflow import Mlflow
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.split import split
from ortpipe.flow import FLOW
from ortpipe.parallel import ParallelConfig
from ortpipe.pipeline.events import Event, RunFinished
from ortpipe.pipeline.plan import Plan, Step
from ortpipe.pipeline.run import run
from ortpipe.pipeline.store import Store
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.train.config import TrainConfig

PARALLEL = ParallelConfig(slices=2, workers=1)
CONFIGS = (
    ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge")),
    *(AddLossConfig(L2()), PenaltyConfig(), DeriveConfig(), TrainConfig(epochs=2, parallel=PARALLEL), EvaluateConfig()),
)
DATA = {"source": {"name": "diabetes"}, "digest": "0", "rows": {"train": 3}}
PLAN: Plan = tuple(Step(stage, config) for stage, config in zip(FLOW, CONFIGS, strict=True))


def test_a_record_is_what_the_run_knows_whatever_became_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = load_diabetes(return_X_y=True)
    context = {"data": split(Rows({"X": x}, y), SplitConfig()), "runtime": RuntimeConfig(), "start": None}
    store = Store(tmp_path / "cache", {"mlflow": "abc"})
    run(PLAN[:4], context, store=store)

    folder = tmp_path / "run"
    target = Mlflow(f"sqlite:///{tmp_path}/mlflow.db", artifacts=str(tmp_path / "mlflow"))
    record, results = RunRecord(folder, "mine", {COMMAND: "ortpipe"}, data=DATA), Results()
    folder.mkdir()
    recording, checked = target(record, {}), []

    def another_run_writes(event: Event) -> None:
        results(event)
        if not isinstance(event, RunFinished):
            return
        read = Results.read(record)
        assert read.series.keys() == results.series.keys() >= {"losses/step", "losses/train"}
        for name, values in read.series.items():
            np.testing.assert_array_equal(values, results.series[name])
        assert read.model == results.model
        back = RunRecord.read(folder)
        assert (back.metrics, stage_tags(back)) == (record.metrics, stage_tags(record))
        checked.append("what the folder says is what the run knows")
        for name in ("run.json", "model.onnx", "stages/6_evaluate/tensors.safetensors"):
            (folder / name).write_text("another's")

    push, fails = MlflowRun.push, iter([True])

    def away_at_first(self: MlflowRun) -> None:
        if next(fails, False):
            raise OSError("the server is away")
        push(self)

    monkeypatch.setattr(MlflowRun, "push", away_at_first)
    run(PLAN, context, [RunFolder(record, "seed: 1\n", {}), another_run_writes, recording], store)
    assert checked
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2, "\n".join(lines)
    assert "the server is away" in lines[0]
    assert lines[1] == "MLflow has now recorded everything"
    client = MlflowClient(target.tracking_uri)
    recorded = client.get_run(recording.run_id)
    assert recorded.info.status == "FINISHED"
    expected = {point.key: point.value for point in metrics(record, results, None, range(0))}
    assert recorded.data.metrics == pytest.approx(expected)
    assert {"test/r2/trained", "loss/step", "loss/train", "wall_seconds/train"} <= expected.keys()
    assert (expected["parallel/workers"], expected["parallel/slices"]) == (1, 2)
    assert min(expected["parallel/compute_ms"], expected["parallel/exchange_ms"]) > 0
    origins = [recorded.data.tags[f"ortpipe.stage.{stage.name}"] for stage in FLOW]
    assert origins == ["hit from abc"] * 4 + ["computed"] * 2
    [logged] = client.search_logged_models([recorded.info.experiment_id])
    [file] = Path(logged.artifact_location.removeprefix("file://")).rglob("*.onnx")
    assert onnx.load(file) == results.model
