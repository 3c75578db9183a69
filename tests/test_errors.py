import inspect

import pytest

from ortpipe import errors
from ortpipe.errors import OrtpipeError, nearest

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_states_the_rule_what_it_got_and_the_way_out(kind):
    error = kind("Widths must agree.", got=3, fix="Give 4.")
    assert isinstance(error, OrtpipeError)
    assert str(error).splitlines() == ["Widths must agree.", "  got: 3", "  fix: Give 4."]


def test_a_message_leaves_out_what_is_not_known():
    assert str(OrtpipeError("Widths must agree.")) == "Widths must agree."


@pytest.mark.parametrize("got", [0, "", False, []])
def test_a_falsy_value_is_still_shown(got):
    assert f"got: {got}" in str(OrtpipeError("Rule.", got=got))


def test_a_config_error_is_a_value_error():
    assert issubclass(errors.ConfigError, ValueError)


def test_divergence_is_a_training_error():
    assert issubclass(errors.ConvergenceError, errors.TrainError)


def test_a_typo_is_answered_with_the_nearest_choice():
    assert nearest("momentun", ["sgd", "momentum"]) == "Did you mean 'momentum'? Valid: momentum, sgd."


def test_no_guess_is_made_where_nothing_is_near():
    assert nearest("zzz", ["sgd", "momentum"]) == "Valid: momentum, sgd."


def test_an_empty_choice_says_none():
    assert nearest("sgd", []) == "Valid: none."
