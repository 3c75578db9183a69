"""Write trained weights back into the file that they were read from; everything else in it stays the same."""

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
from ortpipe.files import sync, synced, temporary
from ortpipe.graph.apart import same_bytes
from ortpipe.graph.origins import Origin, put, take
from ortpipe.graph.parameters import some
from ortpipe.graph.serial import files
from ortpipe.graph.tensors_in_place import ExternalPart, OnnxBytes, Slot, renamed
from ortpipe.graph.wire import edited

Arrays = Mapping[str, np.ndarray]


class Place(Protocol):
    """The location of an array in a source, identified by its name."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def array(self) -> np.ndarray: ...  # noqa: D102


P = TypeVar("P", bound=Place)
P_co = TypeVar("P_co", bound=Place, covariant=True)


class WeightSource(Protocol[P_co]):
    """A file that weights are read from and written back to."""

    def find(self, name: str, origin: Origin | None) -> P_co | None:
        """Return the place of the parameter with this name and origin, or None."""

    def values(self, name: str) -> np.ndarray:
        """Return the array of that name, which a step of an origin uses (KeyError: there is none)."""


@dataclass(frozen=True)
class Decision(Generic[P]):
    """The arrays to write, and the fields of `Restored` that follow from them."""

    changed: Mapping[P, np.ndarray]  # with the type and shape of its place
    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    rounding: Mapping[str, float]


SOURCE = "Give the file that the run read; ortpipe show RUN prints its path."


@dataclass(frozen=True)
class Restored:
    """The result of `restore`."""

    written: tuple[str, ...]  # the parameters whose values in the file changed
    unchanged: tuple[str, ...]  # those whose values in the file, as rounded there, are the same
    rounding: Mapping[str, float]  # the largest |written − trained| of those with a narrower type in the file
    files: tuple[Path, ...]  # the written files, the .onnx file last; empty if nothing changed


def restore(file: Path, output: Path, trained: Arrays, untrained: Arrays, origins: Mapping[str, Origin]) -> Restored:
    """Write trained weights into a copy of an .onnx file, or into the file itself if `output` is that file.

    The bytes are edited in place: names, opset, metadata, order, layout of tensors, external data and unknown fields
    stay. All checks come before the first write; each file is written atomically.

    Args:
        file: the file that the model was converted from.
        output: the file to write; its external data go beside it.
        trained: parameters and running statistics by name.
        untrained: other float initializers, which must be equal to those of the same name in the file.
        origins: the origins of parameters that are no initializers of the file: see `graph/origins.py`.

    Raises:
        ModelError: a parameter has no place or another shape in the file, or the file is another model.
    """
    source = OnnxBytes(file)
    decision = decide(source, str(file), trained, untrained, origins)
    return Restored(
        decision.written, decision.unchanged, decision.rounding, tuple(_write(source, decision.changed, output))
    )


def decide(
    source: WeightSource[P], label: str, trained: Arrays, untrained: Arrays, origins: Mapping[str, Origin]
) -> Decision[P]:
    """Return the arrays to write to a source; `label` names it in errors. Arguments and errors as in `restore`."""
    _reject_other_model(source, label, untrained, origins)
    slot_by_name = {name: source.find(name, origins.get(name)) for name in trained}
    if missing := [name for name, slot in slot_by_name.items() if slot is None]:
        names_in_file = getattr(source, "tensors", {})  # of a state_dict
        raise ModelError(
            "Every trained weight must have a place in the file.",
            got=f"{label} has none for {some(missing)}"
            + (f"; it has {some(list(names_in_file))}" if names_in_file else ""),
            fix=SOURCE
            + " For weights that convert created, give the run, for its model.onnx does not record their origin. "
            "A head that convert added has no place in the file.",
        )
    slots = {name: slot for name, slot in slot_by_name.items() if slot is not None}
    arrays, rounding = _new_arrays(source, label, slots, trained, origins)
    changed = {slot: array for slot, array in arrays.items() if not same_bytes(array, slot.array)}
    changed_slots = {slot.name for slot in changed}
    written = tuple(name for name, slot in slots.items() if slot.name in changed_slots)
    return Decision(changed, written, tuple(name for name in slots if name not in written), rounding)


def _reject_other_model(source: WeightSource[P], label: str, untrained: Arrays, origins: Mapping[str, Origin]) -> None:
    """Raise ModelError if the file's untrained weights differ, for the trained ones would predict differently there."""
    differing = []
    for name, array in untrained.items():
        slot = source.find(name, origins.get(name))
        if slot is None:
            continue
        with contextlib.suppress(ValueError, KeyError):
            restored = put(slot.array, array, origins.get(name, {}).get("transform", []), source.values)
            if restored.shape == slot.array.shape and same_bytes(_cast(restored, slot.array), slot.array):
                continue
        differing.append(name)
    if differing:
        rule = "Weights that were not trained must be the same in the file as in training."
        raise ModelError(rule, got=f"{label}: different values of {some(differing)}", fix=SOURCE)


def _new_arrays(
    source: WeightSource[P], label: str, slots: Mapping[str, P], trained: Arrays, origins: Mapping[str, Origin]
) -> tuple[dict[P, np.ndarray], dict[str, float]]:
    """Return each slot's new array, and the rounding error of each parameter that its type in the file rounds."""
    steps = {name: origins.get(name, {}).get("transform", []) for name in slots}

    by_name = {slot.name: slot for slot in slots.values()}
    arrays, misfits = {name: slot.array for name, slot in by_name.items()}, []
    for name, slot in slots.items():
        try:
            updated = put(arrays[slot.name], trained[name], steps[name], source.values)
            if updated.shape != slot.array.shape:
                raise ValueError(f"shape {list(updated.shape)} instead of {list(slot.array.shape)}")
            kind = ir.DataType.from_numpy(slot.array.dtype)
            if kind.bitwidth < 8 or (kind.is_integer() and updated.dtype != slot.array.dtype):
                raise ValueError(f"{kind.name} there, in steps that the run does not record")
            arrays[slot.name] = updated
        except (ValueError, KeyError, TypeError) as error:
            misfits.append(f"{name}: {error.args[0]!s}")
    if misfits:
        raise ModelError("A weight must fit its place in the file.", got=f"{label}: {'; '.join(misfits)}", fix=SOURCE)
    sharing = collections.Counter(slot.name for slot in slots.values())
    clashing = [
        name
        for name, slot in slots.items()
        if sharing[slot.name] > 1
        and not same_bytes(put(arrays[slot.name], trained[name], steps[name], source.values), arrays[slot.name])
    ]
    if clashing:
        raise ModelError(
            "Weights that share a place in the file must have equal values.",
            got=f"{label}: {some(clashing)} differ after training",
            fix="Train with one copy of them{@tie}, or use the run's own model.onnx.",
        )
    cast = {name: _cast(arrays[name], slot.array) for name, slot in by_name.items()}
    rounding = {}
    for name, slot in slots.items():
        restored = take(cast[slot.name], steps[name], source.values)
        if np.array_equal(restored.astype(trained[name].dtype), trained[name]):
            continue
        with np.errstate(invalid="ignore"):
            difference = np.abs(restored.astype(np.float64) - trained[name].astype(np.float64))
        if not np.isfinite(difference).all():
            actual = f"{name!r}, which is {slot.array.dtype} there: some trained values are too large for it"
            raise ModelError(
                "The file's types must be able to hold the trained values.",
                got=actual,
                fix="Use the run's own model.onnx.",
            )
        rounding[name] = float(difference.max())
    return {by_name[name]: array for name, array in cast.items()}, rounding


def _cast(array: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return an array in the type of `old`; entries that `old` rounds to keep its more precise values."""
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array.astype(old.dtype, copy=False)).reshape(array.shape)
        if old.dtype.itemsize > array.dtype.itemsize:
            cast = np.where(old.astype(array.dtype) == array, old, cast)
    return cast


def _write(source: OnnxBytes, changed: Mapping[Slot, np.ndarray], output: Path) -> list[Path]:
    """Write the data files and the .onnx file as temporary files, then rename them in that order.

    A kill between two renames in place leaves some files trained and others not; restoring again completes them.
    """
    in_place = output.exists() and output.samefile(source.path)
    folder, new_folder = source.path.parent.resolve(), output.parent.resolve()
    data: dict[Path, list[tuple[ExternalPart, np.ndarray]]] = {}
    if new_folder != folder:
        data = {file: [] for file in files(source.path)[1:]}
    for slot, array in changed.items():
        if slot.stored is not None:
            data.setdefault(source.data_file(slot.stored.location), []).append((slot.stored, array))
    prefix = f"{output.name}." if new_folder == folder and not in_place else None  # the original keeps its data files
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
        with contextlib.ExitStack() as folders:
            for parent in {target.parent for target in partials}:
                folders.enter_context(synced(parent))
            for target, written in partials.items():
                os.replace(written, target)
    return list(partials)
