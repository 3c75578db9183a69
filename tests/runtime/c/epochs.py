"""Models as epoch graphs: a Scan over steps, each of which runs the model on rows of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

STEPS = 2  # with equal rows


def epoch_of(models: Sequence[onnx.ModelProto], feeds: Sequence[Mapping[str, np.ndarray]]) -> onnx.ModelProto:
    """Return one epoch graph for models of one opset; inputs that are not fed keep the values of initializers."""
    body, rows = onnx.GraphProto(name="step"), list[onnx.ValueInfoProto]()
    for number, (model, fed) in enumerate(zip(models, feeds, strict=True)):
        graph = onnx.compose.add_prefix(model, f"case{number}_").graph
        names = {f"case{number}_{name}": array for name, array in fed.items()}
        body.node.extend(graph.node)
        body.initializer.extend(t for t in graph.initializer if t.name not in names)
        body.output.extend(graph.output)
        body.input.extend(value for value in graph.input if value.name in names)
        for name, array in names.items():
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            rows.append(helper.make_tensor_value_info(f"rows_{name}", kind, ["steps", *array.shape]))
    rows.sort(key=lambda value: [i.name for i in body.input].index(value.name.removeprefix("rows_")))
    ends = [f"end_{value.name}" for value in body.output]
    scan = helper.make_node("Scan", [row.name for row in rows], ends, body=body, num_scan_inputs=len(rows))
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in ends]
    graph = helper.make_graph([scan], "epoch", rows, outputs)
    return helper.make_model(graph, opset_imports=models[0].opset_import, ir_version=10)


def rows_of(feeds: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the inputs of the epoch graph."""
    cases = ((f"rows_case{number}_{name}", x) for number, fed in enumerate(feeds) for name, x in fed.items())
    return {name: np.stack([array] * STEPS) for name, array in cases}
