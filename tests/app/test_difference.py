"""What differs between two models, part by part."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ortpipe.app.commands.diff import difference
from ortpipe.app.lookup import FoundModel

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[N, 3] X) => (float[N, 1] y)
  <float[3, 1] w = {1, 2, 3}> { h = MatMul(X, w) y = Softmax <axis = 1> (h) }"""
CONFIG = {"train": {"optimizer": {"lr": 0.1}, "epochs": 2}, "seed": 0}


def subject(text: str = TEXT, **others: object) -> FoundModel:
    return FoundModel(
        "x", onnx.parser.parse_model(text), {}, **{"facts": {"task": "regression"}, "config": CONFIG, **others}
    )


def parts(**found: object) -> dict[str, object]:
    return {"config": {}, "facts": {}, "graph": {}, "tensors": {}, "metrics": {}, **found}


def test_a_model_does_not_differ_from_itself() -> None:
    state = {"w": np.array([np.nan, np.inf]), "names": np.array(["a", "b"])}
    facts = {"metrics": {"r2": {"trained": float("nan")}}}
    assert difference(subject(tensors=state, facts=facts), subject(tensors=state, facts=facts)) == parts()


def test_configs_differ_by_flat_keys() -> None:
    other = {"train": {"optimizer": {"lr": 0.2, "beta": 0.9}, "epochs": 2}}
    found = difference(subject(), subject(config=other))["config"]
    assert found == {"train.optimizer.lr": {"a": 0.1, "b": 0.2}, "seed": {"a": 0}, "train.optimizer.beta": {"b": 0.9}}


def test_nothing_is_said_of_a_config_that_one_side_does_not_have() -> None:
    assert difference(subject(), subject(config={}))["config"] == {}


@pytest.mark.parametrize(
    ("old", "new", "graph"),
    [
        ('"": 21', '"": 20', {"opsets": {"ai.onnx": {"a": 21, "b": 20}}}),
        ("ir_version: 10", "ir_version: 9", {"ir_version": {"a": 10, "b": 9}}),
        ("axis = 1", "axis = 0", {"nodes": ["- y = Softmax(h, axis=1)", "+ y = Softmax(h, axis=0)"]}),
        (
            "y = Softmax <axis = 1> (h)",
            "y = Relu(h)",
            {
                "operators": {"Softmax": {"a": 1}, "Relu": {"b": 1}},
                "nodes": ["- y = Softmax(h, axis=1)", "+ y = Relu(h)"],
            },
        ),
        ("float[N, 3] X", "float[M, 3] X", {"inputs": {"X": {"a": "float[N, 3]", "b": "float[M, 3]"}}}),
        ("float[N, 1] y", "float[N, 2] y", {"outputs": {"y": {"a": "float[N, 1]", "b": "float[N, 2]"}}}),
    ],
)
def test_graphs_differ_by_part(old: str, new: str, graph: dict[str, object]) -> None:
    assert difference(subject(), subject(TEXT.replace(old, new))) == parts(graph=graph)


def test_constants_of_other_values_are_other_nodes() -> None:
    text = TEXT.replace("h = MatMul(X, w)", "c = Constant <value = float[1] {1}> () h = MatMul(X, w)")
    found = difference(subject(text), subject(text.replace("float[1] {1}", "float[1] {2}")))
    assert [line[:16] for line in found["graph"]["nodes"]] == ["- c = Constant(v", "+ c = Constant(v"]


def test_tensors_differ_by_norm_and_largest_difference() -> None:
    found = difference(subject(), subject(TEXT.replace("{1, 2, 3}", "{1, 2, 7}")))
    assert list(found["tensors"]) == ["model/w"]
    entry = found["tensors"]["model/w"]
    assert entry["types"] == {"a": "float32[3, 1]", "b": "float32[3, 1]"}
    assert entry["norms"] == {"a": pytest.approx(14**0.5), "b": pytest.approx(54**0.5)}
    assert entry["largest"] == 4.0


def test_tensors_of_other_shapes_or_types_have_no_largest_difference() -> None:
    states = [np.ones(2, np.float32), np.ones(3, np.float32), np.array(["a", "b"])]
    first, longer, words = (subject(tensors={"s": state}) for state in states)
    assert difference(first, longer)["tensors"]["s"]["norms"] == {
        "a": pytest.approx(2**0.5),
        "b": pytest.approx(3**0.5),
    }
    assert "largest" not in difference(first, longer)["tensors"]["s"]
    assert set(difference(first, words)["tensors"]["s"]) == {"types"}


def test_a_tensor_of_another_type_differs_though_its_values_are_equal() -> None:
    a, b = (subject(tensors={"s": np.ones(2, kind)}) for kind in ("f4", "f8"))
    assert difference(a, b)["tensors"]["s"]["largest"] == 0.0


def test_facts_and_metrics_have_parts_of_their_own() -> None:
    a, b = (
        subject(facts={"task": task, "metrics": {"r2": {"trained": value}}, "lineage": [value]})
        for task, value in (("binary", 0.5), ("regression", 0.75))
    )
    facts, metrics = {"task": {"a": "binary", "b": "regression"}}, {"r2.trained": {"a": 0.5, "b": 0.75}}
    assert difference(a, b) == parts(facts=facts, metrics=metrics)
