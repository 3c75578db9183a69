"""The training build's gradient builder, called through its bindings (its Python package needs torch)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from ortpipe.errors import DeriveError
from ortpipe.graph.builder import Names, used_names
from ortpipe.runtime.library import ort


def gradient_model(
    model: onnx.ModelProto, parameters: Sequence[str], inputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the builder's graph (forward, YieldOp, backward) and the gradient output of each name.

    Args:
        model: the loss is its only output.
        parameters: float initializers to differentiate with respect to.
        inputs: float inputs to differentiate with respect to.

    Raises:
        DeriveError: this onnxruntime has no gradient builder, or the builder gives up; the message is its own.
    """
    bindings = ort.capi._pybind_state
    if not hasattr(bindings, "OrtModuleGraphBuilder"):
        raise DeriveError(
            "The ort engine needs onnxruntime-training.",
            got=f"onnxruntime {ort.__version__} without a gradient builder",
            fix="Reinstall in a fresh environment with CPython 3.11: pip install ortpipe.",
        )
    clear, away = _clear(model)
    back = {new: old for old, new in away.items()}
    ordered = sorted(
        away.get(name, name) for name in parameters
    )  # the builder takes weights in alphabetical order only
    config = bindings.OrtModuleGraphBuilderConfiguration()
    config.initializer_names = ordered
    config.initializer_names_to_train = ordered
    config.input_names_require_grad = [away.get(name, name) for name in inputs]
    builder = bindings.OrtModuleGraphBuilder()
    try:
        builder.initialize(clear.SerializeToString(), config)
        builder.build(bindings.TrainingGraphTransformerConfiguration())
    except Exception as error:
        raise DeriveError(str(error).strip()) from error
    built = onnx.load_model_from_string(builder.get_gradient_model())
    info = builder.get_graph_info()
    gradients = dict(zip(ordered, info.initializer_grad_names_to_train, strict=False))
    gradients |= dict(info.user_input_grad_names)
    named = {back.get(name, name): gradient for name, gradient in gradients.items() if gradient}
    return _restored(built, named, back) if back else (built, named)


def _clear(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Rename values that have names the builder gives to gradients; return the new name of each."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # renaming an initializer writes into the proto it was read from
    own = ir.from_proto(copy)
    names, away = Names(used_names(own.graph)), dict[str, str]()
    for value in _values(own.graph):
        if value.name and "_grad" in value.name:
            away[value.name] = away.get(value.name) or names.fresh(value.name.replace("_grad", "_Grad"))
            value.name = away[value.name]
    return (ir.to_proto(own), away) if away else (model, away)


def _restored(
    built: onnx.ModelProto, gradients: dict[str, str], back: dict[str, str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Give values their own names back; a gradient that took one gets another."""
    own = ir.from_proto(built)
    names, moved = Names({*used_names(own.graph), *back.values()}), dict[str, str]()
    values = _values(own.graph)
    for value in values:
        if value.name in back.values():
            moved[value.name] = value.name = names.fresh(str(value.name))
    for value in values:
        value.name = back.get(str(value.name), value.name)
    return ir.to_proto(own), {name: moved.get(gradient, gradient) for name, gradient in gradients.items()}


def _values(graph: ir.Graph) -> list[ir.Value]:
    inner = [a.as_graph() for n in graph.all_nodes() for a in n.attributes.values() if a.type == ir.AttributeType.GRAPH]
    made = [value for node in graph.all_nodes() for value in node.outputs]
    held = [value for g in (graph, *inner) for value in (*g.inputs, *g.initializers.values())]
    return list(dict.fromkeys([*made, *held]))
