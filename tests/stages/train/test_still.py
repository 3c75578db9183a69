"""A loss that does not move over a whole training is said."""

from __future__ import annotations

import numpy as np
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
Y = X @ [[1.0], [2.0]]
# a Relu that no row passes, a gradient far below what float32 can add to the weights, weights at their optimum
TEXT = "g (float[N, 2] X) => (float[N, 1] y) <float[2, 1] w = {1, %s}, float[1] b = {%s}> { h = Gemm(X, w, b) %s }"
DEAD = TEXT % (1, -100, "y = Relu(h)")
FAINT = TEXT % (1, 0, "t = Constant <value = float {1e-12}> () y = Mul(h, t)")
BEST = TEXT % (2, 0, "y = Identity(h)")
FAR = TEXT % (1, 0, "y = Identity(h)")


def trained(from_text, text, optimizer, epochs):
    source = derive(add_loss(from_text(text), AddLossConfig(LOSSES["l2"]())), DeriveConfig())
    return train(source, TrainConfig(optimizer, epochs=epochs, batch_size=8), data=Data(Rows({"X": X}, Y)))


def notes(result):
    return [note for note in result.facts.lineage[-1].get("notes", ()) if "did not change" in note]


@pytest.mark.parametrize("optimizer", [OPTIMIZERS["sgd"](0.01), OPTIMIZERS["lbfgs"]()], ids=["sgd", "lbfgs"])
@pytest.mark.parametrize(
    ("text", "epochs"),
    [(DEAD, 1), (DEAD, 3), (FAINT, 3), (BEST, 1), (BEST, 3)],
    ids=["dead once", "dead", "faint", "best once", "best"],
)
def test_a_loss_that_does_not_move_is_said(from_text, text, optimizer, epochs):
    [note] = notes(trained(from_text, text, optimizer, epochs))
    assert f"in {1 if optimizer == OPTIMIZERS['lbfgs']() else 5 * epochs} steps" in note
    assert "convert.source.scores" in note


@pytest.mark.parametrize("optimizer", [OPTIMIZERS["sgd"](0.01), OPTIMIZERS["lbfgs"]()], ids=["sgd", "lbfgs"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_loss_that_moves_is_not(from_text, optimizer, epochs):
    assert notes(trained(from_text, FAR, optimizer, epochs)) == []
