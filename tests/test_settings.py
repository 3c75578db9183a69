"""Settings from Python: types are checked where they are given, names where they are looked up."""

import dataclasses
import typing

import numpy as np
import pytest

import ortpipe
from ortpipe.app.schema import RunConfig, build_key
from ortpipe.data.sources import SOURCES
from ortpipe.data.sources.csv import Csv
from ortpipe.errors import ConfigError, OrtpipeError
from ortpipe.metrics import METRICS
from ortpipe.settings import Config
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.schedules import SCHEDULES


def configs(cls=RunConfig):
    """Yield every dataclass of settings that a config can have."""
    yield cls
    hints = typing.get_type_hints(cls)
    for entry in dataclasses.fields(cls):
        for member in entry.metadata.get("catalogue", {}).values():
            yield from configs(member)
        if dataclasses.is_dataclass(hints[entry.name]):
            yield from configs(hints[entry.name])


CASES = [(cls, entry.name) for cls in sorted(set(configs()), key=str) for entry in dataclasses.fields(cls)]


@pytest.mark.parametrize(("cls", "field"), CASES, ids=[f"{cls.__name__}.{field}" for cls, field in CASES])
def test_a_value_of_another_type_is_refused_by_field_in_every_dataclass_of_settings(cls, field):
    assert issubclass(cls, Config)
    hints = typing.get_type_hints(cls)
    needed = {f.name: {str: "a"}.get(hints[f.name], ("a",)) for f in dataclasses.fields(cls)}
    given = {f.name: needed[f.name] for f in dataclasses.fields(cls) if f.default is f.default_factory}
    unnamed = {name for name in given if name != field and name not in ("path", "label", "function", "dataset")}
    with pytest.raises(ConfigError) as refusal:
        cls(**{**given, field: object()})
    assert str(refusal.value).startswith(f"{cls.__name__}.{field if not unnamed else ''}")
    assert "of type object" in str(refusal.value) or unnamed


WRONG = {
    "a number in quotes": (lambda: TrainConfig(epochs="5"), "TrainConfig.epochs is a whole number", "Write epochs=5."),
    "a fraction": (lambda: TrainConfig(epochs=2.5), "TrainConfig.epochs is a whole number", "Give a whole number."),
    "a truth value": (lambda: TrainConfig(batch_size=True), "a whole number", "got: True"),
    "a name for a member": (lambda: TrainConfig("adam"), "is a member of its catalogue", "member 'adam'"),
    "a misspelt member": (lambda: TrainConfig("adm"), "is a member of its catalogue", "Did you mean 'adam'"),
    "a class for a member": (
        lambda: TrainConfig(OPTIMIZERS["adam"]),
        "a member of its catalogue",
        r"Call it: Adam\(\)",
    ),
    "a schedule for an optimizer": (lambda: TrainConfig(SCHEDULES["step"](2)), "a member of its", "of type Step"),
    "an optimizer's setting": (lambda: OPTIMIZERS["adam"](lr="fast"), "Adam.lr is a number", "'fast'"),
    "one word for a list": (lambda: Csv(path="a", label="y", categorical="zip"), "a list of text", "'zip'"),
    "a group": (lambda: TrainConfig(early_stop=3), "TrainConfig.early_stop is of type EarlyStopConfig", "of type int"),
    "another word": (lambda: TrainConfig(init="zeros"), "is 'keep' or 'random'", "'zeros'"),
}


@pytest.mark.parametrize(("given", "rule", "way_out"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_states_the_rule_what_was_given_and_the_way_out(given, rule, way_out):
    with pytest.raises(ConfigError, match=rf"{rule}(.|\n)*{way_out}"):
        given()


def test_numpy_s_numbers_lists_and_whole_numbers_are_taken_as_the_field_s_own_type(tmp_path):
    config = TrainConfig(OPTIMIZERS["sgd"](np.float32(0.5)), epochs=np.int64(3), weight_decay=1)
    assert [type(v) for v in (config.optimizer.lr, config.epochs, config.weight_decay)] == [float, int, float]
    source = Csv(path=tmp_path, label=["a", "b"])
    assert (source.path, source.label) == (str(tmp_path), ("a", "b"))
    assert EarlyStopConfig(patience=None).patience is None


@pytest.mark.parametrize("catalogue", [OPTIMIZERS, LOSSES, SCHEDULES, METRICS, SOURCES])
def test_a_name_that_a_catalogue_does_not_have_is_an_error_with_the_nearest(catalogue):
    first = next(iter(catalogue))
    with pytest.raises(OrtpipeError, match=f"is no (.|\n)*Did you mean '{first}'"):
        catalogue[f"{first}x"]
    with pytest.raises(KeyError):
        catalogue["nothing of the kind"]
    assert f"{first}x" not in catalogue


def test_the_package_lists_its_public_names():
    assert {"Rows", "train", "OPTIMIZERS", "TrainConfig"} <= set(dir(ortpipe))
    assert all(hasattr(ortpipe, name) for name in dir(ortpipe))


def test_a_part_may_be_left_out_and_a_wrong_one_is_one_error():
    source = {"name": "synthetic"}
    assert build_key("data", {"source": source, "split": {"test": None}}).split.fractions == (0.0, 0.0)
    with pytest.raises(ConfigError) as refusal:
        build_key("data", {"source": source, "split": {"test": [1]}})
    assert str(refusal.value) == "data.split.test is a number, text or None.\n  got: [1]"


def test_a_word_where_a_list_belongs_is_shown_in_brackets():
    source = {"name": "csv", "path": "a", "label": "y", "inputs": {"carrier": "carrier"}}
    with pytest.raises(ConfigError, match=r"inputs\.carrier(.|\n)*a list(.|\n)*fix: Write a list: \[carrier\]"):
        build_key("data", {"source": source})
