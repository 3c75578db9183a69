"""ortpipe diff: what differs between two models or runs."""

import collections
import difflib
import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ortpipe.app.compose import Parser
from ortpipe.app.lookup import HELP, FoundModel, find
from ortpipe.graph.query import all_nodes
from ortpipe.graph.show import type_of
from ortpipe.pipeline.flatten import flatten

ABOUT = """Compare two models or runs: config, facts, graph (nodes, initializers, opset), tensors (norms, largest
difference) and metrics. The exit code is 0 whether or not they differ, as of git diff; with --exit-code it is 2 where
they differ (1 is an error, as of every command)."""
DIFFERENT = 2
MOST = 20  # lines of a part, in text
PIECE = 2**20  # numbers that are compared at once
BESIDE = ("metrics", "lineage")  # facts that are no facts about the model: metrics have a part of their own

Pair = dict[str, Any]  # the sides "a" and "b"; one that lacks it is left out


def run(arguments: Sequence[str]) -> None:
    """Print what differs."""
    parser = Parser("diff", ABOUT)
    parser.add_argument("a", metavar="A", help=HELP)
    parser.add_argument("b", metavar="B", help="likewise")
    parser.add_argument("--stage", help="of runs: the stage whose results are compared; by default the last one")
    parser.add_argument("--json", action="store_true", help="all of it, as JSON")
    parser.add_argument("--exit-code", action="store_true", help=f"exit with {DIFFERENT} where they differ")
    given = parser.read(arguments)
    a, b = (find(name, given.composed, given.stage) for name in (given.a, given.b))
    found = difference(a, b)
    differs = any(found.values())
    if given.json:
        print(json.dumps(_plain({"a": a.name, "b": b.name, "equal": not differs, **found}), indent=1))
    else:
        print("\n".join(_text(a, b, found)))
    if differs and given.exit_code:
        sys.exit(DIFFERENT)


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
    old, new = [_line(node) for node in a.graph.node], [_line(node) for node in b.graph.node]
    nodes = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            nodes += [f"- {line}" for line in old[i:j]] + [f"+ {line}" for line in new[k:m]]
    found = {
        "opsets": pairs(*({o.domain or "ai.onnx": o.version for o in m.opset_import} for m in (a, b))),
        "ir_version": {} if a.ir_version == b.ir_version else {"a": a.ir_version, "b": b.ir_version},
        "operators": pairs(*(collections.Counter(n.op_type for n in all_nodes(m.graph)) for m in (a, b))),
        "inputs": pairs(*({v.name: type_of(v) for v in m.graph.input} for m in (a, b))),
        "outputs": pairs(*({v.name: type_of(v) for v in m.graph.output} for m in (a, b))),
        "initializers": pairs(*({t.name: type_of(t) for t in m.graph.initializer} for m in (a, b))),
        "nodes": nodes,
    }
    return {part: value for part, value in found.items() if value}


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
    return {**{f"model/{name}": array for name, array in side.arrays.items()}, **side.tensors}


def _tensors(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> dict[str, Any]:
    found = {}
    for name in dict.fromkeys([*a, *b]):
        held = {side: arrays[name] for side, arrays in (("a", a), ("b", b)) if name in arrays}
        x, *_, y = [*held.values()] * 2
        both = len(held) == 2 and x.shape == y.shape
        if both and x.dtype == y.dtype and all(map(_equal, _pieces(x), _pieces(y))):
            continue
        entry: dict[str, Any] = {"types": {side: f"{array.dtype}{list(array.shape)}" for side, array in held.items()}}
        if all(array.dtype.kind in "biuf" for array in held.values()):
            entry["norms"] = {side: _norm(array) for side, array in held.items()}
            if both and x.size:
                both_sides = zip(_pieces(x), _pieces(y), strict=True)
                entry["largest"] = float(np.max([abs(p.astype("f8") - q.astype("f8")).max() for p, q in both_sides]))
        found[name] = entry
    return found


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Return an array's numbers in pieces, so that a comparison takes little beside a large one."""
    flat = array.reshape(-1)
    return (flat[i : i + PIECE] for i in range(0, flat.size, PIECE))


def _equal(x: np.ndarray, y: np.ndarray) -> bool:
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def _norm(array: np.ndarray) -> float:
    return math.sqrt(sum(float((piece.astype("f8") ** 2).sum()) for piece in _pieces(array)))


def _plain(value: Any) -> Any:
    """Return a value that JSON has: infinities and nan as text."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(a: FoundModel, b: FoundModel, found: dict[str, Any]) -> list[str]:
    lines = [f"a  {a.name}", f"b  {b.name}"]
    known = {"config": a.config and b.config, "tensors": True, "graph": True, "facts": True}
    known["metrics"] = a.facts.get("metrics") or b.facts.get("metrics")
    for part, differing in found.items():
        if not differing:
            lines.append(f"{part}: {'equal' if known[part] else 'not known of both'}")
        elif part == "graph":
            lines += ["graph:", *_graph(differing)]
        elif part == "tensors":
            lines += ["tensors:", *_cut([_tensor(name, entry) for name, entry in differing.items()])]
        else:
            lines += [f"{part}:", *_cut([f"{key}  {_pair(pair)}" for key, pair in differing.items()])]
    return lines


def _graph(parts: dict[str, Any]) -> list[str]:
    lines = []
    for part, differing in parts.items():
        if part == "ir_version":
            lines.append(f"  IR {_pair(differing)}")
        elif part == "nodes":
            lines += [f"  nodes: {len(differing)} lines", *(f"  {line}" for line in _cut(differing))]
        else:
            lines += [f"  {part}:", *(f"  {line}" for line in _cut([f"{k}  {_pair(v)}" for k, v in differing.items()]))]
    return lines


def _tensor(name: str, entry: dict[str, Any]) -> str:
    types = entry["types"]
    if len(types) == 1:
        norm = "".join(f", norm {_said(norm)}" for norm in entry.get("norms", {}).values())
        return f"{name}  {_pair(types)}{norm}"
    kind = types["a"] if types.get("a") == types.get("b") else _pair(types)
    norms = f"  norm {_pair(entry['norms'])}" if "norms" in entry else ""
    largest = f"  largest difference {_said(entry['largest'])}" if "largest" in entry else ""
    return f"{name}  {kind}{norms}{largest}"


def _pair(pair: dict[str, Any]) -> str:
    """Return both sides in words.

    >>> _pair({"a": 0.1, "b": 0.25}), _pair({"b": "float[1]"})
    ('0.1 → 0.25', 'only in b: float[1]')
    """
    if len(pair) == 1:
        [(side, value)] = pair.items()
        return f"only in {side}: {_said(value)}"
    a, b = _said(pair["a"]), _said(pair["b"])
    return f"{a} → {b}" if a != b else f"{pair['a']!r} → {pair['b']!r}"


def _said(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _cut(lines: Sequence[str]) -> list[str]:
    more = [f"  … and {len(lines) - MOST} more (see --json)"] if len(lines) > MOST else []
    return [f"  {line}" for line in lines[:MOST]] + more
