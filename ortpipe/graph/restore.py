"""Trained weights back into what they were read from; whatever was not trained stays as it is there."""

import collections
import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.files import sync, temporary
from ortpipe.graph.apart import same_bytes
from ortpipe.graph.origins import Origin, put, take
from ortpipe.graph.parameters import some
from ortpipe.graph.serial import files
from ortpipe.graph.tensors_in_place import ExternalPart, OnnxBytes, Slot, renamed
from ortpipe.graph.wire import edited

Arrays = Mapping[str, np.ndarray]


class Place(Protocol):
    """Where an array of a source stands; two with one name are one."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def array(self) -> np.ndarray: ...  # noqa: D102


P = TypeVar("P", bound=Place)
P_co = TypeVar("P_co", bound=Place, covariant=True)


class WeightSource(Protocol[P_co]):
    """What weights are read from and go back to."""

    def find(self, name: str, origin: Origin | None) -> P_co | None:
        """Return the place of a parameter of that name and origin, if there is one."""

    def values(self, name: str) -> np.ndarray:
        """Return an array that a step of an origin names (KeyError: there is none of that name)."""


@dataclass(frozen=True)
class Decision(Generic[P]):
    """What goes where."""

    changed: Mapping[P, np.ndarray]  # of the type and shape that its place has
    written: tuple[str, ...]
    kept: tuple[str, ...]
    rounding: Mapping[str, float]


SOURCE = "Name what the run read; ortpipe show RUN says which."


@dataclass(frozen=True)
class Restored:
    """What came of it."""

    written: tuple[str, ...]  # the parameters whose values in the file changed
    kept: tuple[str, ...]  # those that the file held already, or rounds to what it held
    rounding: Mapping[str, float]  # of those that the file holds in a narrower type, the largest |written − trained|
    files: tuple[Path, ...]  # what was written, the .onnx file last; nothing where it is the same file as it was


def restore(file: Path, output: Path, trained: Arrays, untrained: Arrays, origins: Mapping[str, Origin]) -> Restored:
    """Write trained weights into a copy of an .onnx file, or into itself where `output` is that file.

    Its bytes are edited in place: names, opset, metadata, order, layout of tensors and external data stay, also fields
    that no version of onnx knows. Everything is decided before anything is written; each file appears whole.

    Args:
        file: what the model was converted from.
        output: what is written; its external data go beside it.
        trained: parameters and running statistics by name.
        untrained: other float initializers; where the file has one of the name it must hold the same.
        origins: where parameters are in the file that are no initializers of it: see `graph/origins.py`.

    Raises:
        ModelError: a parameter has no place in the file, another shape there, or the file is another model.
    """
    source = OnnxBytes(file)
    decided = decide(source, str(file), trained, untrained, origins)
    return Restored(decided.written, decided.kept, decided.rounding, tuple(_write(source, decided.changed, output)))


def decide(
    source: WeightSource[P], label: str, trained: Arrays, untrained: Arrays, origins: Mapping[str, Origin]
) -> Decision[P]:
    """Return the new arrays of a source; `label` names it in errors. Arguments and errors as of `restore`."""
    _refuse_other(source, label, untrained, origins)
    found = {name: source.find(name, origins.get(name)) for name in trained}
    if lost := [name for name, slot in found.items() if slot is None]:
        there = getattr(source, "tensors", {})  # of a state_dict
        raise ModelError(
            "Every trained weight goes back to its place in the file.",
            got=f"{label} has none for {some(lost)}" + (f"; it has {some(list(there))}" if there else ""),
            fix=SOURCE + " A bare model.onnx does not say where weights come from that convert made: name the run. "
            "A head that convert put on has no place in the file.",
        )
    slots = {name: slot for name, slot in found.items() if slot is not None}
    arrays, rounding = _new_arrays(source, label, slots, trained, origins)
    changed = {slot: array for slot, array in arrays.items() if not same_bytes(array, slot.array)}
    where = {slot.name for slot in changed}
    written = tuple(name for name, slot in slots.items() if slot.name in where)
    return Decision(changed, written, tuple(name for name in slots if name not in written), rounding)


def _refuse_other(source: WeightSource[P], label: str, untrained: Arrays, origins: Mapping[str, Origin]) -> None:
    """Refuse a file whose weights that were not trained are others: with it, the trained ones predict otherwise."""
    other = []
    for name, array in untrained.items():
        slot = source.find(name, origins.get(name))
        if slot is None:
            continue
        with contextlib.suppress(ValueError, KeyError):
            held = put(slot.array, array, origins.get(name, {}).get("transform", []), source.values)
            if held.shape == slot.array.shape and same_bytes(_cast(held, slot.array), slot.array):
                continue
        other.append(name)
    if other:
        rule = "What was not trained is in the file as it was in training."
        raise ModelError(rule, got=f"{label}: other values of {some(other)}", fix=SOURCE)


def _new_arrays(
    source: WeightSource[P], label: str, slots: Mapping[str, P], trained: Arrays, origins: Mapping[str, Origin]
) -> tuple[dict[P, np.ndarray], dict[str, float]]:
    """Return each slot's new array, and what casting the parameters to the file's types rounded."""
    steps = {name: origins.get(name, {}).get("transform", []) for name in slots}

    by_name = {slot.name: slot for slot in slots.values()}
    arrays, misfits = {name: slot.array for name, slot in by_name.items()}, []
    for name, slot in slots.items():
        try:
            whole = put(arrays[slot.name], trained[name], steps[name], source.values)
            if whole.shape != slot.array.shape:
                raise ValueError(f"shape {list(whole.shape)} instead of {list(slot.array.shape)}")
            kind = ir.DataType.from_numpy(slot.array.dtype)
            if kind.bitwidth < 8 or (kind.is_integer() and whole.dtype != slot.array.dtype):
                raise ValueError(f"{kind.name} there, in steps that the run does not record")
            arrays[slot.name] = whole
        except (ValueError, KeyError, TypeError) as error:
            misfits.append(f"{name}: {error.args[0]!s}")
    if misfits:
        raise ModelError("A weight fits its place in the file.", got=f"{label}: {'; '.join(misfits)}", fix=SOURCE)
    sharing = collections.Counter(slot.name for slot in slots.values())
    clashing = [
        name
        for name, slot in slots.items()
        if sharing[slot.name] > 1
        and not same_bytes(put(arrays[slot.name], trained[name], steps[name], source.values), arrays[slot.name])
    ]
    if clashing:
        raise ModelError(
            "Weights that share a place in the file have one value.",
            got=f"{label}: training parted {some(clashing)}",
            fix="Train without convert.untie, or use the run's own model.onnx.",
        )
    cast = {name: _cast(arrays[name], slot.array) for name, slot in by_name.items()}
    rounding = {}
    for name, slot in slots.items():
        back = take(cast[slot.name], steps[name], source.values)
        if np.array_equal(back.astype(trained[name].dtype), trained[name]):
            continue
        with np.errstate(invalid="ignore"):
            off = np.abs(back.astype(np.float64) - trained[name].astype(np.float64))
        if not np.isfinite(off).all():
            got = f"{name!r}, which is {slot.array.dtype} there: some trained values are beyond its largest"
            raise ModelError("The file's types hold the trained values.", got=got, fix="Use the run's own model.onnx.")
        rounding[name] = float(off.max())
    return {by_name[name]: array for name, array in cast.items()}, rounding


def _cast(array: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return an array in the type of the old one; a number that the old one rounds to stays as finely as it was."""
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array.astype(old.dtype, copy=False)).reshape(array.shape)
        if old.dtype.itemsize > array.dtype.itemsize:
            cast = np.where(old.astype(array.dtype) == array, old, cast)
    return cast


def _write(source: OnnxBytes, changed: Mapping[Slot, np.ndarray], output: Path) -> list[Path]:
    """Write the data files and then the .onnx file: all of them beside their places, before the first takes its own.

    What is killed in place between two of them leaves some files trained and others not; restoring again completes it.
    """
    in_place = output.exists() and output.samefile(source.path)
    folder, new_folder = source.path.parent.resolve(), output.parent.resolve()
    data: dict[Path, list[tuple[ExternalPart, np.ndarray]]] = {}
    if new_folder != folder:
        data = {file: [] for file in files(source.path)[1:]}
    for slot, array in changed.items():
        if slot.stored is not None:
            data.setdefault(source.data_file(slot.stored.location), []).append((slot.stored, array))
    prefix = f"{output.name}." if new_folder == folder and not in_place else None  # the original keeps its own
    partials, sha1 = dict[Path, Path](), dict[Path, str]()
    with contextlib.ExitStack() as stack:

        def partial(target: Path) -> Path:
            target.parent.mkdir(parents=True, exist_ok=True)
            partials[target] = temporary(target)
            stack.callback(partials[target].unlink, missing_ok=True)
            return partials[target]

        for file, parts in data.items():
            place = file.relative_to(folder).as_posix()
            copy = partial(new_folder / (renamed(place, prefix) if prefix else place))
            shutil.copyfile(file, copy)
            with open(copy, "r+b") as weights:
                for stored, array in parts:
                    weights.seek(stored.offset)
                    weights.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
                weights.seek(0)
                sha1[file] = hashlib.file_digest(weights, "sha1").hexdigest()
        edits = [edit for slot, array in changed.items() if slot.stored is None for edit in source.edits(slot, array)]
        model = edited(source.data, [*edits, *source.moved(dict.fromkeys(data, prefix), sha1)])
        if not (in_place and model == source.data):
            partial(output).write_bytes(model)
        for target, written in partials.items():
            if target.exists():
                shutil.copymode(target, written)
            sync(written)
        for target, written in partials.items():
            os.replace(written, target)
    for parent in {target.parent for target in partials}:
        sync(parent)
    return list(partials)
