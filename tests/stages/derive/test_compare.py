"""derive.check: gradients that are not the slope of the loss stop the run before it trains."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ortpipe.autodiff.rules.elementwise import RULES
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import DeriveError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines import ENGINES
from ortpipe.stages.derive.stage import derive

NETWORK = """g (float[N,3] X) => (float[N,1] y)
    <float[3,4] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9, -0.2, 0.6, 0.8, 0.1, -0.3, 0.2},
     float[4,1] u = {0.5, -0.7, 1.1, 2}>
    { a = MatMul(X, w) h = Tanh(a) b = Relu(h) y = MatMul(b, u) }"""
CHECK = DeriveConfig(check=True)


@pytest.fixture
def rows():
    rng = np.random.default_rng(3)
    return Data(Rows({"X": rng.normal(size=(20, 3))}, rng.normal(size=20)))


def loss_of(from_text, dtype="float32", text=NETWORK):
    return add_loss(from_text(text, dtype=dtype), AddLossConfig(LOSSES["l2"]()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ENGINES)
def test_right_gradients_pass_and_change_nothing(from_text, rows, name, dtype, request):
    if name == "ort":
        request.getfixturevalue("training_build")
    loss, engine = loss_of(from_text, dtype), ENGINES[name]()
    checked = derive(loss, DeriveConfig(engine, inputs=("X",), check=True), data=rows)
    assert checked.digest() == derive(loss, DeriveConfig(engine, inputs=("X",))).digest()


def test_an_output_that_is_no_loss_is_checked_too(from_text, rows):
    derive(loss_of(from_text), DeriveConfig(output="y", inputs=("X",), check=True), data=rows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_wrong_rule_is_caught_with_the_parameter_and_both_values(from_text, rows, monkeypatch, dtype):
    monkeypatch.setitem(RULES, "Tanh", lambda op, node, dy, *inputs: [op.Mul(dy, node.outputs[0])])
    derive(loss_of(from_text, dtype), DeriveConfig(parameters=("u",), check=True), data=rows)
    with pytest.raises(DeriveError, match=r"got: w\[\d, \d\]: derived -?[\d.e-]+, central difference -?[\d.e-]+"):
        derive(loss_of(from_text, dtype), CHECK, data=rows)


def test_it_needs_rows(from_text):
    with pytest.raises(DeriveError, match="no rows"):
        derive(loss_of(from_text), CHECK)


def test_it_refuses_a_graph_that_draws(from_text, rows):
    text = """g (float[N,3] X) => (float[N,1] y) <float[3,1] w = {1, 2, -1}>
        { half = Constant<value_float=0.5>() on = Constant<value=bool {1}>()
          d = Dropout(X, half, on) y = MatMul(d, w) }"""
    with pytest.raises(DeriveError, match=r"draws at random(.|\n)*check=false"):
        derive(loss_of(from_text, text=text), CHECK, data=rows)


def test_a_run_can_ask_for_it(cli: Callable) -> None:
    """A random network has no slope to compare with, so that its run stops where the check is made."""
    settings = ("experiment=networks/mlp", "train.epochs=1", "convert.source.hidden=[4]", "derive.check=true")
    done = cli(*settings, "convert.source.dropout=0")
    assert done.returncode == 0, done.stderr
    done = cli(*settings, "convert.source.dropout=0.5")
    assert done.returncode == 1
    assert "derive.check compares gradients" in done.stderr


def test_a_graph_that_rounds_is_refused_with_the_setting_that_rounds_nothing(from_text, rows):
    text = NETWORK.replace(
        "y = MatMul(b, u) }",
        """c = MatMul(b, u) many = Constant<value_float=1e6>() p = Mul(c, many) q = Round(p) same = Div(q, many)
        r = Round(c) d = Sub(r, same) y = Add(c, d) }""",
    )
    with pytest.raises(DeriveError, match=r"source.quantized=float"):
        derive(loss_of(from_text, text=text), CHECK, data=rows)
