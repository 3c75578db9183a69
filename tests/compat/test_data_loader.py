from __future__ import annotations

import pickle

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from ortpipe.compat import OrtDataLoader, ort_device_to_string
from ortpipe.errors import ConfigError, DataError

X = np.arange(46.0).reshape(23, 2)
Y = np.arange(23.0)


@pytest.mark.parametrize("random_iter", [True, False])
@pytest.mark.parametrize("batch_size", [1, 5, 22, 23, 100, 0])
def test_every_row_comes_once_a_pass(batch_size, random_iter):
    loader = OrtDataLoader(X, Y, 2 * Y, batch_size=batch_size, random_iter=random_iter)
    for _ in range(2):
        batches = list(loader.iter_numpy())
        x, y, w = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        assert sorted(y.ravel()) == Y.tolist()
        np.testing.assert_array_equal(x[:, 0], 2 * y.ravel())
        np.testing.assert_array_equal(w, 2 * y.ravel())
        assert random_iter or y.ravel().tolist() == Y.tolist()
        size = batch_size or 23
        assert [len(b[0]) for b in batches] == [min(size, 23 - i) for i in range(0, 23, size)]


def test_passes_differ_and_two_loaders_agree():
    one, two = OrtDataLoader(X, Y), OrtDataLoader(X, Y)
    first, second = (np.concatenate([b[1] for b in one.iter_numpy()]) for _ in range(2))
    assert (first != second).any()
    np.testing.assert_array_equal(first, np.concatenate([b[1] for b in two.iter_numpy()]))


def test_labels_of_several_columns_keep_them():
    labels = np.arange(69).reshape(23, 3)
    loader = OrtDataLoader(X, labels, batch_size=10, random_iter=False)
    np.testing.assert_array_equal(np.concatenate([y for _, y in loader.iter_numpy()]), labels)
    assert loader.desc == [((23, 2), np.dtype(float)), ((23, 3), labels.dtype)]


def test_ort_values_hold_the_same_rows_and_stay():
    loader = OrtDataLoader(X, Y, batch_size=5, random_iter=False)
    values = list(loader.iter_ortvalue())
    assert [x.shape()[0] for x, _ in values] == [5, 5, 5, 5, 3]
    np.testing.assert_array_equal(np.concatenate([x.numpy() for x, _ in values]), X)
    np.testing.assert_array_equal(loader.data_ort[1].numpy().ravel(), Y)


def test_batches_are_bound_to_a_session():
    text = '<ir_version: 10, opset_import: ["": 21]> g (double[N,2] X, double[N,1] label) => (double s) '
    model = onnx.parser.parse_model(text + "{ p = Mul(X, label) s = ReduceSum<keepdims=0>(p) }")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    bind, total, rows = session.io_binding(), 0.0, 0
    bind.bind_output("s")
    for count in OrtDataLoader(X, Y, batch_size=4).iter_bind(bind, ["X", "label", "rate"]):
        session.run_with_iobinding(bind)
        total += float(bind.copy_outputs_to_cpu()[0])
        rows += count
    assert rows == 23
    assert total == pytest.approx((X * Y[:, None]).sum())
    with pytest.raises(DataError, match="needs an input"):
        next(OrtDataLoader(X, Y).iter_bind(bind, ["X"]))


def test_a_loader_is_pickled_and_shown():
    loader = pickle.loads(pickle.dumps(OrtDataLoader(X, Y, batch_size=5)))
    assert len(loader) == 23
    assert repr(loader) == "OrtDataLoader(..., ..., batch_size=5, device='cpu')"


def test_a_loader_has_its_arrays_and_its_device_as_objects_of_the_runtime():
    loader = OrtDataLoader(X, Y, 2 * Y)
    assert [value.shape() for value in (loader.X_ort, loader.y_ort, loader.w_ort)] == [[23, 2], [23, 1], [23]]
    np.testing.assert_array_equal(loader.y_ort.numpy(), Y.reshape(-1, 1))
    assert OrtDataLoader(X, Y).w_ort is None
    assert ort_device_to_string(loader.device) == "cpu"


def test_other_devices_and_ragged_arrays_are_refused():
    with pytest.raises(ConfigError, match="device must be"):
        OrtDataLoader(X, Y, device="cpu2")
    with pytest.raises(DataError, match="one entry per row"):
        OrtDataLoader(X, Y[:-1])
