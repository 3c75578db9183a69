"""Settings from Python: types are checked where they are given, names where they are looked up."""

import cProfile
import dataclasses
import math
import pickle
import typing
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

import ortpipe
from ortpipe import add_loss, derive, evaluate, penalty, train
from ortpipe.app.schema import RunConfig, build_key
from ortpipe.data.parts import SplitConfig
from ortpipe.data.sources import SOURCES
from ortpipe.data.sources.csv import Csv
from ortpipe.errors import ConfigError, OrtpipeError
from ortpipe.metrics import METRICS
from ortpipe.settings import Config, catalogue_of, checked, fields_of
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.convert.changes.config import NewHead
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources import SOURCES as MODEL_SOURCES
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines import ENGINES
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.schedules import SCHEDULES


def configs(cls=RunConfig):
    """Yield every dataclass of settings that a config can have."""
    yield cls
    for _, hint in fields_of(cls).values():
        for member in (catalogue_of(hint) or {}).values():
            yield from configs(member)
        if dataclasses.is_dataclass(hint):
            yield from configs(hint)


CASES = [(cls, entry.name) for cls in sorted(set(configs()), key=str) for entry in dataclasses.fields(cls)]


@pytest.mark.parametrize(("cls", "field"), CASES, ids=[f"{cls.__name__}.{field}" for cls, field in CASES])
def test_a_value_of_another_type_is_refused_by_field_in_every_dataclass_of_settings(cls, field):
    assert issubclass(cls, Config)
    needed = {"path": "a", "label": "a", "function": "a.b", "dataset": "iris"}
    given = {f.name: needed.get(f.name, ("a",)) for f in dataclasses.fields(cls) if f.default is f.default_factory}
    unnamed = {name for name in given if name != field and name not in needed}
    with pytest.raises(ConfigError) as refusal:
        cls(**{**given, field: object()})
    assert refusal.value.key == field or unnamed
    assert "of type object" in str(refusal.value) or unnamed


def test_the_annotations_of_every_dataclass_of_settings_are_types():
    hints = {cls: typing.get_type_hints(cls, include_extras=True) for cls in set(configs())}
    assert hints[ConvertConfig]["head"] == NewHead | None
    assert "ortpipe.doors" not in str(hints)  # a class imported at its first call


MEMBER = "must be an optimizer with its own settings"
WRONG = {
    "a number in quotes": (lambda: TrainConfig(epochs="5"), "epochs must be a whole number", "Write epochs=5."),
    "a fraction": (lambda: TrainConfig(epochs=2.5), "epochs must be a whole number", "The default is 50."),
    "a truth value": (lambda: TrainConfig(batch_size=True), "a whole number", "got: True"),
    "a name for a member": (lambda: TrainConfig("adam"), f"optimizer {MEMBER}", "member 'adam'"),
    "a misspelt member": (lambda: TrainConfig("adm"), MEMBER, "Did you mean 'adam'"),
    "a class for a member": (lambda: TrainConfig(OPTIMIZERS["adam"]), MEMBER, r"Call it: Adam\(\)"),
    "a schedule for an optimizer": (lambda: TrainConfig(SCHEDULES["step"](2)), MEMBER, "of type Step"),
    "an optimizer's setting": (lambda: OPTIMIZERS["adam"](lr="fast"), "lr must be a number", "'fast'"),
    "one word for a list": (lambda: Csv(path="a", label="y", categorical="zip"), "a list of text", "'zip'"),
    "a group": (lambda: TrainConfig(early_stop=3), "early_stop must be an EarlyStopConfig", "got: 3"),
    "another word": (lambda: TrainConfig(init="zeros"), "must be 'keep' or 'random'", "'zeros'"),
    "out of bounds": (lambda: EvaluateConfig(rows=0), "rows must be a whole number, at least 1", "is 200000"),
    "not a number": (lambda: LOSSES["elastic"](math.nan), "l1_weight must be a number, not negative", "is 0.5"),
    "half of all": (lambda: LOSSES["log"](0.5), "eps must be a number, positive and below 0.5", "is 1e-06"),
    "a part of a mapping": (lambda: PenaltyConfig({"*": {"l2": -1}}), r"terms\.\*\.l2 must be a number", "got: -1"),
    "a name in a mapping": (lambda: PenaltyConfig({"*": {"l3": 1}}), "the name of a penalty", "Valid: group, l1, l2"),
    "a sign too many": (lambda: TrainConfig(epochs="--5"), "epochs must be a whole number", "The default is 50."),
    "one name for a list": (lambda: EvaluateConfig(metrics="r2"), "a list, each item the name of a metric", r"\[r2\]"),
    "a name in a list": (lambda: EvaluateConfig(metrics=["r2", "acuracy"]), r"metrics\.1 must be", "'accuracy'"),
    "text that is no encoding": (
        lambda: Csv(path="a", label="y", encoding="x"),
        "that Python knows",
        "Set encoding=utf",
    ),
    "an unknown keyword": (lambda: TrainConfig(epoch=5), "TrainConfig has no setting 'epoch'", "Did you mean 'epochs'"),
    "a rule between fields": (lambda: SplitConfig(0.5, 0.6), "test and validation must leave rows", "below 1"),
}


@pytest.mark.parametrize(("given", "rule", "way_out"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_states_the_rule_what_was_given_and_the_way_out(given, rule, way_out):
    with pytest.raises(ConfigError, match=rf"{rule}(.|\n)*{way_out}"):
        given()


@pytest.mark.parametrize("stage", [add_loss, penalty, derive, train, evaluate], ids=lambda stage: stage.__name__)
def test_a_stage_that_gets_no_artifact_or_no_config_says_so(stage):
    for given in (None, "model.onnx", {}):
        with pytest.raises(ConfigError, match=r"artifact must be an Artifact(.|\n)*load_artifact"):
            stage(given, None)
    with pytest.raises(ConfigError, match=r"config must be .*Config"):
        stage(config=3)


def defaults_of(cls, node, path=""):
    """Yield each plain default of a dataclass of settings beside the value that a YAML file gives the same key."""
    for name, (entry, hint) in fields_of(cls).items():
        if dataclasses.is_dataclass(hint) and name in node:
            yield from defaults_of(hint, node[name], f"{path}{name}.")
        elif name in node and entry.default is not entry.default_factory and catalogue_of(hint) is None:
            default = entry.default if entry.default is not dataclasses.MISSING else entry.default_factory()
            yield f"{path}{name}", default, node[name]


CONF = Path(__file__).resolve().parents[1] / "conf"
GROUPS = {
    "add_loss": (LOSSES, "loss"),
    "convert": (MODEL_SOURCES, "source"),
    "derive": (ENGINES, "engine"),
    "train/optimizer": (OPTIMIZERS, None),
    "train/schedule": (SCHEDULES, None),
}
STAGES = {"add_loss": AddLossConfig, "convert": ConvertConfig, "derive": DeriveConfig}
# the run's own choice, which a user sees in the file: an estimator that trains well, of digits
CHOSEN = {"estimator", "params", "params.max_iter", "scaler", "classes"}


@pytest.mark.parametrize("group", GROUPS)
def test_a_default_in_conf_is_the_dataclass_s(group):
    catalogue, key = GROUPS[group]
    for file in sorted((CONF / group).glob("*.yaml")):
        node = OmegaConf.to_container(OmegaConf.load(file))
        member = node if key is None else node[key]
        pairs = list(defaults_of(catalogue[member["name"]], member))
        pairs += defaults_of(STAGES[group], node) if group in STAGES else []
        wrong = [
            (file.name, name, default, value)
            for name, default, value in pairs
            if name not in CHOSEN and not (isinstance(value, str) and "${" in value)
            if value != (list(default) if isinstance(default, tuple) else default)
        ]
        assert wrong == []


def test_the_defaults_of_stages_without_members_are_the_dataclass_s():
    for name, cls in {"evaluate": EvaluateConfig, "train": TrainConfig}.items():
        node = OmegaConf.to_container(OmegaConf.load(CONF / name / "default.yaml"))
        for key, default, value in defaults_of(cls, node):
            assert (tuple(value) if isinstance(value, list) else value) in (default, "${seed}"), key


def test_an_error_speaks_of_the_argument_and_under_the_front_door_of_the_key_and_travels_between_processes():
    with pytest.raises(ConfigError) as refusal:
        SplitConfig(0.5, 0.6)
    error = pickle.loads(pickle.dumps(refusal.value.under("split").under("data")))
    assert (error.key, error.got, error.fix) == (
        "data.split.test",
        "test=0.5, validation=0.6",
        "Let their sum be below 1.",
    )
    assert error.rule == "data.split.test and data.split.validation must leave rows to train on."


def test_text_from_the_environment_serves_as_a_number_at_the_front_door_only():
    assert build_key("train", {"epochs": "5", "optimizer": {"name": "sgd"}}).epochs == 5
    with pytest.raises(ConfigError, match=r"train\.epochs must be a whole number"):
        build_key("train", {"epochs": "many", "optimizer": {"name": "sgd"}})


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ({"name": "sgd", "lr": "1e-3"}, {"lr": 1e-3}),
        ({"name": "lbfgs", "history": "010"}, {"history": 10}),
    ],
)
def test_numbers_from_the_environment_are_read_as_python_writes_them(optimizer, expected):
    made = build_key("train", {"epochs": 5, "optimizer": optimizer}).optimizer
    assert {name: getattr(made, name) for name in expected} == expected


def test_many_labels_are_checked_without_a_call_for_each():
    labels, profile = [f"c{number}" for number in range(10_000)], cProfile.Profile()
    assert profile.runcall(checked, labels, tuple[str | int, ...], "labels") == tuple(labels)
    assert sum(entry.callcount for entry in profile.getstats()) < 100


def test_lists_and_null_come_from_the_environment_too():
    assert build_key("evaluate", {"metrics": "[r2, log_loss]"}).metrics == ("r2", "log_loss")
    assert build_key("evaluate", {"metrics": "null"}).metrics is None
    assert build_key("penalty", {"terms": "{w: {l2: 1e-3}}"}).terms == {"w": {"l2": 1e-3}}
    with pytest.raises(ConfigError, match=r"evaluate\.metrics\.1 must be the name of a metric"):
        build_key("evaluate", {"metrics": "[r2, mze]"})


@pytest.mark.parametrize("text", ["1:30", "", "null", "[5]", "[5"])
def test_text_that_writes_no_number_is_none_at_the_front_door_either(text):
    with pytest.raises(ConfigError, match=r"train\.epochs must be a whole number"):
        build_key("train", {"epochs": text, "optimizer": {"name": "sgd"}})


def test_the_way_out_keeps_the_rule_itself():
    for text in ("0", "-5"):
        with pytest.raises(ConfigError, match="must be a whole number, at least 1") as refusal:
            TrainConfig(epochs=text)
        assert "Write" not in str(refusal.value)


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
    rule, got, fix = str(refusal.value).split("\n  ")
    assert rule == "data.split.test must be a number, not negative and below 1, text, or None (null)."
    assert (got, fix) == ("got: [1]", "fix: The default is 0.25.")


def test_a_word_where_a_list_belongs_is_shown_in_brackets():
    source = {"name": "csv", "path": "a", "label": "y", "inputs": {"carrier": "carrier"}}
    with pytest.raises(ConfigError, match=r"inputs\.carrier(.|\n)*a list(.|\n)*fix: Write a list: \[carrier\]"):
        build_key("data", {"source": source})


def test_a_name_of_digits_needs_no_quotes_which_the_command_line_has_not():
    assert MODEL_SOURCES["onnx"](path="a.onnx", batch_axis={387: 1}).batch_axis == {"387": 1}


@dataclasses.dataclass
class Goal(Config):
    target: float = 1.0


@dataclasses.dataclass
class Aimed(Config):
    goal: "Goal"


def test_a_class_of_settings_may_have_a_setting_target():
    assert Aimed(Goal(2)).goal.target == 2.0


@dataclasses.dataclass
class Unset(Config):
    rate: float = None  # type: ignore[assignment]


def test_a_setting_whose_type_has_no_none_must_be_given():
    with pytest.raises(ConfigError, match="rate must be a number"):
        Unset()


def test_a_class_of_settings_may_be_executed_outside_a_module():
    names = {"Config": Config, "__name__": "nowhere"}
    exec("class Executed(Config):\n    rate: float", names)
    executed = dataclasses.dataclass(names["Executed"])
    assert executed(1).rate == 1.0
    with pytest.raises(ConfigError, match="rate must be a number"):
        executed("fast")


@dataclasses.dataclass
class Coloured(Config):
    Colour = str

    colour: "Colour"


def test_a_type_of_a_setting_may_be_named_in_its_class():
    with pytest.raises(ConfigError, match="colour must be text"):
        Coloured(1)
