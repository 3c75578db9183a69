"""Models from the text of their graphs, and checks of their gradients in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from autodiff.numeric import reference, scalar_loss
from engines import native
from onnx import TensorProto, numpy_helper

NEWEST = 21


def model_of(text, opset=NEWEST):
    """Return a model from the text of its graph."""
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')


def session(model):
    """Return an onnxruntime session of one thread that writes errors only."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def derived(model, feeds, *only):
    """Return a float32 loss Σ weight · output, its gradient graph, and each input's gradient name."""
    rng = np.random.default_rng(0)
    values = session(model).run(None, feeds)
    floats = {o.name: v.shape for o, v in zip(model.graph.output, values, strict=True) if v.dtype == np.float32}
    loss = scalar_loss(model, {name: rng.uniform(0.5, 1.5, shape) for name, shape in floats.items()})
    for tensor in loss.graph.initializer:
        if tensor.name.startswith("check/"):
            array = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    loss.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    inputs = [i.name for i in loss.graph.input if i.type.tensor_type.elem_type == TensorProto.FLOAT]
    inputs = [name for name in inputs if not only or name in only]
    return loss, *native(loss, "check/loss", [], inputs)


def gradients(model, feeds, *only):
    """Return the gradients by input name, computed by onnxruntime in float32."""
    _, graph, found = derived(model, feeds, *only)
    values = dict(zip([o.name for o in graph.graph.output], session(graph).run(None, feeds), strict=True))
    return {name: values[gradient] for name, gradient in found.items()}


def disagreement(model, feeds):
    """Return the largest difference between onnxruntime (float32) and onnx.reference, relative to the gradient."""
    _, graph, _ = derived(model, feeds)
    pairs = zip(session(graph).run(None, feeds), reference(graph).run(None, feeds), strict=True)
    return max(float(np.abs(a - b).max() / max(1, np.abs(b).max())) for a, b in pairs)


def worst_error_in_runtime(model, feeds, step, points=12):
    """Return the largest error against central differences that onnxruntime computes in float32 with a large step."""
    rng = np.random.default_rng(0)
    loss, _, _ = derived(model, feeds)
    got, forward, worst = gradients(model, feeds), session(loss), 0.0
    for name, gradient in got.items():
        assert gradient.shape == feeds[name].shape
        places = list(np.ndindex(feeds[name].shape))
        for place in [places[i] for i in rng.permutation(len(places))[:points]]:
            values = []
            for sign in (1, -1):
                moved = feeds[name].copy()
                moved[place] += sign * step
                values.append(float(forward.run(None, {**feeds, name: moved})[0]))
            difference = (values[0] - values[1]) / (2 * step)
            worst = max(worst, abs(float(gradient[place]) - difference) / max(1.0, abs(difference)))
    return worst
