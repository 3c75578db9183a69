"""What is trained on: standard operators only, the same in every runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from sklearn import datasets
from sklearn.neural_network import MLPClassifier
from stages.train.updates import STEPWISE

from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.protos import all_nodes
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.epoch_graph import build_epoch
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.step import build_step

# The first steps' losses, one and the same on onnxruntime-training 1.19.2 and on onnxruntime 1.31.1.
LOSSES_SEEN = [2.2881894, 2.220766, 2.2789636, 2.1852334, 2.2208533, 2.171908, 2.2027853, 2.1424787]


@pytest.fixture(scope="module")
def digits():
    X, y = datasets.load_digits(return_X_y=True)
    return Data(Rows({"X": (X / 16).astype(np.float32)}, y))


@pytest.fixture(scope="module")
def gradients(digits):
    estimator = MLPClassifier((20,), max_iter=1, random_state=0)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        estimator.fit(digits.train.inputs["X"], digits.train.label)
    return derive(add_loss(convert(estimator, data=digits), AddLossConfig(LOSSES["cross_entropy"](), "mean")))


def reference(model, given):
    with np.errstate(over="ignore"):  # min(1, y · 3.4e38) of Relu's mask
        return ReferenceEvaluator(model).run(None, given)


@pytest.mark.parametrize("optimizer", STEPWISE)
def test_the_epoch_is_of_standard_operators_and_runs_in_the_reference(gradients, digits, optimizer):
    member = OPTIMIZERS[optimizer]()
    step = build_step(gradients, TrainConfig(member))
    model = finish(build_epoch(step))
    assert {(n.domain or "", o.domain) for n in all_nodes(model.graph) for o in model.opset_import} == {("", "")}
    values = {t.name: onnx.numpy_helper.to_array(t) for t in gradients.model.graph.initializer}
    values = {name: values[name] for name in gradients.facts.gradients}
    values = step.pack(step.init(values))
    rows = feeds(gradients.model, gradients.facts, digits.train)
    given = {n: a[:160].reshape(5, 32, *a.shape[1:]) for n, a in rows.items() if n in step.batch}
    scalars = {n: of(np.full(5, member.lr), np.arange(1, 6)).astype(np.float32) for n, of in step.scalars.items()}
    given |= {**values, **scalars}
    expected = reference(model, given)
    for a, b in zip(Session(model).run(given), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_gradient_graph_runs_in_the_reference(gradients, digits):
    rows = feeds(gradients.model, gradients.facts, Rows({"X": digits.train.inputs["X"][:9]}, digits.train.label[:9]))
    expected = reference(gradients.model, rows)
    for a, b in zip(Session(gradients.model).run(rows), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_losses_are_those_of_every_other_runtime(gradients, digits):
    config = TrainConfig(OPTIMIZERS["nesterov"](0.05), epochs=1, batch_size=128, shuffle=False)
    losses = train(gradients, config, data=digits).tensors["losses/step"]
    np.testing.assert_allclose(losses[:8], LOSSES_SEEN, rtol=1e-5)
