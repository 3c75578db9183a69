"""Weights by name from elsewhere: another run, an artifact, an .onnx file, or safetensors."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import safetensors

from ortpipe.errors import ConvertError
from ortpipe.graph import query, serial
from ortpipe.graph.edit import set_initializers
from ortpipe.graph.parameters import some
from ortpipe.settings import Config

SHOWN = 8  # names in an error, with their shapes


@dataclass(frozen=True)
class WeightsFrom(Config):
    """Where a model's first weights come from.

    Attributes:
        path: a run's or an artifact's folder, an .onnx file, or a .safetensors file.
        map: their name or glob → the model's, where `*` and `?` stand for what they stood for there; null leaves them
            out. The first that fits counts; other names stay.
        transpose: names or globs of the model's weights that lie the other way round there, such as those of MatMul
            in an exported file against PyTorch's.
        strict: refuse weights of the model that get no value, and floats there that none takes; else the run says so.
    """

    path: str = field(metadata={"identity": False})  # `files` are told apart by content
    map: Mapping[str, str | None] = field(default_factory=dict)
    transpose: tuple[str, ...] = ()
    strict: bool = True

    @property
    def file(self) -> Path:
        """The file itself, of a folder its model."""
        path = Path(self.path)
        return path / "model.onnx" if path.is_dir() else path

    def files(self) -> tuple[Path, ...]:
        """Return what is read, of that what is there: the file and its external data."""
        file = self.file
        return serial.files(file) if file.suffix != ".safetensors" else (file,) if file.is_file() else ()


@dataclass(frozen=True)
class Taken:
    """Which weights were set."""

    weights: Mapping[str, str]  # of the model, each with its name there
    note: str


def initialize(model: ir.Model, needed: Sequence[str], config: WeightsFrom) -> Taken:
    """Give a model's float initializers the values that another file has for them, in place.

    Args:
        model: where they go.
        needed: those that must get a value under `strict`.
        config: where they come from.

    Raises:
        ConvertError: a pattern means nothing, shapes differ, nothing fits, or under `strict` something is left.
    """
    held = {name: value for name, value in model.graph.initializers.items() if value.dtype in query.FLOATS}
    theirs = _read(config.file)
    if not theirs:
        rule = "The file holds floats under names: initializers, or tensors of safetensors."
        fix = (
            "Weights in constants get names by ortpipe run-stage convert --input FILE --output NEW.onnx: take that one."
        )
        raise ConvertError(rule, key="path", got=f"{config.file}: none", fix=fix)
    wanted = _mapped(list(theirs), config.map)
    by_ours = {ours: name for name, ours in wanted.items()}
    taken = {ours: by_ours[ours] for ours in held if ours in by_ours}
    unused = [name for name, ours in wanted.items() if ours is not None and ours not in held]
    missing = [name for name in needed if name not in taken]
    if not taken or (config.strict and (unused or missing)):
        shapes = {name: query.array(value).shape for name, value in held.items()}
        raise ConvertError(
            "Every weight of the model gets a value, and every float of the file is used."
            if config.strict
            else "At least one weight of the model gets a value.",
            key="strict",
            got=f"no value for {_listed(missing, shapes)}; "
            f"not used: {_listed(unused, {name: array.shape for name, array in theirs.items()})}",
            fix="Map names with {at}map={'theirs': 'ours'}, globs too, null for what is left out"
            + ("; or set {key}=false." if config.strict else "."),
        )
    turned = set(query.select(config.transpose, list(taken), ConvertError, "transpose"))
    values, wrong, turnable = {}, [], []
    for ours, name in taken.items():
        array, shape = theirs[name], query.array(held[ours]).shape
        array = np.swapaxes(array, -1, -2) if ours in turned and array.ndim > 1 else array
        if array.shape != shape:
            wrong.append(f"{name} {list(array.shape)} for {ours} {list(shape)}")
            turnable += [ours] if array.shape == shape[::-1] else []
        values[ours] = np.ascontiguousarray(array).reshape(array.shape)
    if wrong:
        hint = f" Those of {some(turnable)} fit the other way round: add them to {{at}}transpose." if turnable else ""
        raise ConvertError(
            "A weight has the shape that the model wants.",
            key="map",
            got=", ".join(wrong[:SHOWN]) + (f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""),
            fix=f"Leave out what does not fit, {{key}}={{'name': null}} with {{at}}strict=false.{hint}",
        )
    set_initializers(model, values)
    note = f"takes {len(taken)} weights from {Path(config.path).name}: {some(list(taken))}"
    note += f"; of the model, {some(missing)} had none there" if missing else ""
    note += f"; not used: {some(unused)}" if unused else ""
    return Taken(taken, note)


def _read(file: Path) -> dict[str, np.ndarray]:
    """Return the floats of a file by name."""
    if file.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise ConvertError(
            "Weights are read from .onnx and .safetensors files, whose reading executes nothing.",
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
        found = dict(safetensors.deserialize(file.read_bytes()))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ConvertError(
            "A .safetensors file is readable.", key="path", got=f"{file}: {error}", fix="Save it again."
        ) from error
    kinds = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
    return {
        name: np.frombuffer(entry["data"], kinds[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in sorted(found.items())
        if entry["dtype"] in kinds
    }


def _mapped(names: Sequence[str], patterns: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the model's name for each of theirs; None for what is left out.

    >>> _mapped(["a.0.w", "a.1.b", "c"], {"a.*.?": "*/?", "c": None})
    {'a.0.w': '0/w', 'a.1.b': '1/b', 'c': None}
    """
    mapped, meant = dict[str, str | None](), set[str]()
    for name in names:
        mapped[name] = name
        for pattern, ours in patterns.items():
            fits = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)").replace(r"\?", "(.)"), name, re.DOTALL)
            if fits is None:
                continue
            meant.add(pattern)
            parts = list(fits.groups())
            wild = len(re.findall(r"[*?]", ours or ""))
            if wild > len(parts):
                got = f"{pattern!r} → {ours!r}"
                fix = "Write no more of them than on the left."
                raise ConvertError("A wildcard stands for what it stood for.", key="map", got=got, fix=fix)
            mapped[name] = None if ours is None else re.sub(r"[*?]", lambda _, parts=parts: parts.pop(0), ours)  # type: ignore[misc]
            break
    if idle := [pattern for pattern in patterns if pattern not in meant]:
        got, fix = f"{idle[0]!r} is none", f"The file has {_listed(names)}."
        raise ConvertError(
            "Every pattern in {key} is a name in the file, or fits one first.", key="map", got=got, fix=fix
        )
    given = [one for one in mapped.values() if one is not None]
    if twice := [one for one in dict.fromkeys(given) if given.count(one) > 1]:
        both = ", ".join(name for name, one in mapped.items() if one == twice[0])
        fix = "Leave one of them out: {key}={'name': null}."
        raise ConvertError("One tensor goes to one weight.", key="map", got=f"{both} to {twice[0]!r}", fix=fix)
    return mapped


def _listed(names: Sequence[str], shapes: Mapping[str, Sequence[int]] | None = None) -> str:
    said = [f"{name} {list(shapes[name])}" if shapes and name in shapes else name for name in names[:SHOWN]]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(said) or "none") + more
