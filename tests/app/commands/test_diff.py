"""ortpipe diff: two models or runs, by file, folder and run id."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import ortpipe

from ortpipe.artifact_folder import load_artifact
from ortpipe.errors import ConfigError


@pytest.fixture(scope="module")
def other(linear: Path) -> Path:
    """Return the folder of a run that differs by its rate and by what is trained."""
    done = ortpipe(
        "experiment=linear_regression",
        "train.epochs=2",
        f"paths.outputs={linear.parent}",
        "recorder=none",
        "hydra.run.dir=other",
        "train.optimizer.lr=0.004",
        "derive.frozen=[intercept]",
        cwd=linear.parent,
    )
    assert done.returncode == 0, done.stderr
    return linear.parent / "other"


def test_two_runs_differ_by_config_graph_tensors_and_metrics(
    call: Callable[..., str], linear: Path, other: Path
) -> None:
    said = json.loads(call("diff", str(linear), str(other), "--json"))
    assert said["equal"] is False
    assert said["config"]["train.optimizer.lr"] == {"a": 0.002, "b": 0.004}
    assert said["config"]["recorder.name"] == {"a": "mlflow", "b": "none"}
    assert said["graph"] == {}  # the same inference graph with other weights
    a, b = (load_artifact(run / "stages" / "6_evaluate") for run in (linear, other))
    name = "parameter/coefficient"
    assert said["tensors"][name]["largest"] == np.abs(a.tensors[name] - b.tensors[name]).max()
    pair = {"a": a.facts.metrics["r2"]["trained"], "b": b.facts.metrics["r2"]["trained"]}
    assert said["metrics"]["r2.trained"] == pair


def test_the_text_says_the_same(call: Callable[..., str], linear: Path, other: Path) -> None:
    text = call("diff", str(linear), str(other))
    assert text.startswith(f"a  {linear} (6_evaluate)\nb  {other} (6_evaluate)\nconfig:\n")
    assert "  train.optimizer.lr  0.002 → 0.004\n" in text
    assert "\ngraph: equal\n" in text
    assert "  parameter/intercept  only in a: float32[1], norm " in text


def test_stages_are_compared_on_request(call: Callable[..., str], linear: Path, other: Path) -> None:
    graph = json.loads(call("diff", str(linear), str(other), "--stage", "derive", "--json"))["graph"]
    assert graph["outputs"] == {"intercept_grad": {"a": "float[1]"}}
    assert [line[0] for line in graph["nodes"]] == ["-", "-"]


def test_a_run_is_equal_to_its_record(call: Callable[..., str], linear: Path, tracked: str) -> None:
    text = call("diff", str(linear), tracked, f"paths.outputs={linear.parent}", "--exit-code")
    assert text.splitlines()[2:] == [
        "config: equal",
        "facts: equal",
        "graph: equal",
        "tensors: equal",
        "metrics: equal",
    ]


def test_the_exit_code_tells_on_request(call: Callable[..., str], linear: Path) -> None:
    models = [str(linear / "stages" / stage / "model.onnx") for stage in ("1_convert", "5_train")]
    call("diff", *models)
    with pytest.raises(SystemExit) as ended:
        call("diff", *models, "--exit-code")
    assert ended.value.code == 2
    assert '"equal": true' in call("diff", models[0], models[0], "--exit-code", "--json")


def test_a_name_that_stands_for_nothing_is_refused(call: Callable[..., str], linear: Path) -> None:
    with pytest.raises(ConfigError, match=r"got: away\.onnx"):
        call("diff", str(linear), "away.onnx")
    with pytest.raises(ConfigError, match="needs B"):
        call("diff", str(linear))
