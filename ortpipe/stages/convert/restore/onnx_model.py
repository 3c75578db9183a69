"""Write trained weights back into the file that they were read from; everything else in it stays the same."""

import collections
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.files import atomic_write
from ortpipe.graph.core.apart import bytes_of, same_bytes, stub
from ortpipe.graph.core.origins import Origin, Place, Read, put, take
from ortpipe.graph.core.protos import graphs
from ortpipe.graph.core.selection import some
from ortpipe.graph.files.serial import data_files, external_bytes, read_without_data

Arrays = Mapping[str, np.ndarray]
T = TypeVar("T")
P = TypeVar("P", bound=Place)
Find = Callable[[str, Origin | None], P | None]  # the place in a source of the parameter with a name and an origin


@dataclass(frozen=True)
class Decision(Generic[P]):
    """The arrays to write, and the parameters that they are made of."""

    changed: Mapping[P, np.ndarray]  # with the type and shape of its place
    written: tuple[str, ...]  # the parameters whose values in the file change
    unchanged: tuple[str, ...]  # those whose values in the file, as rounded there, are the same
    rounding: Mapping[str, float]  # the largest |written − trained| of each that has a narrower type in the file
    files: tuple[Path, ...] = ()  # the written files, the .onnx file last; empty if nothing changed


@dataclass(frozen=True, eq=False)
class Slot(Place):
    """An array of an .onnx file, with the message that holds it."""

    holder: onnx.TensorProto | onnx.AttributeProto = field(repr=False)

    @property
    def is_external(self) -> bool:
        """Whether the values are in a file of external data."""
        return isinstance(self.holder, onnx.TensorProto) and self.holder.data_location == onnx.TensorProto.EXTERNAL

    def set(self, array: np.ndarray) -> None:
        """Replace the values in the message, in the field that holds them."""
        holder = self.holder
        if isinstance(holder, onnx.TensorProto) and holder.HasField("raw_data"):
            holder.raw_data = bytes(bytes_of(array))
        elif isinstance(holder, onnx.TensorProto):
            numbers = getattr(holder, onnx.helper.tensor_dtype_to_field(holder.data_type))
            plain = array if array.dtype.char in "fd" or array.dtype.kind in "iu" else array.view(f"u{array.itemsize}")
            numbers[:] = plain.ravel().tolist()
        elif holder.HasField("f"):
            holder.f = float(array)
        else:
            holder.floats[:] = array.tolist()


SOURCE = "Give the file that the run read; ortpipe show RUN prints its path."


def into_onnx(
    file: Path, output: Path, trained: Arrays, untrained: Arrays, origins: Mapping[str, Origin]
) -> Decision[Slot]:
    """Write trained weights into a copy of an .onnx file, or into the file itself if `output` is that file.

    Only the values of tensors change: names, opset, metadata, order, types and layout of tensors, external data and
    unknown fields stay. All checks come before the first write; each file is written atomically.

    Args:
        file: the file that the model was converted from.
        output: the file to write; its external data go beside it.
        trained: parameters and running statistics by name.
        untrained: other float initializers, which must be equal to those of the same name in the file.
        origins: the origins of parameters that are no initializers of the file: see `graph/core/origins.py`.

    Raises:
        ModelError: a parameter has no place or another shape in the file, or the file is another model.
    """
    source = ModelFile(file)
    decision = decide(source.find, str(file), trained, untrained, origins)
    return replace(decision, files=tuple(_write(source, decision.changed, output)))


def decide(
    find: Find[P],
    label: str,
    trained: Arrays,
    untrained: Arrays,
    origins: Mapping[str, Origin],
    names: Sequence[str] = (),
) -> Decision[P]:
    """Return the arrays to write to a source; errors call it `label`, with its `names`. The rest as in `into_onnx`."""
    _reject_other_model(find, label, untrained, origins)
    copies = dict[str, str]()  # of parameters, by the names that errors call them
    for name in list(trained):
        for place in origins.get(name, {}).get("also", ()):
            copies[copy := f"{name} as {place.get('attribute') or place.get('initializer') or place['node']}"] = name
            origins = {**origins, copy: {**{k: v for k, v in origins[name].items() if k == "step"}, **place}}
    trained = {**trained, **{copy: trained[name] for copy, name in copies.items()}}
    slot_by_name = {name: find(name, origins.get(name)) for name in trained}
    if missing := [name for name, slot in slot_by_name.items() if slot is None]:
        raise ModelError(
            "Every trained weight must have a place in the file.",
            got=f"{label} has none for {some(missing)}" + (f"; it has {some(names)}" if names else ""),
            fix=SOURCE
            + " For weights that convert created, give the run, for its model.onnx does not record their origin. "
            "Weights that convert added, such as a new head, are only in the run's model.onnx; a new .safetensors file "
            "gets all weights.",
        )
    slots = {name: slot for name, slot in slot_by_name.items() if slot is not None}
    arrays, rounding = _new_arrays(find, label, slots, trained, origins)
    changed = {slot: array for slot, array in arrays.items() if not same_bytes(array, slot.array)}
    changed_slots = {slot.name for slot in changed}
    written = {copies.get(name, name): None for name, slot in slots.items() if slot.name in changed_slots}
    unchanged = tuple(name for name in slots if name not in written and name not in copies)
    return Decision(changed, tuple(written), unchanged, rounding)


def _reject_other_model(find: Find[P], label: str, untrained: Arrays, origins: Mapping[str, Origin]) -> None:
    """Raise ModelError if the file's untrained weights differ, for the trained ones would predict differently there."""
    differing, read = [], _reader(find)
    for name, array in untrained.items():
        slot = find(name, origins.get(name))
        if slot is None:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
            restored = put(slot.array, array, origins.get(name, {}).get("transform", []), read)
            if restored.shape == slot.array.shape and same_bytes(_cast(restored, slot.array), slot.array):
                continue
        differing.append(name)
    if differing:
        rule = "Weights that were not trained must be the same in the file as in training."
        raise ModelError(rule, got=f"{label}: different values of {some(differing)}", fix=SOURCE)


def _new_arrays(
    find: Find[P], label: str, slots: Mapping[str, P], trained: Arrays, origins: Mapping[str, Origin]
) -> tuple[dict[P, np.ndarray], dict[str, float]]:
    """Return each slot's new array, and the rounding error of each parameter that its type in the file rounds."""
    steps, read = {name: origins.get(name, {}).get("transform", []) for name in slots}, _reader(find)
    by_name = {slot.name: slot for slot in slots.values()}
    arrays, misfits = {name: slot.array for name, slot in by_name.items()}, []
    for name, slot in slots.items():
        try:
            updated = put(arrays[slot.name], trained[name], steps[name], read)
            if updated.shape != slot.array.shape:
                raise ValueError(f"shape {list(updated.shape)} instead of {list(slot.array.shape)}")
            kind = ir.DataType.from_numpy(slot.array.dtype)
            if kind.bitwidth < 8 or (kind.is_integer() and updated.dtype != slot.array.dtype):
                raise ValueError(f"{kind.name} there, in steps that the run does not record")
            arrays[slot.name] = updated
        except (ValueError, KeyError, TypeError, IndexError) as error:
            misfits.append(f"{name}: {error.args[0]!s}")
    if misfits:
        raise ModelError("A weight must fit its place in the file.", got=f"{label}: {'; '.join(misfits)}", fix=SOURCE)
    sharing = collections.Counter(slot.name for slot in slots.values())
    clashing = [
        name
        for name, slot in slots.items()
        if sharing[slot.name] > 1
        and not same_bytes(put(arrays[slot.name], trained[name], steps[name], read), arrays[slot.name])
    ]
    if clashing:
        raise ModelError(
            "Weights that share a place in the file must have equal values.",
            got=f"{label}: {some(clashing)} differ after training",
            fix="Train with one copy of them{@tie}, or use the run's own model.onnx.",
        )
    cast = {name: _cast(arrays[name], slot.array) for name, slot in by_name.items()}
    restored = {name: take(cast[slot.name], steps[name], read) for name, slot in slots.items()}
    errors = {name: _rounding_error(name, slots[name], array, trained[name]) for name, array in restored.items()}
    rounding = {name: error for name, error in errors.items() if error is not None}
    return {by_name[name]: array for name, array in cast.items()}, rounding


def _rounding_error(name: str, slot: Place, restored: np.ndarray, trained: np.ndarray) -> float | None:
    """Return the largest |restored − trained| if the type in the file rounds the trained values, else None."""
    if np.array_equal(restored.astype(trained.dtype), trained):
        return None
    with np.errstate(invalid="ignore"):
        difference = np.abs(restored.astype(np.float64) - trained.astype(np.float64))
    if not np.isfinite(difference).all():
        raise ModelError(
            "The file's types must be able to hold the trained values.",
            got=f"{name!r}, which is {slot.array.dtype} there: some trained values are too large for it",
            fix="Use the run's own model.onnx.",
        )
    return float(difference.max())


def _reader(find: Find[P]) -> Read:
    """Return the function that gives an array of the source by its name, which a step of an origin uses."""

    def read(name: str) -> np.ndarray:
        place = find(name, None)
        if place is None:
            raise KeyError(f"there is no {name!r}")
        return place.array

    return read


def _cast(array: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return an array in the type of `old`; entries that `old` rounds to keep its more precise values."""
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array.astype(old.dtype, copy=False)).reshape(array.shape)
        if old.dtype.itemsize > array.dtype.itemsize:
            cast = np.where(old.astype(array.dtype) == array, old, cast)
    return cast


# .onnx files


class ModelFile:
    """A parsed .onnx file, whose initializers and nodes are found by a name that only one of them has.

    Raises:
        ModelError: the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.model = path, read_without_data(path)
        parts = list(graphs(self.model.graph))
        self._initializers = _unique((tensor.name, tensor) for graph in parts for tensor in graph.initializer)
        self._nodes = _unique((node.output[0], node) for graph in parts for node in graph.node if any(node.output[:1]))

    def find(self, name: str, origin: Origin | None) -> Slot | None:
        """Return the slot that an origin names; without an origin, the initializer of that name."""
        if origin is None or "initializer" in origin:
            return self._initializer(name if origin is None else origin["initializer"])
        node = self._nodes.get(origin.get("node", ""))  # an estimator's origin names none
        if node is None:
            return None
        if "attribute" in origin:
            return self._attribute(node, origin["attribute"])
        if origin["input"] >= len(node.input):
            return None
        name = node.input[origin["input"]]
        constant = self._nodes.get(name)
        return self._initializer(name) or (constant and self._attribute(constant, "value"))

    def _initializer(self, name: str) -> Slot | None:
        return self._tensor(name, self._initializers[name]) if name in self._initializers else None

    def _attribute(self, node: onnx.NodeProto, name: str) -> Slot | None:
        """Return the slot of a node's attribute of floats, or of a tensor."""
        names = ("value", "value_floats", "value_float") if name == "value" else (name,)  # of a Constant
        label = f"{name} of {node.output[0]}"
        for attribute in (attribute for attribute in node.attribute if attribute.name in names):
            if attribute.HasField("t"):
                return self._tensor(label, attribute.t)
            if attribute.HasField("f") or attribute.floats:
                array = np.array(attribute.f if attribute.HasField("f") else attribute.floats, np.float32)
                return Slot(label, array, attribute)
        return None

    def _tensor(self, name: str, tensor: onnx.TensorProto) -> Slot:
        inside = tensor
        try:
            if tensor.data_location == tensor.EXTERNAL:
                inside = stub(tensor)
                inside.raw_data = external_bytes(tensor, self.path.parent)
            return Slot(name, onnx.numpy_helper.to_array(inside), tensor)
        except (onnx.checker.ValidationError, FileNotFoundError, KeyError, TypeError, ValueError) as error:
            raise ModelError(
                "A tensor must have as many bytes as its shape needs, in the file or in a file of its folder.",
                got=f"{name!r}: {error}",
                fix="Keep the model's files together. If they are, one of them is damaged.",
            ) from error


def _unique(items: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return items by name, without the names that several of them have."""
    items = list(items)
    count = collections.Counter(name for name, _ in items)
    return {name: item for name, item in items if count[name] == 1}


def _write(source: ModelFile, changed: Mapping[Slot, np.ndarray], output: Path) -> list[Path]:
    """Write the files of external data, then the .onnx file, each atomically.

    A failure between two files in place leaves some files trained and others not; restoring again completes them.
    """
    in_place = output.exists() and output.samefile(source.path)
    folder, new_folder = source.path.parent.resolve(), output.parent.resolve()
    prefix = f"{output.name}." if new_folder == folder and not in_place else ""  # the original keeps its data files
    external = {id(slot.holder): array for slot, array in changed.items() if slot.is_external}
    for slot in changed:
        if not slot.is_external:
            slot.set(changed[slot])
    files, is_changed = list[Path](), not in_place or len(external) < len(changed)
    for file, tensors in data_files(source.model, folder).items():
        parts = [(tensor, external[id(tensor)]) for tensor in tensors if id(tensor) in external]
        if not parts and new_folder == folder:
            continue
        content = bytearray(file.read_bytes())
        for tensor, array in parts:
            start = next((int(entry.value) for entry in tensor.external_data if entry.key == "offset"), 0)
            content[start : start + array.nbytes] = bytes_of(array)
        place = file.relative_to(folder)
        place = place.with_name(prefix + place.name)
        new_entries = {"location": place.as_posix()} if prefix else {}
        new_entries |= {"checksum": hashlib.sha1(content).hexdigest()} if parts else {}
        for entry in (entry for tensor in tensors for entry in tensor.external_data):
            is_changed |= entry.key in new_entries
            entry.value = new_entries.get(entry.key, entry.value)
        files.append(atomic_write(new_folder / place, bytes(content)))
    if is_changed:
        files.append(atomic_write(output, source.model.SerializeToString(deterministic=True)))
    return files
