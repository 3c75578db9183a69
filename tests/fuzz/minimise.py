"""A smaller graph that fails in the same way, and how it is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from fuzz.draw import Case, reach
from fuzz.judge import Outcome
from fuzz.reference import Reference, as_double
from fuzz.sketch import read_by

TRIALS = 100


def minimised(case: Case, judge: Callable[[Case], Outcome]) -> tuple[Case, Outcome]:
    """Return a case with as few outputs and nodes as still end in the same outcome."""
    outcome, left, smaller = judge(case), TRIALS, True
    while smaller and left:
        smaller = False
        for other in _smaller(case):
            left -= 1
            found = judge(other) if left else outcome
            if found.kind == outcome.kind:
                case, outcome, smaller = other if left else case, found, True
                break
    return case, outcome


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases with one output, with an inner value as output, with an inner value fed, and with fewer sources."""
    nodes = case.model.graph.node
    if len(case.of) > 1:
        yield from (_cut(case, (name,), ()) for name in case.of)
    elif len(nodes) > 1:
        floats = _floats(case)
        yield from (_cut(case, (name,), ()) for node in nodes for name in node.output if name in floats)
        for node in reversed(nodes):
            fed = {name: floats[name] for name in node.output if name in floats}
            if fed and not set(case.of).intersection(fed):
                yield _cut(case, case.of, tuple(fed), fed)
    if len(case.wrt) > 1:
        yield from (dataclasses.replace(case, wrt=(name,)) for name in case.wrt)
        yield from (dataclasses.replace(case, wrt=tuple(n for n in case.wrt if n != name)) for name in case.wrt)


def _floats(case: Case) -> dict[str, np.ndarray]:
    double = as_double(case.model)
    feeds = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in case.feeds.items()}
    names = [
        n for node in double.graph.node for n in node.output if n and not any(a.HasField("g") for a in node.attribute)
    ]
    values = dict(zip(names, Reference(double).run(feeds, names), strict=True))
    arrays = {n: v for n, v in values.items() if not isinstance(v, list) and n not in case.of}
    return {n: v for n, v in arrays.items() if v.dtype == np.float64 and v.size}


def _cut(case: Case, of: tuple[str, ...], fed: tuple[str, ...], values: dict[str, np.ndarray] | None = None) -> Case:
    graph, values = case.model.graph, values or {}
    needed, nodes = set(of), []
    for node in reversed(graph.node):
        if needed.intersection(node.output) - set(fed):
            nodes.append(node)
            needed.update(read_by(node))
    own = onnx.ModelProto()
    own.CopyFrom(case.model)
    del own.graph.node[:], own.graph.input[:], own.graph.initializer[:], own.graph.output[:]
    own.graph.node.extend(nodes[::-1])
    own.graph.input.extend(i for i in graph.input if i.name in needed)
    own.graph.initializer.extend(t for t in graph.initializer if t.name in needed)
    for name in (n for n in fed if n in needed):
        own.graph.input.append(onnx.helper.make_tensor_value_info(name, 1, values[name].shape))
    known = {o.name: o for o in graph.output}
    infos = {v.name: v for v in onnx.shape_inference.infer_shapes(case.model).graph.value_info}
    own.graph.output.extend(known.get(n) or infos[n] for n in of if n in known or n in infos)
    feeds = {n: v for n, v in case.feeds.items() if n in needed}
    feeds |= {n: values[n].astype(np.float32) for n in fed if n in needed}
    reached = reach(own.graph, of)
    wrt = tuple(n for n in (*case.wrt, *fed) if n in reached and n in needed)
    return Case(own, feeds, of, wrt, case.kind)


def text(case: Case, outcome: Outcome, title: str) -> str:
    """Return a case as ONNX text: what was fed are its inputs' defaults, what is asked for is said in front."""
    own = onnx.ModelProto()
    own.CopyFrom(case.model)
    for name, array in case.feeds.items():
        own.graph.initializer.append(numpy_helper.from_array(array, name))
    said = " ".join(outcome.said.split())
    asked = f"of: {', '.join(case.of)}; wrt: {', '.join(case.wrt)}; kind: {case.kind}"
    return f"// {title}: {outcome.kind}: {said}\n// {asked}\n{onnx.printer.to_text(own)}\n"


def keep(folder: Path, name: str, words: str) -> Path:
    """Write a case's text; return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.txt"
    path.write_text(words)
    return path
