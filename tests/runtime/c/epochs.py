"""Models as epoch graphs: a Scan over steps, each of which runs the model on rows of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import helper

from ortpipe.errors import EngineError
from ortpipe.runtime.c import check_compiler
from ortpipe.runtime.config import RuntimeConfig

STEPS, SHOWN = 3, 1  # the model's rows are those of the step SHOWN; other steps have other rows


def _usable() -> bool:
    try:
        check_compiler(RuntimeConfig(engine="c"))
    except EngineError:
        return False
    return True


needs_engine = pytest.mark.skipif(not _usable(), reason="runtime.engine=c needs a C compiler and a BLAS")


def epoch_of(models: Sequence[onnx.ModelProto], feeds: Sequence[Mapping[str, np.ndarray]]) -> onnx.ModelProto:
    """Return one epoch graph for models of one opset; inputs that are not fed keep the values of initializers.

    The first input of a model comes a step later, through a state that each step overwrites.
    """
    body, carried, rows = onnx.GraphProto(name="step"), list[onnx.ValueInfoProto](), list[onnx.ValueInfoProto]()
    inputs, nexts, outputs = list[onnx.ValueInfoProto](), list[onnx.ValueInfoProto](), list[onnx.ValueInfoProto]()
    for number, (model, fed) in enumerate(zip(models, feeds, strict=True)):
        graph = onnx.compose.add_prefix(model, f"case{number}_").graph
        names = {f"case{number}_{name}": array for name, array in fed.items()}
        body.initializer.extend(t for t in graph.initializer if t.name not in names)
        outputs.extend(graph.output)
        for place, (name, array) in enumerate(names.items()):
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            now = name if place else f"next_{name}"
            inputs.append(helper.make_tensor_value_info(now, kind, array.shape))
            rows.append(helper.make_tensor_value_info(f"rows_{name}", kind, ["steps", *array.shape]))
            if place == 0:
                body.input.append(helper.make_tensor_value_info(name, kind, array.shape))
                carried.append(helper.make_tensor_value_info(f"state_{name}", kind, array.shape))
                nexts.append(helper.make_tensor_value_info(f"kept_{name}", kind, array.shape))
                body.node.append(helper.make_node("Identity", [now], [nexts[-1].name]))
        body.node.extend(graph.node)
    body.input.extend(inputs)
    body.output.extend([*nexts, *outputs])
    ends = [helper.make_tensor_value_info(f"end_{value.name}", 1, None) for value in body.output]
    names_in, names_out = [x.name for x in (*carried, *rows)], [x.name for x in ends]
    scan = helper.make_node("Scan", names_in, names_out, body=body, num_scan_inputs=len(rows))
    graph = helper.make_graph([scan], "epoch", [*carried, *rows], ends)
    return helper.make_model(graph, opset_imports=models[0].opset_import, ir_version=10)


def inputs_of(feeds: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the inputs of the epoch graph."""
    inputs = dict[str, np.ndarray]()
    for number, fed in enumerate(feeds):
        for place, (name, array) in enumerate(fed.items()):
            other = np.array(np.flip(array))
            inputs[f"rows_case{number}_{name}"] = np.stack([other, array, other] if place else [array, other, other])
            if place == 0:
                inputs[f"state_case{number}_{name}"] = other
    return inputs


def shapes_of(feeds: Sequence[Mapping[str, np.ndarray]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs in a step."""
    return {name: x.shape[name.startswith("rows_") :] for name, x in inputs_of(feeds).items()}
