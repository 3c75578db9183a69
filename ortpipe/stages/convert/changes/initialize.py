"""Initial weights by name from another run, an artifact, an .onnx file, or safetensors."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from safetensors import SafetensorError

from ortpipe.errors import ConvertError, under
from ortpipe.graph.core import query, selection
from ortpipe.graph.core.edit import set_initializers
from ortpipe.graph.core.selection import some
from ortpipe.graph.files import serial
from ortpipe.graph.files.tensors import read_tensors
from ortpipe.stages.convert.changes.config import WeightsFrom
from ortpipe.stages.convert.forward import Converted

SHOWN = 8  # names in an error, with their shapes


def with_weights_of_file(converted: Converted, config: WeightsFrom) -> Converted:
    """Set a model's float initializers to their values in another file, in place.

    Raises:
        ConvertError: a pattern matches nothing, shapes differ, no weight gets a value, or `strict` is violated.
    """
    with under("init"):
        weights, note = _initialize(converted.forward.model, converted.unset, config)
    with _file(config.path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    record = {"init": {"file": Path(config.path).name, "sha256": digest, "weights": weights}}
    return converted.next(note, record=record, finished=None)


def weight_files(path: str) -> tuple[Path, ...]:
    """Return the existing files that initial weights are read from: the file and its external data."""
    file = _file(path)
    return serial.files(file) if file.suffix != ".safetensors" else (file,) if file.is_file() else ()


def _file(path: str) -> Path:
    """Return the file; in a folder, its model."""
    return Path(path) / "model.onnx" if Path(path).is_dir() else Path(path)


def _initialize(model: ir.Model, needed: Sequence[str], config: WeightsFrom) -> tuple[dict[str, str], str]:
    """Set initializers, and those in `needed` under `strict`; return the name in the file of each, and a note."""
    values_by_name = {name: value for name, value in model.graph.initializers.items() if value.dtype in query.FLOATS}
    source_arrays = _read(_file(config.path))
    if not source_arrays:
        raise ConvertError(
            "The file must hold named floats: initializers, or tensors of safetensors.",
            key="path",
            got=f"{_file(config.path)}: none",
            fix="Weights in constants get names by ortpipe run-stage convert --input FILE --output NEW.onnx: take that "
            "one.",
        )
    target_by_source = _new_names(list(source_arrays), config.map)
    source_by_target = {target: name for name, target in target_by_source.items()}
    source_of = {target: source_by_target[target] for target in values_by_name if target in source_by_target}
    unused = [name for name, target in target_by_source.items() if target is not None and target not in values_by_name]
    missing = [name for name in needed if name not in source_of]
    if not source_of or (config.strict and (unused or missing)):
        shapes = {name: query.array(value).shape for name, value in values_by_name.items()}
        raise ConvertError(
            "Every weight of the model must get a value, and every float of the file must be used."
            if config.strict
            else "At least one weight of the model must get a value.",
            key="strict",
            got=f"no value for {_name_list(missing, shapes)}; "
            f"not used: {_name_list(unused, {name: array.shape for name, array in source_arrays.items()})}",
            fix="Map names with {at}map={'theirs': 'ours'}, globs too, null for those to leave out"
            + ("; or set {key}=false." if config.strict else "."),
        )
    set_initializers(model, _fitting(source_of, source_arrays, values_by_name, config))
    note = f"takes {len(source_of)} weights from {Path(config.path).name}: {some(list(source_of))}"
    note += f"; of the model, {some(missing)} had none there" if missing else ""
    note += f"; not used: {some(unused)}" if unused else ""
    return source_of, note


def _fitting(
    source_of: Mapping[str, str],
    source_arrays: Mapping[str, np.ndarray],
    values_by_name: Mapping[str, ir.Value],
    config: WeightsFrom,
) -> dict[str, np.ndarray]:
    """Return the file's arrays by the weights that take them, some of them transposed by the config."""
    transposed = set(selection.select(config.transpose, list(source_of), ConvertError, "transpose"))
    values, misfits, turnable = {}, [], []
    for target, name in source_of.items():
        array, shape = source_arrays[name], query.array(values_by_name[target]).shape
        array = np.swapaxes(array, -1, -2) if target in transposed and array.ndim > 1 else array
        if array.shape != shape:
            misfits.append(f"{name} {list(array.shape)} for {target} {list(shape)}")
            turnable += [target] if array.shape == shape[::-1] else []
        values[target] = np.ascontiguousarray(array).reshape(array.shape)
    if misfits:
        hint = f" Those of {some(turnable)} fit transposed: add them to {{at}}transpose." if turnable else ""
        raise ConvertError(
            "A weight in the file must have the shape of the model's weight.",
            key="map",
            got=some(misfits, SHOWN),
            fix=f"Leave out weights that do not fit, {{key}}={{'name': null}} with {{at}}strict=false.{hint}",
        )
    return values


def _read(file: Path) -> dict[str, np.ndarray]:
    """Return the float arrays of a file by name."""
    if file.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise ConvertError(
            "Weights are read from .onnx and .safetensors files only, because reading these executes no code.",
            key="path",
            got=file,
            fix="Save them with safetensors.torch.save_file(model.state_dict(), 'weights.safetensors').",
        )
    if file.suffix != ".safetensors":
        model = serial.read(file)
        floats = {kind.value for kind in query.FLOATS}
        return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type in floats}
    if not file.is_file():
        rule, fix = "The file must exist.", "Check {key}; relative ones start at the current folder."
        raise ConvertError(rule, key="path", got=file, fix=fix)
    try:
        arrays, _ = read_tensors(file)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ConvertError(
            "A .safetensors file must be readable.", key="path", got=f"{file}: {error}", fix="Save it again."
        ) from error
    return {name: a for name, a in sorted(arrays.items()) if ir.DataType.from_numpy(a.dtype) in query.FLOATS}


def _new_names(names: Sequence[str], patterns: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return each name in the file with its name in the model, None if it is left out.

    >>> _new_names(["a.0.w", "a.1.b", "c"], {"a.*.?": "*/?", "c": None})
    {'a.0.w': '0/w', 'a.1.b': '1/b', 'c': None}
    """
    new_names, used_patterns = dict[str, str | None](), set[str]()
    for name in names:
        new_names[name] = name
        for pattern, target in patterns.items():
            match = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)").replace(r"\?", "(.)"), name, re.DOTALL)
            if match is None:
                continue
            used_patterns.add(pattern)
            parts = list(match.groups())
            wildcards = len(re.findall(r"[*?]", target or ""))
            if wildcards > len(parts):
                rule, fix = "A wildcard must stand for one on the left.", "Write no more wildcards than on the left."
                raise ConvertError(rule, key="map", got=f"{pattern!r} → {target!r}", fix=fix)
            new_names[name] = None if target is None else re.sub(r"[*?]", lambda _, p=parts: p.pop(0), target)  # type: ignore[misc]
            break
    if unused_patterns := [pattern for pattern in patterns if pattern not in used_patterns]:
        actual, fix = f"{unused_patterns[0]!r} is none", f"The file has {_name_list(names)}."
        raise ConvertError(
            "Every pattern in {key} must be the first match of a name in the file.", key="map", got=actual, fix=fix
        )
    targets = [target for target in new_names.values() if target is not None]
    if duplicates := [target for target in dict.fromkeys(targets) if targets.count(target) > 1]:
        sources = ", ".join(name for name, target in new_names.items() if target == duplicates[0])
        fix = "Leave one of them out: {key}={'name': null}."
        raise ConvertError("A weight gets one tensor.", key="map", got=f"{sources} to {duplicates[0]!r}", fix=fix)
    return new_names


def _name_list(names: Sequence[str], shapes: Mapping[str, Sequence[int]] | None = None) -> str:
    entries = [f"{name} {list(shapes[name])}" if shapes and name in shapes else name for name in names]
    return some(entries, SHOWN) or "none"
