"""From a module or a program of PyTorch to a graph, by torch.export and PyTorch's own ONNX exporter."""

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

from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError, NoRowsError, listing
from ortpipe.graph.modes import UNBIASED, VARIANCE
from ortpipe.graph.origins import mark
from ortpipe.graph.parameters import some
from ortpipe.stages.convert.sources import Forward
from ortpipe.stages.convert.sources.graph_settings import GraphSettings
from ortpipe.stages.convert.sources.onnx_file import from_model
from ortpipe.stages.convert.sources.torch_modes import Modes, check_momentum, torch, translations

NOTHING: Mapping[str, str] = {}
OPSET = 18  # what the exporter writes by itself; others it gets by rewriting that
STATES = ("state_dict", "model_state_dict")  # under which a checkpoint holds more than weights


@contextlib.contextmanager
def drawn(seed: int) -> Iterator[None]:
    """Draw weights with a seed of their own; PyTorch's generator is afterwards as it was."""
    with torch().random.fork_rng(devices=[]):
        torch().manual_seed(seed)
        yield


def make(part: Any, params: Mapping[str, Any], seed: int) -> Any:
    """Return the module that a class or a function makes, its weights drawn with a seed of their own."""
    nn = torch().nn
    if isinstance(part, nn.Module):
        if params:
            rule = "{key} are the keywords of a class or a function."
            raise ConvertError(rule, key="params", got="an instance in {at}module", fix="Leave out {key}.")
        return copy.deepcopy(part)
    try:
        with drawn(seed):
            module = part(**params)
    except Exception as error:
        rule, got = "{at}module must make a module of {key}.", f"{type(error).__name__}: {error}"
        raise ConvertError(rule, key="params", got=got, fix="Correct {key}, or the code.") from error
    if not isinstance(module, nn.Module):
        rule = "{key} must be, or make, a torch.nn.Module."
        raise ConvertError(rule, key="module", got=f"a {type(module).__name__}", fix="Return one.")
    return module


def read_program(path: Path, trust: bool) -> Any:
    """Return a program that torch.export.save wrote."""
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
            "A .pt2 file is a program that torch.export.save wrote, readable with the installed PyTorch.",
            key="path",
            got=f"{path}: {_last_line(error)}",
            fix="Save it again: torch.export.save(torch.export.export(module, …), path).",
        ) from error


def load_weights(holder: Any, path: Path) -> None:
    """Load a state_dict from a file into a module, or into a program's weights."""
    given, held = _read_weights(path), holder.state_dict
    held = held() if callable(held) else held
    same = {key: array.data_ptr() for key, array in held.items()}
    loaded = {same[key] for key in given if key in same}  # a file may hold tied weights once
    missing = [key for key in held if key not in given and same[key] not in loaded]
    strange = [key for key in given if key not in held]
    if missing or strange:
        found = [f"{words} {some(keys)}" for words, keys in (("without", missing), ("with", strange)) if keys]
        raise ConvertError(
            "{key} holds the module's state_dict.",
            key="weights",
            got=f"{path}, {' and '.join(found)}",
            fix="Save it with torch.save(module.state_dict(), …) or safetensors; convert.init takes weights by other "
            "names.",
        )
    with torch().no_grad():
        for key, array in given.items():
            if held[key].shape != array.shape:
                got = f"{key}: {list(array.shape)} in {path}, {list(held[key].shape)} in the module"
                rule, fix = "Weights have the module's shapes.", "Choose {at}params that fit the file."
                raise ConvertError(rule, key="weights", got=got, fix=fix)
            held[key].copy_(array)


def _read_weights(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise ConvertError("{key} must be a file.", key="weights", got=path, fix="Check the path.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load

            return load(path.read_bytes())
        held = torch().load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True)
    except Exception as error:
        rule, fix = "{key} must hold tensors alone.", "Save it with torch.save(module.state_dict(), …) or safetensors."
        raise ConvertError(rule, key="weights", got=f"{path}: {_last_line(error)}", fix=fix) from error
    inner = next((held[name] for name in STATES if isinstance(held, Mapping) and name in held), held)
    if isinstance(inner, Mapping) and all(isinstance(value, torch().Tensor) for value in inner.values()):
        return inner
    rule, fix = "{key} must hold a state_dict.", "Save it with torch.save(module.state_dict(), …)."
    raise ConvertError(rule, key="weights", got=f"{path}: a {type(inner).__name__}", fix=fix)


IN_INFERENCE = "is in inference mode as it comes, and is trained as module.train() has it"


def from_module(module: Any, settings: GraphSettings, data: Data | None, types: Mapping[str, str] = NOTHING) -> Forward:
    """Return a module's forward model: exported as it trains, and compared with what it predicts."""
    if data is None:
        rule, fix = "A module is exported with real rows, whose types and shapes it takes.", "Give data."
        raise NoRowsError(rule, got=f"{settings.origin} and no data", fix=fix)
    floats = next((p.dtype for p in module.parameters() if p.dtype.is_floating_point), torch().float32)
    examples = _examples(module, types, data, str(floats).removeprefix("torch."))
    with _mode(module, None if module.training else True):
        check_momentum(module)
        program = _exported(module, examples, settings)
    modes = Modes(program)
    notes = [IN_INFERENCE] if not module.training and any(trains for _, _, trains in modes.nodes) else []
    frozen = {name: "requires_grad is False" for name, p in module.named_parameters() if not p.requires_grad}

    def predict(inputs: Mapping[str, Any]) -> Any:
        with _mode(module, False):
            return module(**inputs)

    names = _output_names(program)
    model = _model(program, modes, names, settings)
    return _forward(model, program, settings, data, (notes, modes), frozen, _runner(predict, examples, names))


def from_program(program: Any, settings: GraphSettings, data: Data | None) -> Forward:
    """Return a program's forward model; where it was exported in inference mode, as it trains."""
    modes = Modes(program)
    notes = modes.restore()
    names = _output_names(program)
    module = modes.inference()
    model = _model(program, modes, names, settings)
    fixed = any(i.type.tensor_type.shape.dim and i.type.tensor_type.shape.dim[0].dim_value for i in model.graph.input)
    keys = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]

    def predict(inputs: Mapping[str, Any]) -> Any:
        pytree = torch().utils._pytree

        args, kwargs = pytree.tree_unflatten([inputs[key] for key in keys], program.call_spec.in_spec)
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
) -> Forward:
    forward = from_model(model, dataclasses.replace(settings, lift=False), data)
    initializers, specs = forward.model.graph.initializers, program.graph_signature.input_specs
    parameters = {spec.target for spec in specs if spec.kind.name == "PARAMETER"}
    said = {name: frozen.get(name) if name in parameters else "a buffer" for name in initializers}
    statistics = {name for spec in specs if (name := str(spec.target)).endswith(("running_mean", "running_var"))}
    said = {name: why for name, why in said.items() if name not in statistics}
    by_place: dict[int, list[str]] = {}
    for key, array in program.state_dict.items():
        by_place.setdefault(array.data_ptr(), []).append(key)
    for keys in by_place.values():
        held = [key for key in keys if key in initializers]
        if len(keys) > 1 and held:
            mark(initializers[held[0]], {"state_dict": [held[0], *(key for key in keys if key != held[0])]})

    def expected(inputs: Mapping[str, np.ndarray], output: str) -> np.ndarray:
        found = None if run is None else run(inputs, output)
        return forward.expected(inputs, output) if found is None else found  # type: ignore[misc]

    return dataclasses.replace(
        forward, expected=expected, said=said, notes=(*notes[0], *notes[1].notes(), *forward.notes)
    )


def _examples(module: Any, types: Mapping[str, str], data: Data, floats: str) -> dict[str, Any]:
    """Return a few rows as the module's arguments: by name, or where there is one, as its first."""
    signature = inspect.signature(module.forward).parameters.values()
    plain = [p for p in signature if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [p.name for p in plain if p.default is p.empty]
    count = 2
    rows = data.train.head(1)
    while any(count in array.shape[1:] for array in rows.inputs.values()):
        count += 1  # a size that is no other axis's, which export would tell from no other
    given = {name: array[np.zeros(count, int)] for name, array in rows.inputs.items()}
    if len(given) == 1 and len(plain) >= 1 and len(needed) <= 1 and next(iter(given)) not in [p.name for p in plain]:
        given = {(needed or [plain[0].name])[0]: next(iter(given.values()))}
    strange = [name for name in given if name not in [p.name for p in plain]]
    missing = [name for name in needed if name not in given]
    if strange or missing:
        raise ConvertError(
            "Data must hold the arguments of the module's forward by name.",
            got=f"arrays {', '.join(sorted(given))} for forward({', '.join(p.name for p in plain)})",
            fix="Give the arrays these names, and leave out others.",
        )
    text = [name for name, array in given.items() if array.dtype.kind in "OUST"]
    if text:
        raise ConvertError(
            "A PyTorch module takes numbers.",
            got=f"text in {some(text)}",
            fix="Give codes: data.source.encode=codes, or a column of text as token ids.",
        )
    unknown = [name for name in types if name not in given]
    if unknown:
        rule, fix = "{key} are by the names of inputs.", listing("{key}", next(iter(given)))
        raise ConvertError(rule, key="types", got=some(unknown), fix=fix)
    kinds = {name: types.get(name) or array_type(array, floats) for name, array in given.items()}
    return {name: torch().as_tensor(array).to(getattr(torch(), kinds[name])) for name, array in given.items()}


def _exported(module: Any, examples: Mapping[str, Any], settings: GraphSettings) -> Any:
    """Return a module as a program, for any number of rows where it can be."""
    rows = {name: {0: torch().export.Dim.AUTO} for name in examples}
    try:
        with _quiet():
            return torch().export.export(module, (), dict(examples), dynamic_shapes=rows, strict=False)
    except Exception as error:
        shapes = ", ".join(f"{name} {list(array.shape)} {array.dtype}" for name, array in examples.items())
        raise ConvertError(
            "A module must be one that torch.export can export.",
            got=f"{settings.origin} with {shapes}: {type(error).__name__}: {_last_line(error)}",
            fix="Where the types of inputs are others, set {at}types; else rewrite what the message names, or export "
            "the module yourself and give the file as {at}path.",
        ) from error


def _model(program: Any, modes: Modes, names: Sequence[str], settings: GraphSettings) -> onnx.ModelProto:
    """Return a program as a model: parameters by their names in state_dict, training behaviour as in the program."""
    modes.refuse()
    try:
        with _quiet():
            exported = torch().onnx.export(
                modes.decomposed(),
                dynamo=True,
                optimize=False,  # which would fold weights, and batch norm into convolutions
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
    model: onnx.ModelProto = exported.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # where in the code it was written: other bytes on another machine
        if node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute):
            node.metadata_props.add(key=VARIANCE, value=UNBIASED)
    for holder in (model, model.graph, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del holder.metadata_props[:]
    return model


def _output_names(program: Any) -> list[str]:
    """Return a name for each output: its key in a dict, `output` where there is one, else `output_0`, `output_1` …"""
    pytree = torch().utils._pytree

    spec = program.call_spec.out_spec
    places = range(spec.num_leaves)
    paths = [path for path, _ in pytree.tree_flatten_with_path(pytree.tree_unflatten(list(places), spec))[0]]
    if len(paths) == 1 and not any(isinstance(key, pytree.MappingKey) for key in paths[0]):
        return ["output"]
    words = [
        [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path] for path in paths
    ]
    return ["_".join(parts) if not parts[0].isdigit() else "_".join(["output", *parts]) for parts in words]


def _runner(
    predict: Callable[[Mapping[str, Any]], Any], examples: Mapping[str, Any], names: Sequence[str]
) -> Callable[[Mapping[str, np.ndarray], str], np.ndarray | None]:
    """Return what gives an output of rows as the module itself predicts it, None of what is no output of it."""

    def run(inputs: Mapping[str, np.ndarray], output: str) -> np.ndarray | None:
        if output not in names:
            return None
        pytree = torch().utils._pytree

        count = len(next(iter(inputs.values())))
        arrays = {name: example[:1].expand(count, *example.shape[1:]) for name, example in examples.items()}
        arrays |= {name: torch().from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()}
        with torch().no_grad(), _quiet():
            leaves = pytree.tree_leaves(predict(arrays))
        found: np.ndarray = _numpy(leaves, names, output)
        return found

    return run


def _numpy(leaves: Sequence[Any], names: Sequence[str], output: str) -> np.ndarray:
    return np.asarray(leaves[list(names).index(output)].detach().to(torch().float64).numpy())


@contextlib.contextmanager
def _mode(module: Any, training: bool | None) -> Iterator[None]:
    """Put a module in a mode, as its own train() does, and each of its parts back afterwards."""
    before = {part: part.training for part in module.modules()}
    if training is not None:
        module.train(training)
    try:
        yield
    finally:
        for part, was in before.items():
            part.training = was


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what PyTorch says of its own work to itself: what fails is raised."""
    names = ("torch.onnx", "torch.export", "torch._export", "onnxscript")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _reason(error: BaseException) -> str:
    """Return the innermost cause of what the exporter raises around it."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f"{type(cause).__name__}: {_last_line(cause)}"


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def array_type(array: np.ndarray, floats: str) -> str:
    """Return the type in which a module reads an array: floats as its weights are, whole numbers as int64.

    >>> array_type(np.zeros(2, np.uint8), "float32"), array_type(np.zeros(2), "float32")
    ('int64', 'float32')
    """
    return {"f": floats, "b": "bool"}.get(array.dtype.kind, "int64")
