"""ortpipe diff: what differs between two models or runs."""

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from ortpipe.app.compose import Parser
from ortpipe.app.difference import difference
from ortpipe.app.model_lookup import HELP, FoundModel, find

ABOUT = """Compare two models or runs: config, facts, graph (nodes, initializers, opset), tensors (norms, largest
difference) and metrics. The exit code is 0 whether or not they differ, as of git diff; with --exit-code it is 2 where
they differ (1 is an error, as of every command)."""
DIFFERENT = 2
MOST = 20  # lines of a part, in text


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
