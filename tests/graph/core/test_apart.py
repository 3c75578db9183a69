import numpy as np
import onnx.parser
import pytest

from ortpipe.graph.core.apart import put_together, serialized, take_apart
from ortpipe.graph.core.protos import LARGE_WEIGHT, sealed
from ortpipe.graph.files.serial import read, read_apart, write
from ortpipe.runtime.session import Session

TEXT = """<ir_version: 10, opset_import: ["" : 21], producer_name: "p", metadata_props: ["k": "v"]>
g (float[N, 64] X) => (float[N, 64] Y) <float[1] small = {2}> { h = MatMul(X, w)  Y = Mul(h, small) }"""
W = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


@pytest.fixture
def model():
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.insert(0, onnx.numpy_helper.from_array(W, "w"))
    model.graph.doc_string = "what stands behind the weights"
    return model


def test_a_model_apart_holds_all_but_its_large_weights_and_is_the_same_together(model):
    light, weights = take_apart(model)
    assert W.size == LARGE_WEIGHT
    assert [*weights] == ["w"]
    assert light.ByteSize() < 500
    assert put_together(light, weights) == model
    assert serialized(light, weights) == model.SerializeToString(deterministic=True)


def test_weights_apart_run_and_are_written_like_those_inside(model, tmp_path):
    light, weights = take_apart(model)
    x = W[:3]
    expected = Session(model).run({"X": x})[0]
    np.testing.assert_array_equal(Session(light, weights=weights).run({"X": x})[0], expected)
    for beside in (False, True):
        assert read(write(light, tmp_path, weights=weights, beside=beside)) == model
        back, apart = read_apart(tmp_path / "model.onnx")
        assert put_together(back, apart) == model
    assert [*apart] == ["w"]
    np.testing.assert_array_equal(Session(read(tmp_path / "model.onnx")).run({"X": x})[0], expected)


def test_only_what_somebody_could_change_is_copied():
    own = sealed(W[1:])
    assert sealed(own) is own
    assert not np.shares_memory(own, W)


def test_only_large_float_weights_are_taken_apart(model):
    model.graph.initializer.append(onnx.numpy_helper.from_array(W.astype(np.float64), "v"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(W.astype(np.int64), "whole numbers stay"))
    light, weights = take_apart(model)
    assert [*weights] == ["w", "v"]
    assert put_together(light, weights) == model
