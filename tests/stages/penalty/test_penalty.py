from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge

from ortpipe.errors import ConfigError, PenaltyError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.penalties import PENALTIES
from ortpipe.stages.penalty.stage import penalty

TEXT = """g (float[N,2] X) => (float[N,1] y)
 <float[2,2] layer0.weight = {0.5, -2, 0.25, 3}, float[2] layer0.bias = {-1, 0.5},
  float[2,1] layer1.weight = {1, -0.75}, float[1] layer1.bias = {0.125}>
 { h = Gemm(X, layer0.weight, layer0.bias) y = Gemm(h, layer1.weight, layer1.bias) }"""
TEXT = TEXT.replace("layer0.", "layer0_").replace("layer1.", "layer1_")
FORMULAS = {
    "l1": lambda w: np.abs(w).sum(),
    "l2": lambda w: (w**2).sum(),
    "group": lambda w: np.sqrt((w**2).reshape(len(w), -1).sum(axis=1)).sum(),
}
X = np.array([[1.0, 2.0], [3.0, -1.0]])
Y = np.array([[1.0], [2.0]])


@pytest.fixture(params=["sum", "mean"])
def reduction(request):
    return request.param


@pytest.fixture(params=["float32", "float64"])
def loss_model(from_text, reduction, request):
    return add_loss(from_text(TEXT, dtype=request.param), AddLossConfig(LOSSES["l2"](), reduction))


@pytest.fixture
def charged(loss_model, run, parameters_of):
    """What terms add to the loss, and the parameters."""

    def difference(terms):
        after = penalty(loss_model, PenaltyConfig(terms))
        dtype = parameters_of(loss_model.model)["layer0_weight"].dtype
        feeds = {"X": X.astype(dtype), loss_model.facts.label: Y.astype(dtype)}
        before = run(loss_model.model, feeds)["loss"]
        return float(run(after.model, feeds)[after.facts.loss]) - float(before)

    return difference


def test_the_table_of_formulas_is_the_catalogue():
    assert set(FORMULAS) == set(PENALTIES)


@pytest.mark.parametrize("kind", FORMULAS)
def test_an_exact_name_charges_that_parameter_once_per_batch(charged, loss_model, parameters_of, kind):
    weight = parameters_of(loss_model.model)["layer0_weight"]
    assert charged({"layer0_weight": {kind: 0.5}}) == pytest.approx(0.5 * FORMULAS[kind](weight), rel=1e-4)


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("*_weight", ["layer0_weight", "layer1_weight"]),
        ("layer0_*", ["layer0_weight", "layer0_bias"]),
        ("layer[0-1]_bias", ["layer0_bias", "layer1_bias"]),
        ("*", ["layer0_weight", "layer0_bias", "layer1_weight", "layer1_bias"]),
    ],
)
def test_a_glob_charges_every_parameter_that_it_fits(charged, loss_model, parameters_of, glob, names):
    values = parameters_of(loss_model.model)
    assert charged({glob: {"l2": 0.1}}) == pytest.approx(0.1 * sum((values[n] ** 2).sum() for n in names), rel=1e-4)


def test_terms_that_meet_in_one_parameter_add_up(charged, loss_model, parameters_of):
    values = parameters_of(loss_model.model)
    got = charged({"layer0_weight": {"l1": 0.3, "l2": 0.2}, "*_weight": {"l1": 0.1}})
    first, second = values["layer0_weight"], values["layer1_weight"]
    expected = 0.3 * np.abs(first).sum() + 0.2 * (first**2).sum() + 0.1 * (np.abs(first).sum() + np.abs(second).sum())
    assert got == pytest.approx(expected, rel=1e-4)


def test_the_loss_keeps_its_name_and_place(loss_model):
    after = penalty(loss_model, PenaltyConfig({"*": {"l2": 0.1}}))
    assert after.facts.loss == loss_model.facts.loss
    assert [o.name for o in after.model.graph.output] == [o.name for o in loss_model.model.graph.output]
    assert [i.name for i in after.model.graph.input] == [i.name for i in loss_model.model.graph.input]


def test_its_input_stays_as_it_was(loss_model):
    before = loss_model.digest()
    after = penalty(loss_model, PenaltyConfig({"*": {"l1": 0.1}}))
    assert loss_model.digest() == before
    assert after.digest() != before


@pytest.mark.parametrize("terms", [{}, {"layer0_weight": {}}, {"layer0_weight": {"l1": 0.0}}])
def test_without_strength_the_model_stays_as_it_is(loss_model, terms):
    after = penalty(loss_model, PenaltyConfig(terms))
    assert after is not loss_model
    assert after.digest() == loss_model.digest()
    assert after.facts.lineage[-1]["stage"] == "penalty"


def test_auto_needs_no_rows_if_the_source_has_no_penalty():
    source = LinearRegression().fit(X, Y.ravel())
    loss_model = add_loss(convert(source), AddLossConfig(LOSSES["l2"](), "sum"))  # the source's objective is a mean
    assert penalty(loss_model, PenaltyConfig(auto=True)).digest() == loss_model.digest()


def test_auto_needs_no_loss_if_the_source_has_no_penalty():
    model = convert(LinearRegression().fit(X, Y.ravel()))
    after = penalty(model, PenaltyConfig(auto=True))
    assert after.digest() == model.digest()
    assert after.facts.lineage[-1]["notes"] == ["penalty=auto: nothing"]
    with pytest.raises(PenaltyError, match="needs a model with a loss"):
        penalty(convert(Ridge().fit(X, Y.ravel())), PenaltyConfig(auto=True))


def test_a_pattern_that_matches_no_parameter_names_the_nearest(loss_model):
    with pytest.raises(PenaltyError) as error:
        penalty(loss_model, PenaltyConfig({"layer0_wieght": {"l2": 0.1}}))
    assert "Every pattern in terms must" in str(error.value)
    assert "Did you mean 'layer0_weight'?" in str(error.value)


@pytest.mark.parametrize("name", ["loss", "X", "y"])
def test_only_parameters_can_be_charged(loss_model, name):
    with pytest.raises(PenaltyError, match="must match a parameter"):
        penalty(loss_model, PenaltyConfig({name: {"l2": 0.1}}))


def test_an_unknown_penalty_is_refused_with_its_key():
    with pytest.raises(ConfigError, match=r"^terms\.w\.l3 must"):
        PenaltyConfig({"w": {"l3": 0.1}})


@pytest.mark.parametrize("strength", [-0.1, math.nan, math.inf])
def test_a_strength_that_is_negative_or_not_finite_is_refused(strength):
    with pytest.raises(ConfigError, match=r"^terms\.w\.l1 must"):
        PenaltyConfig({"w": {"l1": strength}})


def test_a_second_penalty_adds_to_the_first(loss_model, run, parameters_of):
    once = penalty(loss_model, PenaltyConfig({"layer1_bias": {"l2": 64.0}}))
    twice = penalty(once, PenaltyConfig({"layer1_bias": {"l2": 64.0}}))
    dtype = parameters_of(loss_model.model)["layer0_weight"].dtype
    feeds = {"X": X.astype(dtype), loss_model.facts.label: Y.astype(dtype)}
    losses = [float(run(a.model, feeds)["loss"]) for a in (loss_model, once, twice)]
    assert np.diff(losses) == pytest.approx([1.0, 1.0], rel=1e-4)


def test_a_model_without_a_loss_is_refused(from_text):
    with pytest.raises(PenaltyError, match=r"needs a model with a loss(.|\n)*add_loss first"):
        penalty(from_text(TEXT), PenaltyConfig({"layer0_weight": {"l2": 1.0}}))


def test_a_config_of_another_type_is_rejected_by_name(loss_model):
    with pytest.raises(ConfigError, match="config"):
        penalty(loss_model, {"layer*": {"l2": 0.1}})
