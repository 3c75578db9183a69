"""ortpipe diff: the differences between two models or runs."""

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
from ortpipe.graph import all_nodes, type_of
from ortpipe.pipeline.flatten import flatten

ABOUT = """Compare two models or runs: config, facts, graph (nodes, initializers, opset), tensors (norms,
largest difference) and metrics. The exit code is 0 whether or not they differ, as with git diff;
with --exit-code it is 2 if they differ (1 is an error, as with every command)."""
EXAMPLES = (
    "ortpipe diff first second",
    "ortpipe diff before.onnx after.onnx --exit-code",
)
DIFFERENT = 2
MAX_LINES = 20  # of a part, in text
PIECE = 2**20  # numbers that are compared at once
NOT_COMPARED_AS_FACTS = ("metrics", "lineage")  # metrics are a part of their own

Pair = dict[str, Any]  # the values of the sides "a" and "b"; a side without a value is left out


def run(arguments: Sequence[str]) -> None:
    """Print the differences."""
    parser = Parser("diff", ABOUT, EXAMPLES)
    parser.add_argument("a", metavar="A", help=HELP)
    parser.add_argument("b", metavar="B", help="the same")
    parser.add_argument("--stage", help="of a run: the stage whose result is compared; by default the last one")
    parser.add_argument("--json", action="store_true", help="print all differences as JSON")
    parser.add_argument("--exit-code", action="store_true", help=f"exit with {DIFFERENT} if they differ")
    options = parser.read(arguments)
    a, b = (find(name, options.composed, options.stage) for name in (options.a, options.b))
    differences = difference(a, b)
    differs = any(differences.values())
    if options.json:
        print(json.dumps(_to_json({"a": a.name, "b": b.name, "equal": not differs, **differences}), indent=1))
    else:
        print("\n".join(_text(a, b, differences)))
    if differs and options.exit_code:
        sys.exit(DIFFERENT)


def difference(a: FoundModel, b: FoundModel) -> dict[str, dict[str, Any]]:
    """Return the differences by part; a part that is equal is empty.

    The parts are `config` and `facts` by dotted key, `graph` (see `_graphs`), `tensors` by name (types, norms and the
    largest |a − b|; the graph's own initializers are `model/…`), and `metrics` by metric and state.
    """
    facts = [flatten({k: v for k, v in side.facts.items() if k not in NOT_COMPARED_AS_FACTS}) for side in (a, b)]
    metrics = [flatten(side.facts.get("metrics", {})) for side in (a, b)]
    return {
        "config": pairs(flatten(a.config), flatten(b.config)) if a.config and b.config else {},
        "facts": pairs(*facts),
        "graph": _graphs(a.model, b.model),
        "tensors": _tensors(_arrays(a), _arrays(b)),
        "metrics": pairs(*metrics),
    }


def pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Pair]:
    """Return the keys whose values differ, with the values of both sides.

    >>> pairs({"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0, "name": "x"})
    {'lr': {'a': 0.1, 'b': 0.2}, 'name': {'b': 'x'}}
    """
    sides = {"a": a, "b": b}
    differing_keys = [k for k in dict.fromkeys([*a, *b]) if k not in a or k not in b or not _same(a[k], b[k])]
    return {
        k: {side: side_values[k] for side, side_values in sides.items() if k in side_values} for k in differing_keys
    }


def _same(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))  # two NaNs count as equal


def _graphs(a: onnx.ModelProto, b: onnx.ModelProto) -> dict[str, Any]:
    """Return opsets, IR version, operators, inputs, outputs and initializers that differ, and nodes as +/− lines."""
    old, new = [_line(node) for node in a.graph.node], [_line(node) for node in b.graph.node]
    nodes = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            nodes += [f"- {line}" for line in old[i:j]] + [f"+ {line}" for line in new[k:m]]
    differences = {
        "opsets": pairs(*({o.domain or "ai.onnx": o.version for o in m.opset_import} for m in (a, b))),
        "ir_version": {} if a.ir_version == b.ir_version else {"a": a.ir_version, "b": b.ir_version},
        "operators": pairs(*(collections.Counter(n.op_type for n in all_nodes(m.graph)) for m in (a, b))),
        "inputs": pairs(*({v.name: type_of(v) for v in m.graph.input} for m in (a, b))),
        "outputs": pairs(*({v.name: type_of(v) for v in m.graph.output} for m in (a, b))),
        "initializers": pairs(*({t.name: type_of(t) for t in m.graph.initializer} for m in (a, b))),
        "nodes": nodes,
    }
    return {part: value for part, value in differences.items() if value}


def _line(node: onnx.NodeProto) -> str:
    """Return a node as one line, with the first letters of their sha256 for tensors and subgraphs."""
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
    differences = {}
    for name in dict.fromkeys([*a, *b]):
        arrays_by_side = {side: arrays[name] for side, arrays in (("a", a), ("b", b)) if name in arrays}
        x, *_, y = [*arrays_by_side.values()] * 2
        comparable = len(arrays_by_side) == 2 and x.shape == y.shape
        if comparable and x.dtype == y.dtype and all(map(_equal, _pieces(x), _pieces(y))):
            continue
        entry: dict[str, Any] = {
            "types": {side: f"{array.dtype}{list(array.shape)}" for side, array in arrays_by_side.items()}
        }
        if all(array.dtype.kind in "biuf" for array in arrays_by_side.values()):
            entry["norms"] = {side: _norm(array) for side, array in arrays_by_side.items()}
            if comparable and x.size:
                both_sides = zip(_pieces(x), _pieces(y), strict=True)
                entry["largest"] = float(np.max([abs(p.astype("f8") - q.astype("f8")).max() for p, q in both_sides]))
        differences[name] = entry
    return differences


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Return an array's numbers in pieces: comparing a large one then takes little memory."""
    flat = array.reshape(-1)
    return (flat[i : i + PIECE] for i in range(0, flat.size, PIECE))


def _equal(x: np.ndarray, y: np.ndarray) -> bool:
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def _norm(array: np.ndarray) -> float:
    return math.sqrt(sum(float((piece.astype("f8") ** 2).sum()) for piece in _pieces(array)))


def _to_json(value: Any) -> Any:
    """Return a value that standard JSON can hold: infinities and NaN become text."""
    if isinstance(value, dict):
        return {key: _to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(a: FoundModel, b: FoundModel, differences: dict[str, Any]) -> list[str]:
    lines = [f"a  {a.name}", f"b  {b.name}"]
    available = {"config": a.config and b.config, "tensors": True, "graph": True, "facts": True}
    available["metrics"] = a.facts.get("metrics") or b.facts.get("metrics")
    for part, differing in differences.items():
        if not differing:
            lines.append(f"{part}: {'equal' if available[part] else 'not available for both'}")
        elif part == "graph":
            lines += ["graph:", *_graph(differing)]
        elif part == "tensors":
            lines += ["tensors:", *_first_lines([_tensor(name, entry) for name, entry in differing.items()])]
        else:
            lines += [f"{part}:", *_first_lines([f"{key}  {_pair(pair)}" for key, pair in differing.items()])]
    return lines


def _graph(parts: dict[str, Any]) -> list[str]:
    lines = []
    for part, differing in parts.items():
        if part == "ir_version":
            lines.append(f"  IR {_pair(differing)}")
        elif part == "nodes":
            lines += [f"  nodes: {len(differing)} lines", *(f"  {line}" for line in _first_lines(differing))]
        else:
            shown = _first_lines([f"{k}  {_pair(v)}" for k, v in differing.items()])
            lines += [f"  {part}:", *(f"  {line}" for line in shown)]
    return lines


def _tensor(name: str, entry: dict[str, Any]) -> str:
    types = entry["types"]
    if len(types) == 1:
        norm = "".join(f", norm {_text_of(norm)}" for norm in entry.get("norms", {}).values())
        return f"{name}  {_pair(types)}{norm}"
    kind = types["a"] if types.get("a") == types.get("b") else _pair(types)
    norms = f"  norm {_pair(entry['norms'])}" if "norms" in entry else ""
    largest = f"  largest difference {_text_of(entry['largest'])}" if "largest" in entry else ""
    return f"{name}  {kind}{norms}{largest}"


def _pair(pair: dict[str, Any]) -> str:
    """Return both sides as text.

    >>> _pair({"a": 0.1, "b": 0.25}), _pair({"b": "float[1]"})
    ('0.1 → 0.25', 'only in b: float[1]')
    """
    if len(pair) == 1:
        [(side, value)] = pair.items()
        return f"only in {side}: {_text_of(value)}"
    a, b = _text_of(pair["a"]), _text_of(pair["b"])
    return f"{a} → {b}" if a != b else f"{pair['a']!r} → {pair['b']!r}"


def _text_of(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _first_lines(lines: Sequence[str]) -> list[str]:
    more = [f"  … and {len(lines) - MAX_LINES} more (see --json)"] if len(lines) > MAX_LINES else []
    return [f"  {line}" for line in lines[:MAX_LINES]] + more
