"""A name is a name before it is a glob: of weights `w[0]` and `w0`, `w[0]` means the first alone, in every stage."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

from ortpipe.artifact import Artifact
from ortpipe.compat import OrtGradientForwardBackwardOptimizer, OrtGradientOptimizer, add_loss_output, onnx_derivative
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import DeriveError, PenaltyError, TrainError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.stage import train

TEXT = """g (float[N,2] X) => (float[N,2] y)
 <float[2,2] w_0_ = {0.5, -2, 0.25, 3}, float[2,2] w0 = {1, 2, -1, 0.5}> { h = MatMul(X, w_0_) y = MatMul(h, w0) }"""
X = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)
ROWS = Data(Rows({"X": X}, X[:, ::-1]))


@pytest.fixture(scope="module")
def forward(from_text):
    artifact = from_text(TEXT)
    text = artifact.model.SerializeToString().replace(b"w_0_", b"w[0]")
    return Artifact(onnx.load_from_string(text), dataclasses.replace(artifact.facts, parameters=("w[0]", "w0")))


@pytest.fixture(scope="module")
def loss_model(forward):
    return add_loss(forward, AddLossConfig(LOSSES["l2"]()))


def test_derive_trains_and_freezes_it_alone(loss_model):
    assert derive(loss_model, DeriveConfig(parameters=("w[0]",))).facts.parameters == ("w[0]",)
    assert derive(loss_model, DeriveConfig(frozen=("w[0]",))).facts.parameters == ("w0",)


def test_penalty_charges_it_alone(loss_model, run):
    feeds = {"X": X, "label": X}
    before, after = (
        float(run(model, feeds)["loss"])
        for model in (loss_model.model, penalty(loss_model, PenaltyConfig({"w[0]": {"l1": 1.0}})).model)
    )
    assert after - before == pytest.approx(0.5 + 2 + 0.25 + 3, rel=1e-5)


def test_a_factor_moves_it_alone(loss_model):
    result = train(derive(loss_model), TrainConfig(epochs=1, factors={"*": 0.0, "w[0]": 1.0}), data=ROWS)
    moved = {
        n: not np.array_equal(result.tensors[f"parameter/{n}"], result.tensors[f"initial/{n}"]) for n in ("w[0]", "w0")
    }
    assert moved == {"w[0]": True, "w0": False}


def test_the_name_of_what_is_not_trained_is_no_glob(loss_model, forward):
    only_w0 = Artifact(forward.model, dataclasses.replace(loss_model.facts, parameters=("w0",)))
    with pytest.raises(PenaltyError, match=r"w\[0\]"):
        penalty(Artifact(loss_model.model, only_w0.facts), PenaltyConfig({"w[0]": {"l1": 1.0}}))
    with pytest.raises(TrainError, match=r"factors(.|\n)*w\[0\]"):
        train(derive(loss_model, DeriveConfig(frozen=("w[0]",))), TrainConfig(factors={"w[0]": 0.5}), data=ROWS)


def test_weights_to_train_are_names(forward):
    model = add_loss_output(forward.model)
    fitted = OrtGradientOptimizer(model, ["w[0]"], max_iter=1, learning_rate=1e-3).fit(X, X)
    assert list(fitted.get_state()) == ["w[0]"]
    assert [o.name for o in onnx_derivative(forward.model, weights=["w[0]"], inputs=[]).graph.output] == ["w[0]_grad"]
    fitted = OrtGradientForwardBackwardOptimizer(forward.model, ["w[0]"], max_iter=1, learning_rate=1e-3).fit(X, X)
    assert len(fitted.get_state()) == 1
    for refused in (
        lambda: OrtGradientOptimizer(model, ["w[0-9]"]).fit(X, X),
        lambda: OrtGradientForwardBackwardOptimizer(forward.model, ["w[0-9]"]).fit(X, X),
        lambda: onnx_derivative(forward.model, weights=["w[0-9]"]),
    ):
        with pytest.raises(DeriveError, match=r"exact(.|\n)*w\[0-9\]"):
            refused()
