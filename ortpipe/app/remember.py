"""Arrays that a run computes before its stages, such as a teacher's predictions, cached in the store by content."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from ortpipe.artifact import Artifact, Facts
from ortpipe.pipeline.digest import key_of
from ortpipe.pipeline.store import Store

Arrays = Mapping[str, np.ndarray]


def remembering(store: Store, name: str) -> Callable[[Mapping[str, Any], Callable[[], Arrays]], Arrays]:
    """Return a function that computes arrays, unless the store has those of equal parts of a key.

    A store holds artifacts, so the arrays are the tensors of one whose model only returns its input.
    """

    def remember(parts: Mapping[str, Any], compute: Callable[[], Arrays]) -> Arrays:
        key = key_of(parts)
        with store.lock(key, _notify):
            if (result := store.take(name, key, None, _notify)) is not None:
                return result[0].tensors
            started = time.perf_counter()
            arrays = compute()
            record = {"stage": name, "version": parts["version"], "notes": []}
            artifact = Artifact(_identity(), Facts("regression", ("x",), ("y",), "y", (), lineage=(record,)), arrays)
            store.publish(name, key, parts, artifact, time.perf_counter() - started, _notify)
        return arrays

    return remember


def _notify(text: str) -> None:
    print(f"cache: {text}", file=sys.stderr, flush=True)


def _identity() -> onnx.ModelProto:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N"]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "arrays", [x], [y])
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 18)])
