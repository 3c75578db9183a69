"""Parts of the user's own by import path: losses, data sources, penalties, metrics, optimizers, schedules."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import itertools
import os
import sys
import types

import numpy as np
import pytest

from ortpipe import own_code
from ortpipe.app.consent import executes
from ortpipe.app.schema import check as check_config
from ortpipe.data.load import DataConfig, load
from ortpipe.data.rows import Data, Rows
from ortpipe.data.sources import SOURCES
from ortpipe.errors import ConfigError, DataError, EvaluateError, LossError, PenaltyError, TrainError
from ortpipe.metrics import METRICS
from ortpipe.metrics.named import greater_is_better
from ortpipe.pipeline.digest import identity
from ortpipe.stages.add_loss.config import AddLossConfig, HeadLoss
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.stage import evaluate
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.schedules import SCHEDULES
from ortpipe.stages.train.stage import train

LOSS = """
from dataclasses import dataclass
from ortpipe.settings import Config

@dataclass(frozen=True)
class Tilted(Config):
    tilt: float = 0.9
    def __call__(self, op, label, scores):
        d = label - scores.prediction
        return op.Max(self.tilt * d, (self.tilt - 1) * d)

class Bare:
    pass

def listed():
    return []

@dataclass(frozen=True)
class Wrong(Config):
    def __call__(self, op, label, scores):
        return label.missing

@dataclass(frozen=True)
class Number(Config):
    def __call__(self, op, label, scores):
        return 3.0

@dataclass(frozen=True)
class PerRow(Config):
    def __call__(self, op, label, scores):
        d = label - scores.prediction
        return op.ReduceSum(d * d, [1], keepdims=0)

@dataclass(frozen=True)
class Averaged(Config):
    def __call__(self, op, label, scores):
        d = label - scores.prediction
        return op.ReduceMean(d * d, [0], keepdims=1)

@dataclass(frozen=True)
class Broadcast(Config):
    def __call__(self, op, label, scores):
        d = op.Squeeze(label, [1]) - scores.prediction
        return d * d

@dataclass(frozen=True)
class Misspelt(Config):
    def __call__(self, op, label, scores):
        return op.Subb(label, scores.prediction)
"""
PARTS = """
from dataclasses import dataclass
import numpy as np
from ortpipe.stages.train.links import scale_by_rate
from ortpipe.stages.train.optimizers import Optimizer
from ortpipe.stages.train.schedules import Schedule

def cube(op, parameter):
    return op.ReduceSum(op.Abs(parameter * parameter * parameter), keepdims=0)

def broken(op, parameter):
    return parameter.nothing

def furthest(truth, prediction, weight):
    return np.abs(truth - prediction).max()
furthest.greater_is_better = False

def failing(truth, prediction, weight):
    return 1 / 0
failing.greater_is_better = True

def unsure(truth, prediction, weight):
    return 0.0

@dataclass(frozen=True)
class Plain(Optimizer):
    lr: float = 0.01
    def __call__(self):
        return (scale_by_rate(),)

@dataclass(frozen=True)
class Half(Schedule):
    def __call__(self, lr, step, total):
        return np.full(len(step), lr / 2)

@dataclass(frozen=True)
class Lost(Schedule):
    def __call__(self, lr, step, total):
        raise KeyError("lost")
"""
LINEAR = "g (float[N,2] X) => (float[N,1] y) <float[2,1] w = {0.5, -2}, float[1] b = {0.25}> { y = Gemm(X, w, b) }"
NAMES = (f"own_parts_{count}" for count in itertools.count())


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the working folder; each has another name, for it is imported only once."""
    monkeypatch.chdir(tmp_path)

    def write(text, name=None):
        name = name or next(NAMES)
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def linear(request):
    from_text = request.getfixturevalue("from_text")
    return from_text(LINEAR)


@pytest.fixture
def rows():
    X = np.random.default_rng(0).normal(size=(20, 2))
    rows = Rows({"X": X}, X @ [1.0, 2.0])
    return Data(rows, None, rows)


def test_a_loss_by_import_path_is_trained_as_that_of_the_catalogue(module, linear, rows, run):
    path = f"{module(LOSS)}:Tilted"
    own_loss, ours = LOSSES[path](tilt=0.7), LOSSES["quantile"]((0.7,))
    feeds = {"X": rows.train.inputs["X"].astype(np.float32), "label": rows.train.label[:, None].astype(np.float32)}
    losses = [run(add_loss(linear, AddLossConfig(loss)).model, feeds)["loss"] for loss in (own_loss, ours)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    trained = train(derive(add_loss(linear, AddLossConfig(own_loss))), TrainConfig(epochs=3), data=rows)
    assert trained.tensors["losses/train"][-1] < trained.tensors["losses/train"][0]
    assert path not in list(LOSSES)


@pytest.mark.parametrize(("name", "shape"), [("PerRow", r"\[N\]"), ("Averaged", r"\[1,1\]"), ("Broadcast", r"\[N,N\]")])
def test_a_loss_without_terms_for_each_row_is_refused(module, linear, name, shape):
    loss = LOSSES[f"{module(LOSS)}:{name}"]()
    with pytest.raises(
        LossError, match=rf"(?s)terms for each row.*returned {shape} for a prediction \[N,1\].*keepdims=1"
    ):
        add_loss(linear, AddLossConfig(loss))


def test_the_config_of_a_command_names_it_with_its_settings(module):
    path = f"{module(LOSS)}:Tilted"
    values, problems = check_config({"add_loss": {"loss": {"name": path, "tilt": "0.3"}}})
    assert values["add_loss"].loss == LOSSES[path](tilt=0.3)
    assert all(problem.key != "add_loss.loss" for problem in problems)
    _, problems = check_config({"add_loss": {"loss": {"name": path, "tild": 0.3}}})
    assert any("Did you mean 'tilt'" in str(problem) for problem in problems)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("Tiltet", r"is missing(.|\n)*Did you mean 'Tilted'"),
        ("LINE", "which is missing"),
        ("Bare", r"dataclass(.|\n)*@dataclass\(frozen=True\)"),
        ("listed", "dataclass"),
    ],
)
def test_a_path_that_names_no_loss_says_what_there_is(module, part, message):
    name = module(LOSS)
    _, problems = check_config({"add_loss": {"loss": {"name": f"{name}:{part}"}}})
    with pytest.raises(ConfigError, match=message):
        raise next(problem for problem in problems if str(problem.key).startswith("add_loss"))


def test_a_module_that_cannot_be_imported_says_where_it_fails(module):
    name = module("x = 1\nraise ValueError('no licence')\n")
    with pytest.raises(ConfigError, match=rf"no licence, in line 2 of .*{name}\.py: raise ValueError"):
        LOSSES[f"{name}:Tilted"]
    with pytest.raises(ConfigError, match="No module named 'nowhere_at_all'"):
        LOSSES["nowhere_at_all:Tilted"]


def test_an_error_in_a_loss_names_it_and_its_line(module, linear):
    name = module(LOSS)
    with pytest.raises(LossError, match=rf"{name}:Wrong(.|\n)*line \d+ of .*{name}\.py: return label\.missing"):
        add_loss(linear, AddLossConfig(LOSSES[f"{name}:Wrong"]()))
    with pytest.raises(LossError, match=rf"{name}:Number returned 3\.0"):
        add_loss(linear, AddLossConfig(LOSSES[f"{name}:Number"]()))
    with pytest.raises(Exception, match="Subb") as error:
        add_loss(linear, AddLossConfig(LOSSES[f"{name}:Misspelt"]()))
    assert any(f"{name}:Misspelt" in note for note in error.value.__notes__)


def test_its_code_is_part_of_the_key_with_what_it_imports(module):
    keys = []
    for text, helper in ((LOSS, 1), (LOSS, 1), (f"{LOSS}# edited\n", 1), (LOSS, 2)):
        other = module(f"TILT = {helper}\n", "own_helper")
        name = module(f"{text}\ndef late():\n    from {other} import TILT\n")
        told = identity(AddLossConfig(LOSSES[f"{name}:Tilted"]()))["loss"]
        of_head = identity(AddLossConfig(LOSSES["l2"](), heads={"box": HeadLoss(LOSSES[f"{name}:Tilted"]())}))
        assert of_head["heads"]["box"]["loss"] == told
        assert told["name"] == f"{name}:Tilted"
        keys.append(told["code"])
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_penalties_and_metrics_stand_in_the_key_by_their_code(module):
    name = module(PARTS)
    charged = identity(PenaltyConfig({"*": {f"{name}:cube": 0.1, "l2": 0.1}}))["terms"]["*"]
    assert charged == {f"{name}:cube": 0.1, "l2": 0.1, f"code of {name}:cube": own_code.code(PENALTY(name))}
    told = identity(EvaluateConfig((f"{name}:furthest", "r2")))["metrics"]
    assert told == [{"name": f"{name}:furthest", "code": own_code.code(PENALTY(name))}, "r2"]
    of_head = identity(EvaluateConfig((f"box/{name}:furthest",)))["metrics"]
    assert of_head == [{"name": f"box/{name}:furthest", "code": own_code.code(PENALTY(name))}]


def PENALTY(name):
    return sys.modules[name].cube


def test_a_whole_run_of_parts_of_ones_own(module, linear, rows):
    name = module(PARTS)
    charged = penalty(add_loss(linear, AddLossConfig(LOSSES["l2"]())), PenaltyConfig({"w": {f"{name}:cube": 0.01}}))
    config = TrainConfig(OPTIMIZERS[f"{name}:Plain"](0.02), SCHEDULES[f"{name}:Half"](), epochs=2)
    ours = dataclasses.replace(config, optimizer=OPTIMIZERS["sgd"](0.01), schedule=SCHEDULES["constant"]())
    trained, same = (train(derive(charged), c, data=rows) for c in (config, ours))
    np.testing.assert_array_equal(trained.tensors["parameter/w"], same.tensors["parameter/w"])
    measured = evaluate(trained, EvaluateConfig((f"{name}:furthest",)), data=rows)
    truth, predicted = (measured.tensors[f"evaluation/{kind}"] for kind in ("label", "prediction"))
    assert measured.facts.metrics[f"{name}:furthest"]["trained"] == np.abs(truth - predicted).max()


def test_errors_in_other_parts_name_them_too(module, linear, rows):
    name = module(PARTS)
    scored = add_loss(linear, AddLossConfig(LOSSES["l2"]()))
    with pytest.raises(PenaltyError, match=f"{name}:broken(.|\n)*parameter.nothing"):
        penalty(scored, PenaltyConfig({"*": {f"{name}:broken": 1.0}}))
    with pytest.raises(TrainError, match=f"{name}:Lost(.|\n)*KeyError: 'lost'"):
        train(derive(scored), TrainConfig(schedule=SCHEDULES[f"{name}:Lost"]()), data=rows)
    with pytest.raises(EvaluateError, match=f"{name}:failing(.|\n)*ZeroDivisionError"):
        METRICS[f"{name}:failing"](np.zeros(1), np.zeros(1), None, None)


def test_a_metric_of_ones_own_says_which_way_is_better(module):
    name = module(PARTS)
    assert greater_is_better(f"{name}:failing")
    assert not greater_is_better(f"{name}:furthest_unweighted")
    with pytest.raises(ConfigError, match=r"unsure\.greater_is_better = False"):
        EvaluateConfig((f"{name}:unsure",))


def test_what_a_record_names_is_not_imported_to_show_it(module):
    name = module("raise SystemExit\n")
    assert not greater_is_better(f"{name}:metric", recorded=True)
    assert name not in sys.modules


def test_a_record_asks_for_consent_before_a_part_of_anyones_own_runs():
    config = {
        "add_loss": {"loss": {"name": "a.b:Loss"}},
        "penalty": {"terms": {"layer.*": {"c:penalty": 0.1, "l2": 0.2}}},
        "train": {"optimizer": {"name": "d:O"}, "schedule": {"name": "constant"}, "early_stop": {"monitor": "e:m"}},
        "evaluate": {"metrics": ["r2", "f:m"]},
        "objective": "f:m_unweighted",
        "name": "mine: a run",
    }
    asked = [line.partition("=")[0] for line in executes(config, None)]
    assert asked == [
        *("add_loss.loss.name", "penalty.terms.layer.*.c:penalty", "train.optimizer.name"),
        *("train.early_stop.monitor", "evaluate.metrics.1", "objective"),
    ]


@pytest.fixture
def cell(monkeypatch):
    """Return a module of what a notebook's cell defines: code without a file."""

    def run(text):
        module = types.ModuleType("a_notebook")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(text, "<a cell>", "exec"), vars(module))
        return module

    return run


def test_the_code_of_a_notebook_is_told_apart_by_what_it_is_and_by_the_globals_that_it_reads(cell):
    texts = ("K = 1\ndef f(x):\n    return K * x", "K = 2\ndef f(x):\n    return K * x", "def f(x):\n    return 3 * x")
    codes = [own_code.code(cell(text).f) for text in (*texts, texts[0])]
    assert len({*codes[:3]}) == 3
    assert codes[3] == codes[0]
    first = cell(texts[0])
    first.K = 2
    assert own_code.code(first.f) == codes[1]


def test_a_class_of_a_notebook_has_a_code_and_so_has_what_cannot_be_pickled(cell):
    classes = [cell(f"class A:\n    k = {k}").A for k in (1, 2)]
    assert own_code.code(classes[0]) != own_code.code(classes[1])
    opened = cell("import threading\nlock = threading.Lock()\ndef f(x):\n    return lock")
    assert own_code.code(opened.f) != own_code.code(opened.f)  # nothing is taken for its result


def test_what_was_imported_before_its_file_was_edited_has_another_code_than_the_file(module, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    name, text = module("K = 1\ndef f(op, w):\n    return K * w\n"), "K = 100\ndef f(op, w):\n    return K * w\n"
    imported = importlib.import_module(name)
    (tmp_path / f"{name}.py").write_text(text)
    before = own_code.code(own_code.load(f"{name}:f"))
    assert before != hashlib.sha256(text.encode()).hexdigest()
    importlib.invalidate_caches()
    again = importlib.reload(imported)
    assert again.K == 100
    assert own_code.code(again.f) not in (before, hashlib.sha256(b"").hexdigest())


def test_a_file_that_is_edited_after_it_was_loaded_changes_nothing_and_python_warns(module, tmp_path):
    text = "def f(op, w):\n    return w\n"
    path = f"{module(text)}:f"
    before = own_code.code(own_code.load(path))
    assert before == hashlib.sha256(text.encode()).hexdigest()
    file = tmp_path / f"{path.partition(':')[0]}.py"
    file.write_text(text.replace("return w", "return 2 * w"))
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime + 1))
    with pytest.warns(UserWarning, match=r"was edited after its import.*importlib\.reload"):
        assert own_code.code(own_code.load(path)) == before


def test_a_module_of_another_working_folder_is_used_with_a_warning(module, tmp_path, monkeypatch):
    name = module("def f(op, w):\n    return w\n")
    first = own_code.load(f"{name}:f")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / f"{name}.py").write_text("def f(op, w):\n    return 2 * w\n")
    assert own_code.load(f"{name}:f") is first
    monkeypatch.chdir(tmp_path / "other")
    with pytest.warns(UserWarning, match=rf"{name} was imported from .*: restart Python to use .*other.{name}\.py"):
        assert own_code.load(f"{name}:f") is first


def test_a_module_that_was_made_without_its_package_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "no_package.made", types.SimpleNamespace(f=abs))
    assert own_code.load("no_package.made:f") is abs


SOURCE = """
from dataclasses import dataclass
import numpy as np
from ortpipe.data.rows import Rows
from ortpipe.settings import Config

@dataclass(frozen=True)
class Line(Config):
    rows: int = 8
    def __call__(self, split=None):
        x = np.arange(2.0 * self.rows).reshape(-1, 2)
        return Rows({"X": x}, x.sum(1))

@dataclass(frozen=True)
class Nothing(Config):
    def __call__(self, split=None):
        return None

@dataclass(frozen=True)
class Broken(Config):
    def __call__(self, split=None):
        return 1 / 0
"""


def test_a_data_source_by_import_path_gives_rows(module):
    sources = module(SOURCE)
    data = load(DataConfig(SOURCES[f"{sources}:Line"](rows=12)))
    assert (len(data.train), len(data.test)) == (9, 3)
    for name, message in {"Nothing": "returned a NoneType", "Broken": r"division by zero, in line \d+"}.items():
        with pytest.raises(DataError, match=message):
            load(DataConfig(SOURCES[f"{sources}:{name}"]()))
