"""The tutorials that users of the earlier libraries know, as experiments: each reaches what its text says."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import ROOT, ortpipe
from pyarrow import parquet
from sklearn.datasets import make_regression
from sklearn.linear_model import LinearRegression

from ortpipe import load_artifact
from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.split import split

# experiment → the metric to look at, and by how much training may fall short of scikit-learn's own fit
GOALS = {
    "classification": ("accuracy", 0.01),
    "forward_backward": ("r2", 0.001),
    "in_details": ("r2", 1e-6),
    "lbfgs": ("accuracy", 0.0),
    "linear_regression": ("r2", 1e-6),
    "mlp": ("r2", 0.001),
    "nesterov": ("r2", 0.001),
    "weighted_regression": ("r2", 1e-4),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the folder of a tutorial's run, which the tests of this file share."""

    @functools.cache
    def run(name: str) -> Path:
        done = ortpipe("recorder=none", f"experiment=tutorial/{name}", cwd=(where := tmp_path_factory.mktemp(name)))
        assert done.returncode == 0, done.stderr
        [folder] = where.glob("outputs/runs/*/*")
        return folder

    return run


def losses(folder: Path) -> list[float]:
    rows = parquet.read_table(folder / "losses.parquet").to_pylist()
    return [row["value"] for row in rows if row["kind"] == "train"]


def test_every_tutorial_has_a_goal() -> None:
    assert {path.stem for path in (ROOT / "conf" / "experiment" / "tutorial").glob("*.yaml")} == set(GOALS)


@pytest.mark.parametrize("name", GOALS)
def test_every_tutorial_reaches_what_scikit_learn_reaches(name: str, ran: Callable[[str], Path]) -> None:
    metric, slack = GOALS[name]
    values = json.loads((ran(name) / "run.json").read_text())["metrics"][metric]
    assert values["trained"] >= values["source"] - slack
    assert values["trained"] > values["before"]


def test_linear_regression_finds_the_coefficients_and_its_loss_falls_to_rounding(ran: Callable[[str], Path]) -> None:
    """scikit-learn 1.9: make_regression with bias=2 and no noise, split as the experiment splits it."""
    X, y = make_regression(n_samples=100, n_features=2, bias=2.0, random_state=0)
    train = training_rows()
    fitted = LinearRegression().fit(X[train], y[train])
    tensors = load_artifact(ran("linear_regression") / "stages" / "6_evaluate").tensors
    np.testing.assert_allclose(tensors["parameter/coefficient"].ravel(), fitted.coef_, rtol=1e-3)
    np.testing.assert_allclose(tensors["parameter/intercept"], fitted.intercept_, rtol=1e-3)
    curve = losses(ran("linear_regression"))
    assert len(curve) == 200
    assert curve[0] > 5000
    assert curve[-1] < 1e-6


def training_rows() -> np.ndarray:
    """Return the numbers of the rows that a tutorial's split trains on."""
    numbers = np.arange(100.0)
    return split(Rows({"X": numbers[:, None]}, numbers), SplitConfig(test=0.25, seed=0)).train.label.astype(int)


def test_forward_and_backward_give_every_gradient(ran: Callable[[str], Path]) -> None:
    derived = load_artifact(ran("forward_backward") / "stages" / "4_derive")
    assert derived.facts.input_gradients.keys() == {"X"}
    assert {o.name for o in derived.model.graph.output} >= {
        derived.facts.loss,
        derived.facts.prediction,
        *derived.facts.gradients.values(),
        *derived.facts.input_gradients.values(),
    }


def test_weighted_regression_converges_to_the_weighted_fit(ran: Callable[[str], Path]) -> None:
    X, y = make_regression(n_samples=100, n_features=2, bias=2.0, noise=10.0, random_state=0)
    weight = np.random.default_rng(0).uniform(0.5, 1.5, 100)
    train = training_rows()
    weighted = LinearRegression().fit(X[train], y[train], weight[train])
    plain = LinearRegression().fit(X[train], y[train])
    tensors = load_artifact(ran("weighted_regression") / "stages" / "6_evaluate").tensors
    found = [*tensors["parameter/coefficient"].ravel(), *tensors["parameter/intercept"]]
    np.testing.assert_allclose(found, [*weighted.coef_, weighted.intercept_], rtol=1e-4)
    assert np.abs(np.array(found) - [*plain.coef_, plain.intercept_]).max() > 0.1


def test_classification_is_trained_on_raw_scores(ran: Callable[[str], Path]) -> None:
    artifact = load_artifact(ran("classification") / "stages" / "2_add_loss")
    assert artifact.facts.logits is not None
    [sigmoid] = [node for node in artifact.model.graph.node if node.op_type == "Sigmoid"]
    assert artifact.facts.logits in sigmoid.input
    readers = [n for n in artifact.model.graph.node if artifact.facts.logits in n.input and n.op_type != "Sigmoid"]
    assert readers


def test_a_gradient_graph_runs_on_a_gpu_where_there_is_one() -> None:
    """The stages run on the CPU; the graphs are plain ONNX, so that a GPU session takes them."""
    import onnxruntime as ort

    from ortpipe import LOSSES, AddLossConfig, Rows, SplitConfig, add_loss, convert, derive, split

    X, y = make_regression(n_samples=40, n_features=3, random_state=0)
    data = split(Rows({"X": X}, y), SplitConfig(test=0.25))
    model = derive(add_loss(convert(LinearRegression(), data=data), AddLossConfig(LOSSES["l2"]()))).model
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("needs an onnxruntime that is built for GPUs")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
    if "CUDAExecutionProvider" not in session.get_providers():
        pytest.skip("needs a GPU that onnxruntime can reach")
    feeds = {"X": X.astype(np.float32), "label": y.astype(np.float32).reshape(-1, 1)}
    on_cpu = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for one, other in zip(session.run(None, feeds), on_cpu.run(None, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_lbfgs_finds_the_weights_that_scikit_learn_found(ran: Callable[[str], Path]) -> None:
    tensors = load_artifact(ran("lbfgs") / "stages" / "6_evaluate").tensors
    for name in ("coefficient", "intercept"):
        np.testing.assert_allclose(tensors[f"parameter/{name}"], tensors[f"source/{name}"], atol=1e-6)
        assert abs(tensors[f"initial/{name}"] - tensors[f"source/{name}"]).max() > 0.1
