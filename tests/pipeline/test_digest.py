import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.data.split import split
from ortpipe.errors import ConfigError
from ortpipe.flow import FLOW
from ortpipe.pipeline.digest import identity, key_of, parts_of
from ortpipe.pipeline.plan import Step
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses.l1 import L1
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator
from ortpipe.stages.train.config import CheckpointConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS

CONVERT, ADD_LOSS, _, DERIVE, TRAIN, _ = FLOW


def key(stage, config, given="0" * 64, **context):
    known = {"data": None, "runtime": RuntimeConfig(), "start": None, "report": None} | context
    return key_of(parts_of(Step(stage, config), given, known))


BASE = TrainConfig()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"seed": 1}, False),
        ({"epochs": 51}, False),
        ({"optimizer": OPTIMIZERS["adam"]()}, False),
        ({"optimizer": OPTIMIZERS["sgd"](lr=0.5)}, False),
        ({"factors": {"a": 0.5}}, False),
        ({"checkpoint": CheckpointConfig(epochs=1)}, True),
        ({"optimizer": OPTIMIZERS["sgd"]()}, True),  # its default, written out
    ],
    ids=str,
)
def test_a_key_differs_where_a_result_can_differ(change, same):
    assert (key(TRAIN, dataclasses.replace(BASE, **change)) == key(TRAIN, BASE)) is same


def test_two_members_of_a_catalogue_with_equal_fields_have_different_keys():
    assert dataclasses.fields(L1) == dataclasses.fields(L2) == ()
    assert key(ADD_LOSS, AddLossConfig(L1())) != key(ADD_LOSS, AddLossConfig(L2()))


def test_a_key_differs_by_input_data_provider_threads_version_and_packages(monkeypatch):
    rows = Rows({"X": np.eye(8)}, np.arange(8.0))
    data, other = split(rows, SplitConfig(seed=0)), split(rows, SplitConfig(seed=1))
    monkeypatch.setattr("ortpipe.stages.train.config.VERSION", 99)
    later = key(TRAIN, BASE, data=data)
    monkeypatch.undo()
    monkeypatch.setattr("ortpipe.pipeline.digest._version", lambda name: "0.0")
    elsewhere = key(TRAIN, BASE, data=data)
    monkeypatch.undo()
    keys = [
        key(TRAIN, BASE, data=data),
        key(TRAIN, BASE, data=data, given="1" * 64),
        key(TRAIN, BASE, data=other),
        key(TRAIN, BASE, data=data, runtime=RuntimeConfig(threads=2)),
        key(TRAIN, BASE, data=data, runtime=RuntimeConfig(provider="cuda")),
        later,
        elsewhere,
    ]
    assert len(set(keys)) == len(keys)
    assert key(TRAIN, BASE, data=data, start="a checkpoint") == keys[0]


def test_another_engine_is_part_of_the_key_with_its_version_and_the_default_is_none(monkeypatch):
    rows = Rows({"X": np.eye(8)}, np.arange(8.0))
    data, xla = split(rows, SplitConfig()), RuntimeConfig(engine="xla")
    assert identity(RuntimeConfig()) == {"threads": 1, "provider": "cpu"}
    keys = [key(TRAIN, BASE, data=data), key(TRAIN, BASE, data=data, runtime=xla)]
    monkeypatch.setattr("ortpipe.pipeline.digest._version", lambda name: "9" if name.startswith("jax") else "0")
    keys += [key(TRAIN, BASE, data=data), key(TRAIN, BASE, data=data, runtime=xla)]
    assert len({*keys}) == 4


def test_derive_does_not_depend_on_rows():
    assert "data" not in parts_of(Step(DERIVE, None), None, {"data": "rows"})


def model(path, value, external=False):
    node = helper.make_node("MatMul", ["X", "w"], ["Y"])
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 300])]
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", 1])]
    weight = onnx.numpy_helper.from_array(np.full((300, 1), value, np.float32), "w")
    made = helper.make_model(helper.make_graph([node], "g", inputs, outputs, [weight]))
    onnx.save(made, path, save_as_external_data=external, location=f"{path.name}.data", size_threshold=0)
    return str(path)


@pytest.mark.parametrize("external", [False, True])
def test_a_file_is_known_by_its_content_and_not_by_its_path(tmp_path, external):
    path = model(tmp_path / "a.onnx", 1.0, external)
    before = key(CONVERT, ConvertConfig(OnnxFile(path)), None)
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "b.onnx"
    for file in tmp_path.glob("a.onnx*"):
        (tmp_path / "elsewhere" / (file.name if file.suffix == ".data" else copy.name)).write_bytes(file.read_bytes())
    assert key(CONVERT, ConvertConfig(OnnxFile(str(copy))), None) == before
    changed = copy.with_name("a.onnx.data") if external else copy
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    assert key(CONVERT, ConvertConfig(OnnxFile(str(copy))), None) != before


def test_a_pickle_that_is_not_trusted_is_not_the_one_that_was(tmp_path):
    path = tmp_path / "a.pkl"
    path.write_bytes(b"some bytes")
    said = [identity(SklearnEstimator(path=str(path), trust=trust)) for trust in (True, False)]
    assert said[0] != said[1]
    assert said[0]["files"] == said[1]["files"] != []
    assert not any("a.pkl" in str(one) for one in said)


def test_every_stage_of_the_flow_names_packages_that_are_installed():
    from ortpipe.pipeline.digest import versions

    for stage in FLOW:
        assert set(stage.packages) - set(versions(stage.packages)) <= {"onnxruntime-training", "onnxruntime"}


def test_the_order_of_globs_is_part_of_the_key():
    """The last that matches counts."""
    one, other = {"*": 0.1, "layer0.weight": 1.0}, {"layer0.weight": 1.0, "*": 0.1}
    assert key(TRAIN, dataclasses.replace(BASE, factors=one)) != key(TRAIN, dataclasses.replace(BASE, factors=other))


def ridge(**params):
    return key(CONVERT, ConvertConfig(SklearnEstimator("sklearn.linear_model.Ridge", params=params)), None)


def test_parameters_of_every_plain_kind_have_keys_of_their_own():
    values = [
        1,
        1.0,
        True,
        "1",
        None,
        [1],
        {"a": 1},
        {1: 1},
        {"1": 1},
        np.int64(1),
        np.float32(1),
        np.ones(1),
        -0.0,
        0.0,
    ]
    values += [float("nan"), float("inf"), float("-inf"), [[1, None], {"b": (2,)}]]
    keys = [ridge(alpha=value) for value in values]
    assert len(set(keys)) == len(keys)
    assert keys == [ridge(alpha=value) for value in values]
    assert ridge(alpha=(1, 2)) == ridge(alpha=[1, 2])
    assert ridge(alpha=np.float64(0.1)) == ridge(alpha=0.1)


def test_a_parameter_whose_content_cannot_be_told_is_refused():
    with pytest.raises(ConfigError, match=r"got: RandomState.*\(RandomState\)"):
        ridge(random_state=np.random.RandomState(0))
