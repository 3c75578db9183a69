"""Messages name arguments in Python, and keys on the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from sklearn.linear_model import LinearRegression

import ortpipe
from ortpipe.app.schema import RunConfig
from ortpipe.app.words import SETTINGS
from ortpipe.compat import OrtGradientForwardBackwardOptimizer, OrtGradientOptimizer, add_loss_output
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import OrtpipeError
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.settings import fields_of
from ortpipe.sklearn import OrtClassifier, OrtRegressor
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.schedules import SCHEDULES
from ortpipe.stages.train.stage import train

ROOT = Path(__file__).resolve().parents[1]
LOWER = ("graph", "autodiff", "runtime")
GROUPS = [key for key, (_, hint) in fields_of(RunConfig).items() if hint not in (int, bool, str, str | None)]
KEY = re.compile(rf"(?<![\w./`])(?:{'|'.join(GROUPS)})[./](?!(?:pkl|py|onnx)\b|[\w/]+\.py\b)[a-z_]+")


def strings(file: Path) -> dict[str, int]:
    """Return the strings of a module that are no docstrings, each with its line."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return {node.value: node.lineno for node in constants if isinstance(node.value, str)}


@pytest.mark.parametrize("room", LOWER)
def test_rooms_below_the_stages_name_no_config_key(room: str) -> None:
    files = (ROOT / "ortpipe" / room).rglob("*.py")
    found = [(file, line, text) for file in files for text, line in strings(file).items() if KEY.search(text)]
    assert not found


def test_the_command_line_has_a_word_for_all_that_lower_rooms_advise() -> None:
    rooms = (*LOWER, "stages/convert/restore")
    texts = [text for room in rooms for file in (ROOT / "ortpipe" / room).rglob("*.py") for text in strings(file)]
    advised = {name for text in texts for name in re.findall(r"\{@(\w+)[:}]", text)}
    assert advised == {*SETTINGS} - {""}


HEAD = '<ir_version: 8, opset_import: ["": 18, "my": 1]> g '
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
Y = X.sum(axis=1)
LINEAR = "(float[N,3] X) => (float[N,1] y) <float[3,1] w = {1, 2, -1}> { y = MatMul(X, w) }"
STRANGE = "(float[N,3] X) => (float[N,1] y) <float[3,1] w = {1, 2, -1}> { h = MatMul(X, w) y = my.Foo(h) }"
ROI = """(float[N,3] X) => (float[N,1] y) <float[3,3] w = {1,2,3,4,5,6,7,8,9}, float[1,5] region = {0,0,0,1,1},
 int64[4] block = {-1,1,3,1}, int64[2] flat = {-1,1}, int64[1] last = {1}>
 { h = MatMul(X, w) b = Reshape(h, block) i = MaxRoiPool<pooled_shape=[1,1]>(b, region) r = Reshape(i, flat)
   s = ReduceSum(h, last) y = Add(s, r) }"""
LOOP = """(float[3] x, int64 n) => (float[3] y) { c = Constant<value = bool {1}>()
 y = Loop(n, c, x) <body = b (int64 i, bool go, float[3] s) => (bool next, float[3] t)
 { t = Mul(s, s) z = ReduceSum(t) l = Constant<value = float {9}>() next = Less(z, l) }> }"""
UNPOOL = """(float[1,1,2,2] x, int64[1,1,2,2] at, int64[4] size) => (float[1,1,4,4] y)
 { y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, at, size) }"""
SEQUENCE = (
    """(float[3] x, int64 n, seq(float[3]) s) => (float[3] y) { e = SequenceInsert(s, x) y = SequenceAt(e, n) }"""
)
DFT = "(float[1,4,2] x) => (float[1,6,1] y) { y = DFT<inverse = 1, onesided = 1, axis = 1>(x) }"


def graph(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def path_of(text: str) -> str:
    onnx.save(graph(text), "model.onnx")
    return "model.onnx"


def rows(X: np.ndarray = X, y: np.ndarray = Y[:, None], **fields: object) -> Data:
    return Data(Rows({"X": X}, y, **fields))


def stages(text: str, data: Data, loss: str = "l2", derived: DeriveConfig | None = None, **training: object) -> None:
    """Run the stages in Python, as a notebook does."""
    artifact = convert(None, ConvertConfig(OnnxFile(path_of(text))), data=data)
    artifact = derive(add_loss(artifact, AddLossConfig(LOSSES[loss]()), data=data), derived, data=data)
    settings = {"optimizer": OPTIMIZERS["sgd"](0.1), "schedule": SCHEDULES["constant"](), **training}
    train(artifact, TrainConfig(**settings), data=data)


def fit(estimator: OrtClassifier | OrtRegressor, y: np.ndarray = Y, X: np.ndarray = X) -> None:
    estimator.fit(X, y)


CASES: dict[str, Callable[[], object]] = {
    "gradient of an unknown operator": lambda: ortpipe.gradient(graph(STRANGE), "y", "w"),
    "gradient of an operator without a rule": lambda: ortpipe.gradient(graph(ROI), "y", "X"),
    "gradient of a loop that ends when it likes": lambda: ortpipe.gradient(graph(LOOP), "y", "x"),
    "gradient of MaxUnpool with a size": lambda: ortpipe.gradient(graph(UNPOOL), "y", "x"),
    "gradient of a sequence read anywhere": lambda: ortpipe.gradient(graph(SEQUENCE), "y", "x"),
    "gradient of an inverse DFT of one half": lambda: ortpipe.gradient(graph(DFT), "y", "x"),
    "gradient of a name that is not there": lambda: ortpipe.gradient(graph(LINEAR), "z", "w"),
    "gradient of another kind": lambda: ortpipe.gradient(graph(LINEAR), "y", "w", kind="vpj"),
    "gradient with sizes of no input": lambda: ortpipe.gradient(graph(LINEAR), "y", "w", shape={"Z": [1]}),
    "gradient of no model": lambda: ortpipe.gradient(3, "y", "w"),
    "classifier: rows that no network fits": lambda: fit(OrtClassifier(epochs=1), np.repeat(["a"], 8)),
    "classifier: a loss for numbers": lambda: fit(OrtClassifier(loss="l2", epochs=1), np.arange(8) % 2),
    "classifier: an unknown loss": lambda: fit(OrtClassifier(loss="l22", epochs=1), np.arange(8) % 2),
    "classifier: too many rows per step": lambda: fit(OrtClassifier(batch_size=0), np.arange(8) % 2),
    "classifier: a model of numbers": lambda: fit(OrtClassifier(graph(STRANGE), epochs=1), np.arange(8) % 2),
    "classifier: an estimator of numbers": lambda: fit(OrtClassifier(LinearRegression(), epochs=1), np.arange(8) % 2),
    "classifier: init": lambda: fit(OrtClassifier(init="zeros", epochs=1), np.arange(8) % 2),
    "regressor: an operator without a rule": lambda: fit(OrtRegressor(graph(ROI), epochs=1)),
    "regressor: a model that lacks a file": lambda: fit(OrtRegressor("away.onnx", epochs=1)),
    "regressor: a model of other rows": lambda: fit(OrtRegressor(graph(LINEAR), epochs=1), X=X[:, :2]),
    "regressor: a rate that diverges": lambda: fit(OrtRegressor(graph(LINEAR), optimizer="sgd", learning_rate=1e30)),
    "regressor: a wrong rate": lambda: fit(OrtRegressor(learning_rate=-1.0)),
    "regressor: a penalty of no parameter": lambda: fit(OrtRegressor(penalty={"nothing": {"l2": 1.0}}, epochs=1)),
    "regressor: a loss for positive numbers": lambda: fit(OrtRegressor(loss="gamma", epochs=1)),
    "regressor: lbfgs with a schedule": lambda: fit(OrtRegressor(optimizer="lbfgs", schedule="cosine")),
    "onnxcustom: nothing to train": lambda: OrtGradientOptimizer(add_loss_output(graph(LINEAR)), [], max_iter=1).fit(
        X, Y
    ),
    "onnxcustom: an unknown weight": lambda: OrtGradientForwardBackwardOptimizer(graph(LINEAR), ["v"]).fit(X, Y),
    "onnxcustom: an unknown operator": lambda: OrtGradientForwardBackwardOptimizer(graph(STRANGE), ["w"]).fit(X, Y),
    "onnxcustom: a penalty of no parameter": lambda: add_loss_output(graph(LINEAR), penalty={"v": {"l2": 1.0}}),
    "onnxcustom: another optimizer": lambda: OrtGradientOptimizer(
        add_loss_output(graph(LINEAR)), ["w"], training_optimizer_name="Adam"
    ),
    "stages: an unknown operator": lambda: stages(STRANGE, rows()),
    "stages: an operator without a rule": lambda: stages(ROI, rows()),
    "stages: a loss for classes": lambda: stages(LINEAR, rows(), "cross_entropy"),
    "stages: nothing to train": lambda: stages(LINEAR, rows(), derived=DeriveConfig(frozen=("w",))),
    "stages: a parameter that is not there": lambda: stages(LINEAR, rows(), derived=DeriveConfig(frozen=("v",))),
    "stages: weights that the loss ignores": lambda: stages(LINEAR, rows(sample_weight=np.ones(8, np.float32))),
    "stages: rows of another width": lambda: stages(LINEAR, rows(X[:, :2])),
    "stages: labels of another width": lambda: stages(LINEAR, rows(y=np.ones((8, 2), np.float32))),
    "stages: fewer rows than a batch": lambda: stages(LINEAR, rows(), batch_size=9, drop_last=True),
    "stages: a rate that diverges": lambda: stages(LINEAR, rows(), optimizer=OPTIMIZERS["sgd"](1e30)),
    "stages: an engine that is not here": lambda: ortpipe.runtime.check_provider(RuntimeConfig(provider="cuda")),
}


@pytest.mark.parametrize("case", CASES)
def test_messages_in_python_name_no_config_key(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OrtpipeError) as error:
        CASES[case]()
    text = str(error.value)
    assert not KEY.search(text)
    assert "{" not in (error.value.rule + (error.value.fix or "")) or "={" in text
