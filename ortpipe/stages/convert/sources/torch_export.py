"""PyTorch module or program → graph, by torch.export and PyTorch's own ONNX exporter."""

import contextlib
import copy
import dataclasses
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ortpipe.data.row_checks import array_fix
from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError, NoRowsError
from ortpipe.graph.core.origins import mark
from ortpipe.graph.core.selection import some
from ortpipe.graph.files.state_dict import read_torch
from ortpipe.graph.forms.modes import UNBIASED, VARIANCE, moves_statistics
from ortpipe.quoting import listing
from ortpipe.stages.convert.imported import Imported
from ortpipe.stages.convert.reading.graph_settings import IN_INFERENCE, GraphSettings
from ortpipe.stages.convert.sources.onnx_file import from_model
from ortpipe.stages.convert.sources.torch_modes import Modes, check_momentum, torch, translations

NOTHING: Mapping[str, str] = {}
OPSET = 18  # the exporter's native opset; it converts to others from that
STATES = ("state_dict", "model_state_dict")  # keys of the weights in a checkpoint that holds more


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's generator, and restore its state afterwards."""
    with torch().random.fork_rng(devices=[]):
        torch().manual_seed(seed)
        yield


def make(part: Any, params: Mapping[str, Any], seed: int) -> Any:
    """Return the module that a class or a function makes, its weights sampled with `seed`."""
    nn = torch().nn
    if isinstance(part, nn.Module):
        if params:
            rule = "{key} must be keywords of a class or a function."
            raise ConvertError(rule, key="params", got="an instance in {at}module", fix="Leave out {key}.")
        return copy.deepcopy(part)
    try:
        with seeded(seed):
            module = part(**params)
    except Exception as error:
        rule, actual = "{at}module must return a module when called with {key}.", f"{type(error).__name__}: {error}"
        raise ConvertError(rule, key="params", got=actual, fix="Correct {key}, or the code.") from error
    if not isinstance(module, nn.Module):
        rule = "{key} must be, or return, a torch.nn.Module."
        raise ConvertError(rule, key="module", got=f"a {type(module).__name__}", fix="Return one.")
    return module


def read_program(path: Path, trust: bool) -> Any:
    """Load a program that torch.export.save wrote."""
    if not path.is_file():
        raise ConvertError("{key} must be a file.", key="path", got=path, fix="Check the path.")
    if not trust:
        raise ConvertError(
            "A program of torch.export runs code when it is opened, so it is opened only on request.",
            got=path,
            key="trust",
            fix="Set {key}=true if you made the file.",
        )
    try:
        return torch().export.load(str(path))
    except Exception as error:
        raise ConvertError(
            "A .pt2 file must be a program of torch.export.save that the installed PyTorch can read.",
            key="path",
            got=f"{path}: {_last_line(error)}",
            fix="Save it again: torch.export.save(torch.export.export(module, …), path).",
        ) from error


def load_weights(holder: Any, path: Path) -> None:
    """Load a state_dict from a file into a module, or into a program's weights."""
    loaded_tensors, tensors = _read_weights(path), holder.state_dict
    tensors = tensors() if callable(tensors) else tensors
    address_of = {key: array.data_ptr() for key, array in tensors.items()}
    loaded_addresses = {address_of.get(key) for key in loaded_tensors}  # the file may hold tied weights only once
    missing = [key for key in tensors if key not in loaded_tensors and address_of[key] not in loaded_addresses]
    unexpected = [key for key in loaded_tensors if key not in tensors]
    if missing or unexpected:
        problems = [f"{words} {some(keys)}" for words, keys in (("without", missing), ("with", unexpected)) if keys]
        raise ConvertError(
            "{key} must hold the module's state_dict.",
            key="weights",
            got=f"{path}, {' and '.join(problems)}",
            fix="Save it with torch.save(module.state_dict(), …) or safetensors; {@convert.init} takes weights by "
            "other names.",
        )
    with torch().no_grad():
        for key, array in loaded_tensors.items():
            if tensors[key].shape != array.shape:
                actual = f"{key}: {list(array.shape)} in {path}, {list(tensors[key].shape)} in the module"
                rule, fix = "Weights must have the module's shapes.", "Choose {at}params that fit the file."
                raise ConvertError(rule, key="weights", got=actual, fix=fix)
            tensors[key].copy_(array)


def _read_weights(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise ConvertError("{key} must be a file.", key="weights", got=path, fix="Check the path.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load

            return load(path.read_bytes())
        content = read_torch(path)
    except Exception as error:
        rule, fix = "{key} must hold only tensors.", "Save it with torch.save(module.state_dict(), …) or safetensors."
        raise ConvertError(rule, key="weights", got=f"{path}: {_last_line(error)}", fix=fix) from error
    inner = next((content[name] for name in STATES if isinstance(content, Mapping) and name in content), content)
    if isinstance(inner, Mapping) and all(isinstance(value, torch().Tensor) for value in inner.values()):
        return inner
    rule, fix = "{key} must hold a state_dict.", "Save it with torch.save(module.state_dict(), …)."
    raise ConvertError(rule, key="weights", got=f"{path}: a {type(inner).__name__}", fix=fix)


def from_module(
    module: Any, settings: GraphSettings, data: Data | None, types: Mapping[str, str] = NOTHING
) -> Imported:
    """Return a module's forward model: exported in training mode, and compared with the module's predictions."""
    if data is None:
        rule, fix = "Exporting a module needs real rows, for the types and shapes of its inputs.", "Give data."
        raise NoRowsError(rule, got=f"{settings.origin} and no data", fix=fix)
    floats = next((p.dtype for p in module.parameters() if p.dtype.is_floating_point), torch().float32)
    examples = _examples(module, types, data, str(floats).removeprefix("torch."))
    with _mode(module, None if module.training else True):
        check_momentum(module)
        program = _export(module, examples, settings, array_fix(data.train.head(1), next(iter(examples))))
    modes = Modes(program)
    notes = [IN_INFERENCE] if not module.training and any(trains for _, _, trains in modes.nodes) else []
    frozen = {name: "requires_grad is False" for name, p in module.named_parameters() if not p.requires_grad}

    def predict(inputs: Mapping[str, Any]) -> Any:
        with _mode(module, False):
            return module(**inputs)

    names = _output_names(program)
    model = _model(program, modes, names, settings)
    return _forward(model, program, settings, data, (notes, modes), frozen, _runner(predict, examples, names))


def from_program(program: Any, settings: GraphSettings, data: Data | None) -> Imported:
    """Return a program's forward model, in training mode even if it was exported in inference mode."""
    modes = Modes(program)
    notes = modes.restore()
    names = _output_names(program)
    module = modes.inference()
    model = _model(program, modes, names, settings)
    fixed = any(i.type.tensor_type.shape.dim and i.type.tensor_type.shape.dim[0].dim_value for i in model.graph.input)
    keys = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]

    def predict(inputs: Mapping[str, Any]) -> Any:
        args, kwargs = program.call_spec.in_spec.unflatten([inputs[key] for key in keys])
        return module(*args, **kwargs)

    runner = None if fixed else _runner(predict, {}, names)
    return _forward(model, program, settings, data, (notes, modes), {}, runner)


def _forward(
    model: onnx.ModelProto,
    program: Any,
    settings: GraphSettings,
    data: Data | None,
    notes: tuple[Sequence[str], Modes],
    frozen: Mapping[str, str],
    run: Callable[[Mapping[str, np.ndarray], str], np.ndarray | None] | None,
) -> Imported:
    forward = from_model(model, dataclasses.replace(settings, lift=False), data)
    initializers, specs = forward.model.graph.initializers, program.graph_signature.input_specs
    parameters = {spec.target for spec in specs if spec.kind.name == "PARAMETER"}
    reasons = {name: frozen.get(name) if name in parameters else "a buffer" for name in initializers}
    statistics = {name for spec in specs if (name := str(spec.target)).endswith(("running_mean", "running_var"))}
    reasons = {name: why for name, why in reasons.items() if name not in statistics}
    by_address: dict[int, list[str]] = {}
    for key, array in program.state_dict.items():
        by_address.setdefault(array.data_ptr(), []).append(key)
    for keys in by_address.values():
        names = [key for key in keys if key in initializers]
        if len(keys) > 1 and names:
            mark(initializers[names[0]], {"state_dict": [names[0], *(key for key in keys if key != names[0])]})

    def expected(inputs: Mapping[str, np.ndarray], output: str) -> np.ndarray:
        values = None if run is None else run(inputs, output)
        return forward.expected(inputs, output) if values is None else values

    return dataclasses.replace(
        forward, expected=expected, untrained_reasons=reasons, notes=(*notes[0], *notes[1].notes(), *forward.notes)
    )


def _examples(module: Any, types: Mapping[str, str], data: Data, floats: str) -> dict[str, Any]:
    """Return a few rows as the module's arguments, by name; a single array may be the first argument."""
    signature = inspect.signature(module.forward).parameters.values()
    parameters = {p.name: p for p in signature if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    required = [name for name, p in parameters.items() if p.default is p.empty]
    count = 2
    rows = data.train.head(1)
    while any(count in array.shape[1:] for array in rows.inputs.values()):
        count += 1  # export would take axes of equal size for the same
    given_rows = {name: array[np.zeros(count, int)] for name, array in rows.inputs.items()}
    if len(given_rows) == 1 and parameters and len(required) <= 1 and parameters.keys().isdisjoint(given_rows):
        given_rows = {(required or [*parameters])[0]: next(iter(given_rows.values()))}
    unexpected = [name for name in given_rows if name not in parameters]
    missing = [name for name in required if name not in given_rows]
    if unexpected or missing:
        raise ConvertError(
            "Data must hold the arguments of the module's forward by name.",
            got=f"arrays {', '.join(sorted(given_rows))} for forward({', '.join(parameters)})",
            fix=f"Give the arrays these names, and leave out others.{array_fix(rows, [*required, *given_rows][0])}",
        )
    text_inputs = [name for name, array in given_rows.items() if array.dtype.kind in "OUST"]
    if text_inputs:
        raise ConvertError(
            "Inputs of a PyTorch module must be numbers.",
            got=f"text in {some(text_inputs)}",
            fix="Give numbers, or a column of text as token ids ({@data.tokens}).",
        )
    unknown_names = [name for name in types if name not in given_rows]
    if unknown_names:
        rule, fix = "{key} must be by names of inputs.", listing("{key}", next(iter(given_rows)))
        raise ConvertError(rule, key="types", got=some(unknown_names), fix=fix)
    kinds = {name: types.get(name) or array_type(array, floats) for name, array in given_rows.items()}
    return {name: torch().as_tensor(array).to(getattr(torch(), kinds[name])) for name, array in given_rows.items()}


def _export(module: Any, examples: Mapping[str, Any], settings: GraphSettings, of_table: str) -> Any:
    """Export a module as a program, for any number of rows if possible; `of_table` is a fix for rows of a table."""
    rows = {name: {0: torch().export.Dim.AUTO} for name in examples}
    try:
        with _quiet():
            return torch().export.export(module, (), dict(examples), dynamic_shapes=rows, strict=False)
    except Exception as error:
        shapes = ", ".join(f"{name} {list(array.shape)} {array.dtype}" for name, array in examples.items())
        raise ConvertError(
            "torch.export must be able to export a module.",
            got=f"{settings.origin} with {shapes}: {type(error).__name__}: {_last_line(error)}",
            fix="If inputs need other types, set {at}types; else rewrite what the message names, or export "
            f"the module yourself and give the file as {{at}}path.{of_table}",
        ) from error


def _model(program: Any, modes: Modes, names: Sequence[str], settings: GraphSettings) -> onnx.ModelProto:
    """Return a program as a model, with parameters named as in state_dict, and training behaviour as in the program."""
    modes.check_supported()
    try:
        with _quiet():
            result = torch().onnx.export(
                modes.with_plain_dropout(),
                dynamo=True,
                optimize=False,  # it would fold weights, and batch norm into convolutions
                verbose=False,
                opset_version=OPSET,
                output_names=list(names),
                custom_translation_table=translations(),
            )
    except Exception as error:
        raise ConvertError(
            "Every operation of a module must have a form in ONNX.",
            got=f"{settings.origin}: {_reason(error)}",
            fix="Write it with other operations, or end the module in front of it.",
        ) from error
    model: onnx.ModelProto = result.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # holds paths of the code, which differ between machines
        if moves_statistics(node):
            node.metadata_props.add(key=VARIANCE, value=UNBIASED)
    for holder in (model, model.graph, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del holder.metadata_props[:]
    return model


def _output_names(program: Any) -> list[str]:
    """Return a name for each output: its key in a dict, `output` if there is only one, else `output_0`, `output_1` …"""
    spec = program.call_spec.out_spec
    paths = [path for path, _ in _leaves(spec.unflatten([*range(spec.num_leaves)]))]
    if len(paths) == 1 and all(part.isdigit() for part in paths[0]):
        return ["output"]
    return ["_".join(parts) if not parts[0].isdigit() else "_".join(["output", *parts]) for parts in paths]


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values in nested dicts, sequences and dataclasses in order, each with its keys."""
    if isinstance(tree, Mapping):
        inner = dict(tree)
    elif isinstance(tree, list | tuple):
        inner = dict(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))
    elif dataclasses.is_dataclass(tree):
        inner = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    else:
        yield path, tree
        return
    for key, value in inner.items():
        yield from _leaves(value, (*path, str(key)))


def _runner(
    predict: Callable[[Mapping[str, Any]], Any], examples: Mapping[str, Any], names: Sequence[str]
) -> Callable[[Mapping[str, np.ndarray], str], np.ndarray | None]:
    """Return a function that computes an output with the module itself; None for values that are no output of it."""

    def run(inputs: Mapping[str, np.ndarray], output: str) -> np.ndarray | None:
        if output not in names:
            return None
        count = len(next(iter(inputs.values())))
        arrays = {name: example[:1].expand(count, *example.shape[1:]) for name, example in examples.items()}
        arrays |= {name: torch().from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}
        with torch().no_grad(), _quiet():
            leaves = [leaf for _, leaf in _leaves(predict(arrays))]
        return np.asarray(leaves[list(names).index(output)].detach().to(torch().float64).numpy())

    return run


@contextlib.contextmanager
def _mode(module: Any, training: bool | None) -> Iterator[None]:
    """Set a module's mode by its own train(), and restore that of each submodule afterwards."""
    before = {part: part.training for part in module.modules()}
    if training is not None:
        module.train(training)
    try:
        yield
    finally:
        for part, training_before in before.items():
            part.training = training_before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's logs, warnings and prints; failures still raise."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch._export", "onnxscript")]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.ExitStack() as restored:
        warnings.simplefilter("ignore")
        for logger in loggers:
            restored.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield


def _reason(error: BaseException) -> str:
    """Return the innermost cause of the exporter's error."""
    return f"{type(error).__name__}: {_last_line(error)}" if error.__cause__ is None else _reason(error.__cause__)


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()[:300]


def array_type(array: np.ndarray, floats: str) -> str:
    """Return the type in which a module reads an array: floats as its weights, integers as int64.

    >>> array_type(np.zeros(2, np.uint8), "float32"), array_type(np.zeros(2), "float32")
    ('int64', 'float32')
    """
    return {"f": floats, "b": "bool"}.get(array.dtype.kind, "int64")
