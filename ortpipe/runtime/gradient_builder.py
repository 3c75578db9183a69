"""The gradient builder of onnxruntime's training build."""

from collections.abc import Collection, Sequence

import onnx
import onnx_ir as ir

from ortpipe.errors import DeriveError
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.runtime.library import bindings, ort

Derived = tuple[ir.Model, dict[str, str]]  # a model, and the name of each gradient


def gradient_model(
    model: onnx.ModelProto, parameters: Sequence[str], inputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the builder's graph (forward, YieldOp, backward) and the gradient output of each parameter and input.

    The builder is called through its bindings, because its Python package needs torch. No name in the model may contain
    "_grad", which the builder uses itself. If the builder fails, the error carries its message.
    """
    if not hasattr(bindings, "OrtModuleGraphBuilder"):
        raise DeriveError(
            "The ort engine needs onnxruntime-training.",
            got=f"onnxruntime {ort.__version__} without a gradient builder",
            fix="Reinstall in a fresh environment with CPython 3.11: pip install ortpipe.",
        )
    ordered = sorted(parameters)  # the builder only accepts weights in alphabetical order
    config = bindings.OrtModuleGraphBuilderConfiguration()
    config.initializer_names = ordered
    config.initializer_names_to_train = ordered
    config.input_names_require_grad = list(inputs)
    builder = bindings.OrtModuleGraphBuilder()
    try:
        builder.initialize(model.SerializeToString(), config)
        builder.build(bindings.TrainingGraphTransformerConfiguration())
    except Exception as error:
        raise DeriveError(
            "The gradient builder must support every operator of the model.",
            got=str(error).strip(),
            fix="Choose derive=native, or simplify the model.",
        ) from error
    built, info = onnx.load_model_from_string(builder.get_gradient_model()), builder.get_graph_info()
    gradients = dict(zip(ordered, info.initializer_grad_names_to_train, strict=False)) | dict(
        info.user_input_grad_names
    )
    return built, {name: gradient for name, gradient in gradients.items() if gradient}


def with_yield(model: ir.Model, parameters: Sequence[str], inputs: Sequence[str], taken: Collection[str]) -> Derived:
    """Return the builder's graph (forward, YieldOp, backward), with names that are not `taken`, and the gradients'."""
    graph, names, renamed = model.graph, Names(used_names(model.graph)), dict[str, str]()
    for name, value in ir.convenience.create_value_mapping(graph).items():
        if "_grad" in name:  # the builder calls its gradients so without asking
            value.name = renamed[name] = names.fresh(name.replace("_grad", "_Grad"))
    for node in list(graph):  # it dies of a node that reads one input or initializer twice
        for i, x in enumerate(node.inputs):
            if x is not None and x.producer() is None and x in node.inputs[:i]:
                op = Builder(graph, f"{x.name}/again", before=node, names=names)
                node.replace_input_with(i, op.Identity(x))
    targets = ([renamed.get(name, name) for name in group] for group in (parameters, inputs))
    built, gradients = gradient_model(ir.to_proto(model), *targets)
    result, back = ir.from_proto(built), {new: old for old, new in renamed.items()}
    names = Names({*used_names(result.graph), *renamed, *taken})
    values = ir.convenience.create_value_mapping(result.graph)
    results = {back.get(name, name): values[gradient] for name, gradient in gradients.items()}
    for name, value in values.items():
        value.name = back.get(name) or (names.fresh(name) if name in renamed or name in taken else name)
    return result, {name: str(value.name) for name, value in results.items()}
