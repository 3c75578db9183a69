"""What differs between two models, with their configs, facts, graphs, tensors and metrics, as data."""

import collections
import difflib
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from ortpipe.app.model_lookup import FoundModel
from ortpipe.graph.query import all_nodes
from ortpipe.graph.show import type_of
from ortpipe.pipeline.flatten import flatten

Pair = dict[str, Any]  # the sides "a" and "b"; one that lacks it is left out
BESIDE = ("metrics", "lineage")  # facts that are no facts about the model: metrics have a part of their own


def difference(a: FoundModel, b: FoundModel) -> dict[str, dict[str, Any]]:
    """Return what differs, by part; a part that is equal is empty.

    The parts are `config` and `facts` by dotted key, `graph` (see `_graphs`), `tensors` by name (types, norms and the
    largest |a − b|; the graph's own initializers are `model/…`), and `metrics` by metric and state.
    """
    facts = [flatten({k: v for k, v in side.facts.items() if k not in BESIDE}) for side in (a, b)]
    metrics = [flatten(side.facts.get("metrics", {})) for side in (a, b)]
    return {
        "config": pairs(flatten(a.config), flatten(b.config)) if a.config and b.config else {},
        "facts": pairs(*facts),
        "graph": _graphs(a.model, b.model),
        "tensors": _tensors(_arrays(a), _arrays(b)),
        "metrics": pairs(*metrics),
    }


def pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Pair]:
    """Return the keys whose values differ, with both of them.

    >>> pairs({"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0, "name": "x"})
    {'lr': {'a': 0.1, 'b': 0.2}, 'name': {'b': 'x'}}
    """
    sides = {"a": a, "b": b}
    differing = [k for k in dict.fromkeys([*a, *b]) if k not in a or k not in b or not _same(a[k], b[k])]
    return {k: {side: held[k] for side, held in sides.items() if k in held} for k in differing}


def _same(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))  # nan is nan here


def _graphs(a: onnx.ModelProto, b: onnx.ModelProto) -> dict[str, Any]:
    """Return opsets, IR version, operators, inputs, outputs and initializers that differ, and nodes as +/− lines."""
    found = {
        "opsets": pairs(*({o.domain or "ai.onnx": o.version for o in m.opset_import} for m in (a, b))),
        "ir_version": {} if a.ir_version == b.ir_version else {"a": a.ir_version, "b": b.ir_version},
        "operators": pairs(*(collections.Counter(n.op_type for n in all_nodes(m.graph)) for m in (a, b))),
        "inputs": pairs(*({v.name: type_of(v) for v in m.graph.input} for m in (a, b))),
        "outputs": pairs(*({v.name: type_of(v) for v in m.graph.output} for m in (a, b))),
        "initializers": pairs(*({t.name: type_of(t) for t in m.graph.initializer} for m in (a, b))),
        "nodes": _nodes(a.graph, b.graph),
    }
    return {part: value for part, value in found.items() if value}


def _nodes(a: onnx.GraphProto, b: onnx.GraphProto) -> list[str]:
    old, new = [_line(node) for node in a.node], [_line(node) for node in b.node]
    lines = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            lines += [f"- {line}" for line in old[i:j]] + [f"+ {line}" for line in new[k:m]]
    return lines


def _line(node: onnx.NodeProto) -> str:
    """Return a node as one line; tensors and subgraphs stand as the beginning of their sha256."""
    values = []
    for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
        value = onnx.helper.get_attribute_value(attribute)
        if not isinstance(value, int | float | bytes | list) or attribute.graphs or attribute.tensors:
            value = hashlib.sha256(attribute.SerializeToString(deterministic=True)).hexdigest()[:8]
        values.append(f"{attribute.name}={value.decode() if isinstance(value, bytes) else value}")
    return f"{', '.join(node.output)} = {node.op_type}({', '.join([*node.input, *values])})"


def _arrays(side: FoundModel) -> dict[str, np.ndarray]:
    own = {f"model/{t.name}": onnx.numpy_helper.to_array(t) for t in side.model.graph.initializer}
    return {**own, **side.tensors}


def _tensors(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> dict[str, Any]:
    found = {}
    for name in dict.fromkeys([*a, *b]):
        held = {side: arrays[name] for side, arrays in (("a", a), ("b", b)) if name in arrays}
        if len(held) == 2 and _equal(held["a"], held["b"]):
            continue
        entry: dict[str, Any] = {"types": {side: f"{x.dtype}{list(x.shape)}" for side, x in held.items()}}
        if all(x.dtype.kind in "biuf" for x in held.values()):
            entry["norms"] = {side: float((x.astype("f8") ** 2).sum() ** 0.5) for side, x in held.items()}
            if len(held) == 2 and held["a"].shape == held["b"].shape and held["a"].size:
                entry["largest"] = float(abs(held["a"].astype("f8") - held["b"].astype("f8")).max())
        found[name] = entry
    return found


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    same = a.dtype == b.dtype and a.shape == b.shape
    return bool(same and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
