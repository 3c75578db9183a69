"""The gradient of an ONNX model as a function from a model to a model, made by the stage derive.

It is known from `onnxcustom.training.grad_helper` and `experimental_experiment.gradient.grad_helper`.
"""

import enum
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Artifact, read_metadata, without_metadata
from ortpipe.compat.models import artifact_of, as_one_element, exact, prepared, reaching
from ortpipe.errors import DataError, DeriveError
from ortpipe.graph import query, serial
from ortpipe.graph.check import checked
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.engines.native import Native
from ortpipe.stages.derive.engines.ort import Ort
from ortpipe.stages.derive.stage import derive


class DerivativeOptions(enum.IntFlag):
    """What `onnx_derivative` gives; each has a twin in derive's config, named here.

    Attributes:
        Zero: gradients, from inputs `<output>_grad`. `output: [Y], inputs: [X], forward_outputs: false`
        KeepYieldOp: the training build's own graph, with its YieldOp; alone. `engine: {name: ort, yield_op: true}`
        KeepOutputs: the model's outputs too. `forward_outputs: true`
        FillGrad: ones in place of the inputs `<output>_grad`; with KeepOutputs only. `fill_gradient: true`
        Loss: the gradients of a loss, the loss and the outputs; alone. derive's defaults, plus `inputs: [X]`

    Where the originals differ: Loss was 5, which is also KeepYieldOp | FillGrad.
    """

    Zero = 0
    KeepYieldOp = 1
    KeepOutputs = 2
    FillGrad = 4
    Loss = 8


class OptionsError(DeriveError, TypeError, AssertionError):
    """Options that are none, or do not go together (the kinds of error that the originals raised)."""


def onnx_derivative(
    onx: onnx.ModelProto,
    weights: Sequence[str] | None = None,
    inputs: Sequence[str] | str | None = None,
    options: DerivativeOptions = DerivativeOptions.Zero,
    loss: str | None = None,
    label: Iterable[str] | str | None = None,
    path_name: str | os.PathLike[str] | None = None,
    verbose: int = 0,
) -> onnx.ModelProto:
    """Return the model of the gradients Σ_Y (∂Y/∂v)ᵀ · Y_grad, for every weight and input v, over the float outputs Y.

    Inputs are the model's own, the weights, and the gradients `<output>_grad` of the outputs, each of the shape of what
    it belongs to. Outputs are one `<input>_grad` per input, one `<weight>_grad` per weight, and, with KeepOutputs, the
    model's own. Only standard operators, so that any onnxruntime and onnx.reference run it; KeepYieldOp is the
    exception. With Loss the outputs are the loss, the model's others, then the gradients, there is no gradient to feed,
    and weights that are not fed have the model's own values.

    Args:
        onx: the model; for Loss, one that `add_loss_output` made. It is left as it is.
        weights: float initializers; by default all that an output depends on. The others stay constants.
        inputs: float inputs; by default all that an output depends on (for Loss but the labels). `[]` for none.
        options: see `DerivativeOptions`.
        loss: for Loss, the output to differentiate; by default what add_loss_output called so.
        label: for Loss, the label input or inputs, which have no gradient; by default as for `loss`.
        path_name: where to save the result too.
        verbose: print what is differentiated.

    Raises:
        OptionsError: options that do not go together.
        DeriveError: an unknown weight or input, nothing to differentiate, an operator
            without a gradient, or KeepYieldOp where onnxruntime has no gradient builder.

    Where the originals differ: `inputs` was read only when it was None, Loss gave gradients of inputs only and insisted
    on a path, and graphs held operators of the training build.

    >>> import onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 9, opset_import: ["": 18]>
    ...   g (float[N,10] X) => (float[N,10] Y) <float[1] Ad_Addcst = {1}> { Y = Add(X, Ad_Addcst) }''')
    >>> gradient = onnx_derivative(model)
    >>> [i.name for i in gradient.graph.input], [o.name for o in gradient.graph.output]
    (['X', 'Ad_Addcst', 'Y_grad'], ['X_grad', 'Ad_Addcst_grad'])
    """
    _check(options, loss, label)
    model = prepared(onx, one_batch=False)
    graph, facts = model.graph, read_metadata(onx)
    labels: set[str] = set()
    if options == DerivativeOptions.Loss:
        loss, labels = _loss_and_labels(graph, loss or facts.get("loss"), label or facts.get("label"))
    outputs = [o for o in graph.outputs if (o.name == loss if loss is not None else o.dtype in query.FLOATS)]
    one_element = bool(outputs) and outputs[0].shape is not None and outputs[0].shape.rank() > 0
    if inputs is None:
        inputs = [name for name in reaching(graph, graph.inputs, outputs) if name not in labels]
    if weights is None:
        weights = reaching(graph, graph.initializers.values(), outputs)
    data_inputs = [str(i.name) for i in query.data_inputs(graph)]
    config = DeriveConfig(
        Ort(yield_op=True) if options == DerivativeOptions.KeepYieldOp else Native(),
        parameters=exact(weights, graph.initializers, "initializer"),
        output=tuple(str(o.name) for o in outputs),
        inputs=exact([inputs] if isinstance(inputs, str) else inputs, data_inputs, "input"),
        forward_outputs=bool(options & (DerivativeOptions.KeepOutputs | DerivativeOptions.Loss)),
        fill_gradient=bool(options & DerivativeOptions.FillGrad),
    )
    if verbose:
        print(f"onnx_derivative: {', '.join(str(o.name) for o in outputs)} by {', '.join([*config.inputs, *weights])}")
    artifact = derive(artifact_of(model, weights, loss=loss), config)
    if options == DerivativeOptions.KeepYieldOp:
        derivative = without_metadata(artifact.model)
    else:
        derivative = _as_documented(artifact, options, one_element=one_element)
    if path_name is not None:
        serial.write(derivative, Path(path_name).parent, Path(path_name).name)
    return derivative


def random_feed(inputs: Iterable[Any], batch: int = 10, empty_dimension: int = 1) -> dict[str, np.ndarray]:
    """Return an array for every input: standard normal for floats, 0 or 1 for integers and booleans.

    `numpy.random.seed` makes it repeatable.

    Args:
        inputs: a graph's inputs, or what `InferenceSession.get_inputs()` gives.
        batch: the first dimension, where it is not a number.
        empty_dimension: every other dimension that is not a number, or 0.

    Raises:
        DataError: an input is no tensor of numbers.

    >>> import onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 9, opset_import: ["": 18]>
    ...   g (float[N,10] X) => (float[N,10] Y) { Y = Abs(X) }''')
    >>> {name: (array.dtype.name, array.shape) for name, array in random_feed(model.graph.input, batch=3).items()}
    {'X': ('float32', (3, 10))}
    """
    feeds = {}
    for value in inputs:
        dtype, dims = _kind(value)
        sizes = [
            d if isinstance(d, int) and d > 0 else empty_dimension if axis else batch for axis, d in enumerate(dims)
        ]
        numbers = np.random.standard_normal(sizes) if dtype.kind == "f" else np.random.randint(0, 2, sizes)
        feeds[value.name] = np.asarray(numbers, dtype)
    return feeds


def _check(options: DerivativeOptions, loss: object, label: object) -> None:
    """Reject options that do not go together."""
    if not isinstance(options, DerivativeOptions):
        raise OptionsError(
            "options must be DerivativeOptions.",
            got=repr(options),
            fix="Join them with |, as in DerivativeOptions.KeepOutputs | DerivativeOptions.FillGrad.",
        )
    for alone in (DerivativeOptions.KeepYieldOp, DerivativeOptions.Loss):
        if options & alone and options != alone:
            raise OptionsError(
                f"{alone.name} cannot be combined with other options.", got=repr(options), fix="Leave the others out."
            )
    if options & DerivativeOptions.FillGrad and not options & DerivativeOptions.KeepOutputs:
        raise OptionsError(
            "FillGrad cannot be used without KeepOutputs.",
            got=repr(options),
            fix="Use DerivativeOptions.KeepOutputs | FillGrad.",
        )
    if options != DerivativeOptions.Loss and (loss is not None or label is not None):
        raise OptionsError(
            "loss and label belong to DerivativeOptions.Loss.",
            got=f"loss={loss!r}, label={label!r} with {options!r}",
            fix="Leave them out, or use DerivativeOptions.Loss.",
        )


def _loss_and_labels(graph: ir.Graph, loss: str | None, label: Iterable[str] | str | None) -> tuple[str, set[str]]:
    output = next((o for o in graph.outputs if o.name == loss), None)
    if loss is None or output is None or output.shape is None or any(d != 1 for d in output.shape):
        raise DeriveError(
            "DerivativeOptions.Loss differentiates an output of one element.",
            got=repr(loss) if output is None else f"{loss!r} of shape {output.shape}",
            fix="Run add_loss_output first, and name its loss; outputs: "
            + ", ".join(str(o.name) for o in graph.outputs),
        )
    labels = {label} if isinstance(label, str) else set(label or ())
    inputs = {str(i.name) for i in graph.inputs}
    if not labels or labels - inputs:
        raise DeriveError(
            "DerivativeOptions.Loss needs the label inputs, which have no gradient.",
            got=", ".join(sorted(labels)) or "none",
            fix=f"Name them with label; inputs: {', '.join(sorted(inputs))}.",
        )
    return loss, labels


def _as_documented(artifact: Artifact, options: DerivativeOptions, *, one_element: bool) -> onnx.ModelProto:
    """Return derive's model with inputs and outputs in the order of the originals, and without values that ride along.

    A loss keeps its weights' values, and gets its shape [1, 1] back.
    """
    facts, model = artifact.facts, artifact.ir_model()
    graph, is_loss = model.graph, options == DerivativeOptions.Loss
    if is_loss and one_element:
        as_one_element(model, str(facts.loss))
    by_name = {str(o.name): o for o in graph.outputs}
    gradients = [*facts.input_gradients.values(), *facts.gradients.values()]
    names = [str(facts.loss), *facts.outputs, *gradients] if is_loss else [*gradients, *facts.outputs]
    graph.outputs[:] = [by_name[name] for name in names]
    if is_loss or options & DerivativeOptions.FillGrad:  # a scalar's gradient stays, as the constant 1
        graph.inputs[:] = [i for i in graph.inputs if i.name != facts.output_gradient]
    if not is_loss:
        for name in [str(i.name) for i in graph.inputs if i.is_initializer()]:
            del graph.initializers[name]
    return without_metadata(checked(ir.to_proto(model)))


def _kind(value: Any) -> tuple[np.dtype[Any], list[Any]]:
    """Return the type and dimensions of a graph's or session's input."""
    if isinstance(value, onnx.ValueInfoProto):
        tensor = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim]
        name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    else:
        dims, name = list(value.shape), value.type.removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(name, name)
    try:
        numpy_type = np.dtype(dtype)
    except TypeError:
        numpy_type = np.dtype(object)
    if numpy_type.kind not in "fiub":
        raise DataError(
            "random_feed can only fill inputs of numbers.",
            got=f"input {value.name!r} of type {name}",
            fix="Feed this one yourself.",
        )
    return numpy_type, dims
