import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from graph.core.nested import FEEDS, extract, io, nested, run

from ortpipe.graph.core.check import finish
from ortpipe.graph.core.edit import open_initializers, set_initializers
from ortpipe.runtime.session import Session


@pytest.fixture
def model():
    return nested()


@pytest.mark.parametrize(
    ("outputs", "inputs", "weights"),
    [
        (["Y"], ["X"], {"w", "b"}),
        (["loss"], ["X", "label"], {"w", "b"}),
        (["h"], ["X"], {"w"}),
        (["Y", "loss"], ["X", "label"], {"w", "b"}),
        (["chosen"], ["X", "flag"], {"w", "b", "deep"}),
    ],
)
def test_the_extracted_part_reads_what_it_needs_and_computes_the_same(model, outputs, inputs, weights):
    part = extract(model, outputs)
    assert io(part) == (inputs, outputs)
    assert {t.name for t in part.graph.initializer} == weights
    for one, whole in zip(run(part, *outputs), run(model, *outputs) if "h" not in outputs else [None], strict=True):
        np.testing.assert_array_equal(one, whole if whole is not None else FEEDS["X"] @ [[1], [2], [3]])


def test_extracting_what_is_not_there_is_a_key_error(model):
    with pytest.raises(KeyError, match="nope"):
        extract(model, ["nope"])


def test_parameters_are_replaced_and_are_inputs_no_more(model):
    part = extract(model, ["Y"])
    part.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 1]))
    new = ir.from_proto(part)
    set_initializers(new, {"w": np.full((3, 1), 2), "nobody": np.ones(2)})
    new = finish(new)
    assert io(new) == (["X"], ["Y"])
    np.testing.assert_array_equal(run(new, "Y")[0], FEEDS["X"].sum(axis=1, keepdims=True) * 2 + 0.5)


def test_an_opened_initializer_may_be_fed(model):
    part = ir.from_proto(extract(model, ["Y"]))
    for _ in range(2):  # what is open stays so
        open_initializers(part, ["w"])
    proto = finish(part)
    assert io(proto)[0] == ["X", "w"]
    session = Session(proto)
    [y], [fed] = session.run({"X": FEEDS["X"]}), session.run({"X": FEEDS["X"], "w": np.zeros((3, 1), np.float32)})
    assert y.any()
    np.testing.assert_array_equal(fed, np.full((2, 1), 0.5, np.float32))
