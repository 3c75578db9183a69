"""The gradient of an ONNX model as a function from a model to a model, computed by the stage derive.

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

from ortpipe import Artifact, DeriveConfig, derive
from ortpipe.compat.models import artifact_of, as_one_element, exact, prepared, reaching
from ortpipe.errors import DataError, DeriveError
from ortpipe.facts_json import read_metadata
from ortpipe.graph import checked, query, serial, without_metadata
from ortpipe.stages.derive.engines import ENGINES


class DerivativeOptions(enum.IntFlag):
    """The outputs of `onnx_derivative`; each option has an equivalent in derive's config, given here.

    Attributes:
        Zero: gradients, from inputs `<output>_grad`. `output: [Y], inputs: [X], forward_outputs: false`
        KeepYieldOp: the training build's graph, with its YieldOp; not combinable. `engine: {name: ort, yield_op: true}`
        KeepOutputs: the model's outputs too. `forward_outputs: true`
        FillGrad: ones instead of the inputs `<output>_grad`; only with KeepOutputs. `fill_gradient: true`
        Loss: the gradients of a loss, the loss and the outputs; not combinable. derive's defaults, plus `inputs: [X]`

    Where the originals differ: Loss was 5, which is also KeepYieldOp | FillGrad.
    """

    Zero = 0
    KeepYieldOp = 1
    KeepOutputs = 2
    FillGrad = 4
    Loss = 8


class OptionsError(DeriveError, TypeError, AssertionError):
    """Options of another type, or an invalid combination (a subclass of the errors that the originals raised)."""


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

    Inputs are the model's inputs, the weights, and the gradients `<output>_grad` of the outputs, each of its output's
    shape. Outputs are one `<input>_grad` per input, one `<weight>_grad` per weight, and, with KeepOutputs, the model's
    outputs. The operators are standard, so any onnxruntime and onnx.reference run the result (except KeepYieldOp's).
    With Loss the outputs are the loss, the other outputs, then the gradients; there is no gradient to feed, and weights
    default to the model's values.

    Args:
        onx: the model; for Loss, one from `add_loss_output`. It does not change.
        weights: float initializers; by default all that an output depends on. The others stay constants.
        inputs: float inputs; by default all that an output depends on (for Loss, except the labels). `[]` for none.
        options: see `DerivativeOptions`.
        loss: for Loss, the output to differentiate; by default the loss of add_loss_output.
        label: for Loss, the label input or inputs, which have no gradient; by default those of add_loss_output.
        path_name: a file to save the result to.
        verbose: print the names of outputs and of inputs with a gradient.

    Raises:
        OptionsError: an invalid combination of options.
        DeriveError:  an unknown weight or input, nothing to differentiate, an operator
            without a gradient, or KeepYieldOp with an onnxruntime that has no gradient builder.

    Where the originals differ: they ignored `inputs` unless it was None, Loss gave gradients of inputs only and needed
    a path, and graphs contained operators of the training build.

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
        ENGINES["ort"](yield_op=True) if options == DerivativeOptions.KeepYieldOp else ENGINES["native"](),
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
        inputs: a graph's inputs, or those of `InferenceSession.get_inputs()`.
        batch: the first dimension, if it is not a number.
        empty_dimension: every other dimension that is 0 or not a number.

    Raises:
        DataError: an input is not a tensor of numbers.

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
    """Reject invalid combinations of options."""
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
        rule, fix = "FillGrad cannot be used without KeepOutputs.", "Use DerivativeOptions.KeepOutputs | FillGrad."
        raise OptionsError(rule, got=repr(options), fix=fix)
    if options != DerivativeOptions.Loss and (loss is not None or label is not None):
        rule, fix = "loss and label belong to DerivativeOptions.Loss.", "Leave them out, or use DerivativeOptions.Loss."
        raise OptionsError(rule, got=f"loss={loss!r}, label={label!r} with {options!r}", fix=fix)


def _loss_and_labels(graph: ir.Graph, loss: str | None, label: Iterable[str] | str | None) -> tuple[str, set[str]]:
    output = next((o for o in graph.outputs if o.name == loss), None)
    if loss is None or output is None or output.shape is None or any(d != 1 for d in output.shape):
        raise DeriveError(
            "DerivativeOptions.Loss needs a loss output of one element.",
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
    """Return derive's model with inputs and outputs in the originals' order, and without default values of weights.

    With Loss the weights keep their default values, and the loss gets its shape [1, 1] back.
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
    types = onnx.TensorProto.DataType
    if isinstance(value, onnx.ValueInfoProto):
        tensor = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim]
        name = types.Name(tensor.elem_type)
    else:
        dims, name = list(value.shape), value.type.removeprefix("tensor(").removesuffix(")").upper()
    kind = onnx.helper.tensor_dtype_to_np_dtype(types.Value(name if name in types.keys()[1:] else "STRING"))
    if kind.kind not in "fiub":
        rule, fix = "random_feed can only fill inputs of numbers.", "Create the array for this input yourself."
        raise DataError(rule, got=f"input {value.name!r} of type {name.lower()}", fix=fix)
    return kind, dims
