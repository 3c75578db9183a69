"""What follows from the data alone runs once, in front of training: the results are those of features made before."""

import numpy as np
import onnx_ir as ir
import pandas as pd
import pytest
from onnx import parser

from ortpipe import Rows, SplitConfig, add_loss, convert, derive, split, train
from ortpipe.data.feeds import feeds
from ortpipe.data.sources.parquet import Parquet
from ortpipe.errors import TrainError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.types import IR_VERSION, OPSET
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.convert.sources.networks.columns import features
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines.ort import Ort
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers.adam import Adam
from ortpipe.stages.train.optimizers.lbfgs import LBFGS
from ortpipe.stages.train.preprocessing import without_preprocessing

RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RANDOM.normal(40, 10, 300),
        "city": RANDOM.choice(["Łódź", "Rome", "Oslo"], 300),
        "day": pd.to_datetime("2013-01-01") + pd.to_timedelta(RANDOM.integers(0, 9000, 300), unit="h"),
        "y": RANDOM.normal(size=300),
    }
)
FRAME.loc[[3, 7], "age"] = np.nan


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return a function from whether they stream to the rows of a table with words, dates and gaps."""
    path = tmp_path_factory.mktemp("front") / "rows.parquet"
    FRAME.to_parquet(path, row_group_size=70)
    config = SplitConfig(test=0.2, validation=0.2)
    return lambda stream: split(Parquet(path=str(path), label="y", stream=stream)(), config)


def fed(rows):
    return {name: a.astype(np.float32) if a.dtype.kind == "f" else a for name, a in rows.inputs.items()}


def network(x, codes):
    """Write a linear model of numbers and of an embedding of words."""
    op = Builder(x.graph or codes.graph, "network")
    random = np.random.default_rng(1)
    parts = [x, op.Gather(op.parameter("embedding", random.normal(size=(4, 3)).astype(np.float32)), codes)]
    weight = op.parameter("weight", random.normal(size=(x.shape[1] + 3, 1)).astype(np.float32))
    return op.Gemm(op.Concat(*parts, axis=1), weight, op.parameter("bias", np.zeros(1, np.float32)))


def whole(data):
    """Return the model of raw columns, and the session of its features."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="whole")
    op = Builder(graph, "columns")
    with op.formulas():
        made = features(op, data.train.sample(), np.dtype(np.float32))
    y = network(made.numbers, made.words["city"])
    graph.outputs.append(Builder(graph, "y").rename(y, "y"))
    ahead = ir.Model(graph, ir_version=IR_VERSION).clone()
    names = [made.numbers.name, made.words["city"].name]
    ahead.graph.outputs[:] = [next(v for n in ahead.graph for v in n.outputs if v.name == name) for name in names]
    return ir.to_proto(ir.Model(graph, ir_version=IR_VERSION)), Session(ir.to_proto(ahead))


def precomputed(data, session):
    """Return the data with features in the place of raw columns, and the model of these."""

    def of(rows):
        numbers, codes = session.run(fed(rows))
        return Rows({"numbers": numbers, "codes": codes}, rows.label)

    made = type(data)(*(of(part.sample()) for part in (data.train, data.validation, data.test)))
    width = made.train.inputs["numbers"].shape[1]
    inputs = [ir.val("numbers", ir.DataType.FLOAT, ["N", width]), ir.val("codes", ir.DataType.INT64, ["N"])]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": OPSET}, name="behind")
    graph.outputs.append(Builder(graph, "y").rename(network(*inputs), "y"))
    return made, ir.to_proto(ir.Model(graph, ir_version=IR_VERSION))


def trained(model, data, optimizer):
    config = TrainConfig(optimizer=optimizer, epochs=3, batch_size=32, early_stop=EarlyStopConfig(patience=5))
    gradient = derive(add_loss(convert(model, data=data), AddLossConfig(loss=L2())))
    return train(gradient, config, data=data), gradient


def rest_of(gradient, data):
    return without_preprocessing(gradient, data.train, lambda rows: feeds(gradient.model, gradient.facts, rows), None)


@pytest.mark.parametrize("optimizer", [Adam(), LBFGS()], ids=["adam", "lbfgs"])
def test_training_is_that_on_features_made_before_bit_for_bit(optimizer, rows):
    data = rows(stream=False)
    model, session = whole(data)
    ours, gradient = trained(model, data, optimizer)
    features_of, plain = precomputed(data, session)
    theirs, _ = trained(plain, features_of, optimizer)
    for name, array in theirs.tensors.items():
        np.testing.assert_array_equal(ours.tensors[name], array, name)
    [y] = Session(ours.model).run(fed(data.test), ["y"])
    np.testing.assert_array_equal(y, Session(theirs.model).run(features_of.test.inputs, ["y"])[0])
    rest, _ = rest_of(gradient, data)
    assert {i.name for i in rest.ir_model().graph.inputs}.isdisjoint(FRAME)
    assert not any(node.domain or node.op_type.startswith("String") for node in rest.ir_model().graph)


def test_streaming_changes_no_number(rows):
    held, streamed = rows(stream=False), rows(stream=True)
    assert streamed.train.on_disk
    model, _ = whole(held)
    (ours, _), (theirs, _) = (trained(model, data, Adam()) for data in (held, streamed))
    for name, array in theirs.tensors.items():
        np.testing.assert_array_equal(ours.tensors[name], array, name)


CODES = (
    '<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]> g (string[N] city) => (float[N, 1] y) '
    "<float[1, 1] w = {2.0}, int64 zero = {0}, int64[1] one = {1}> { {text}"
    '  code = ai.onnx.ml.LabelEncoder <keys_strings = ["Oslo", "Rome"], values_floats = [1.0, 2.0]> (city_of)'
    "  x = Unsqueeze (code, one)  mean = ReduceMean <keepdims = 1> (x)  shifted = Sub (x, mean)"
    "  along = CumSum (shifted, zero)  y = MatMul (along, w) }"
)


def gradient_of(text, data):
    model = parser.parse_model(CODES.replace("{text}", text))
    return derive(add_loss(convert(model, data=data), AddLossConfig(loss=L2())))


def test_what_mixes_rows_stays_with_the_batches_that_it_mixes(rows):
    data = rows(stream=False)
    rest, feed = rest_of(gradient_of("city_of = Identity (city)", data), data)
    assert rest.facts.inputs == ("x",)
    np.testing.assert_array_equal(np.unique(feed(data.train)["x"]), [-0.0, 1, 2])
    assert {"ReduceMean", "CumSum"} <= {node.op_type for node in rest.ir_model().graph}


def test_text_that_is_read_across_rows_is_refused_by_name(rows):
    data = rows(stream=False)
    text = "last = Gather (city, zero)  all = Shape (city)  city_of = Expand (last, all)"
    with pytest.raises(TrainError, match=r"'city', which Gather at node"):
        rest_of(gradient_of(text, data), data)


def test_gradients_of_the_runtime_have_the_same_front(rows, training_build):
    data = rows(stream=False)
    model, session = whole(data)
    loss = add_loss(convert(model, data=data), AddLossConfig(loss=L2()))
    rest, feed = rest_of(derive(loss, DeriveConfig(engine=Ort())), data)
    assert set(rest.facts.inputs).isdisjoint(FRAME)
    made = {array.shape: array for array in feed(data.test).values()}
    for array in session.run(fed(data.test)):
        np.testing.assert_array_equal(made[array.shape], array)
