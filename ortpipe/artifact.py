"""Artifact, which stages pass on: a checked ONNX model, named tensors, and facts about them."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import os
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from safetensors import SafetensorError, safe_open

from ortpipe.bounded import MOST, file_below, parse_json, read_below
from ortpipe.errors import ModelError
from ortpipe.facts import Facts as Facts
from ortpipe.facts import HeadFacts as HeadFacts
from ortpipe.facts import Task as Task
from ortpipe.facts import in_metadata, write_metadata
from ortpipe.facts import read_metadata as read_metadata
from ortpipe.facts import without_metadata as without_metadata
from ortpipe.files import atomic_folder, link_files
from ortpipe.graph.choice.parameters import some
from ortpipe.graph.core.apart import MANY, TYPES, bytes_of, same_bytes, sealed
from ortpipe.graph.core.check import finish_apart
from ortpipe.graph.core.edit import keep_needed, keep_outputs
from ortpipe.graph.core.garbage import gc_paused
from ortpipe.graph.files.serial import NOTHING, located, read_apart, write
from ortpipe.graph.pictures.svg import to_svg
from ortpipe.hashing import Hasher

FORMAT = 3  # the format of an artifact's folder
TENSORS = "tensors.safetensors"
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, init=False, eq=False)
class Artifact:
    """One stage's result and the next one's input, immutable after construction.

    Args:
        model: an ir.Model, which is cleaned, shaped and checked here; or a ModelProto that already was.
        facts: see `Facts`.
        tensors: state, losses and metrics by name.
        weights: the values of initializers that have none in the ModelProto.

    Attributes:
        facts: see `Facts`.
        tensors: read-only arrays by name.
        initializers: the model's, read-only arrays by name.
    """

    facts: Facts
    tensors: Arrays
    initializers: Arrays = field(repr=False)
    _graph: bytes = field(repr=False)  # the model without its initializers and without ortpipe's metadata

    def __init__(
        self,
        model: onnx.ModelProto | ir.Model,
        facts: Facts,
        tensors: Arrays | None = None,
        *,
        weights: Arrays | None = None,
    ) -> None:
        checked, apart = finish_apart(model) if isinstance(model, ir.Model) else (model, weights or {})
        graph = without_metadata(checked)
        initializers = {
            t.name: sealed(apart[t.name]) if t.name in apart else onnx.numpy_helper.to_array(t)
            for t in graph.graph.initializer
        }
        del graph.graph.initializer[:]
        vars(self).update(facts=facts, tensors=_sealed_tensors(tensors or {}), initializers=_read_only(initializers))
        vars(self).update(_graph=graph.SerializeToString(deterministic=True))

    @property
    def model(self) -> onnx.ModelProto:
        """A copy of the model with the facts in its metadata."""
        model = onnx.ModelProto.FromString(self._graph)
        model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in self.initializers.items())
        write_metadata(model, self.facts)
        return model

    def _about(self) -> dict[str, str]:
        """Return a summary of the artifact by heading, for people."""
        facts, trained = self.facts, [n for n in self.facts.parameters if n in self.initializers]
        numbers = sum(self.initializers[name].size for name in trained)
        about = {
            "from the stage": str(facts.lineage[-1].get("stage", "")) if facts.lineage else "",
            "task": facts.task,
            "inputs": ", ".join(facts.inputs),
            "outputs": ", ".join(facts.outputs),
            "loss": facts.loss or "",
            "trained": f"{numbers:,} numbers in {len(trained)} parameters: {some(trained)}" if trained else "",
            **{f"test {name}": f"{row['trained']:.4g}" for name, row in facts.metrics.items() if "trained" in row},
        }
        return {key: value for key, value in about.items() if value}

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return f"Artifact({'; '.join(f'{key} {value}' for key, value in self._about().items())})"

    def _repr_html_(self) -> str:
        """Return a summary and a picture of the graph, for notebooks."""
        shown = ((html.escape(key), html.escape(value)) for key, value in self._about().items())
        cells = "".join(f"<tr><th>{key}</th><td>{value}</td></tr>" for key, value in shown)
        graph = to_svg(self.apart()[0], self.facts.parameters)
        return f"<table>{cells}</table><details><summary>graph</summary>{graph}</details>"

    def apart(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """Return the model without the values of its large weights, and these by name, without a copy."""
        model, weights = onnx.ModelProto.FromString(self._graph), dict[str, np.ndarray]()
        for name, array in self.initializers.items():
            dtype = None if array.dtype == object else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            if dtype in TYPES and array.size >= MANY:
                weights[name] = array
                model.graph.initializer.add(name=name, data_type=dtype, dims=array.shape)
            else:
                model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        write_metadata(model, self.facts)
        return model, weights

    @property
    def signature(self) -> onnx.ModelProto:
        """The model without its initializers, for queries of inputs, outputs and nodes."""
        return onnx.ModelProto.FromString(self._graph)

    @property
    def node_count(self) -> int:
        """The number of nodes of the graph, without those of its subgraphs."""
        return len(self.signature.graph.node)

    @gc_paused()
    def ir_model(self, outputs: Sequence[str] | None = None) -> ir.Model:
        """Return a new onnx_ir.Model to edit, which shares the artifact's arrays.

        With `outputs`, it is only the part that computes these.
        """
        model = onnx.ModelProto.FromString(self._graph)
        needed = None if outputs is None else keep_needed(model.graph, outputs)  # cutting the protobuf is cheaper
        arrays = {name: a for name, a in self.initializers.items() if needed is None or name in needed}
        for name, array in arrays.items():
            if array.dtype == object:
                model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
            else:
                dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                model.graph.initializer.add(name=name, data_type=dtype, dims=array.shape)
        write_metadata(model, self.facts)
        result = ir.from_proto(model)
        for name, array in arrays.items():
            if array.dtype != object:
                result.graph.initializers[name].const_value = ir.Tensor(array, name=name)
        if outputs is not None:
            keep_outputs(result, outputs)
        return result

    def next(
        self,
        stage: str,
        version: int,
        *,
        model: onnx.ModelProto | ir.Model | None = None,
        tensors: Arrays | None = None,
        notes: Sequence[str] = (),
        record: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> Artifact:
        """Return a new artifact with another model, other tensors or facts, and one more lineage record.

        `notes` are sentences for the user; a run shows and records them, also for a cache hit. `record` holds further
        entries of the lineage record, as plain JSON.
        """
        line = {"stage": stage, "version": version, "input": self.digest(), **(record or {})}
        line |= {"notes": list(notes)} if notes else {}
        after = dataclasses.replace(self.facts, **facts, lineage=(*self.facts.lineage, line))
        if model is not None:
            return Artifact(model, after, self.tensors if tensors is None else tensors)
        return self._with(facts=after, tensors=self.tensors if tensors is None else _sealed_tensors(tensors))

    def with_lineage(self, lineage: Sequence[Mapping[str, Any]]) -> Artifact:
        """Return the same content with another lineage, which is not part of the digest."""
        return self._with(facts=dataclasses.replace(self.facts, lineage=tuple(lineage)), _digest=self._digest)

    def _with(self, **changes: Any) -> Artifact:
        copy = object.__new__(Artifact)
        vars(copy).update({name: value for name, value in vars(self).items() if name != "_digest"} | changes)
        return copy

    def digest(self) -> str:
        """Return the sha256 (hex) of the content: graph, initializers, tensors, and facts without the lineage.

        It does not depend on how the model is stored (external data or not) or on the machine.
        """
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        sha = Hasher("artifact").add(self._graph)
        for kind, arrays in (("initializer", self.initializers), ("tensor", self.tensors)):
            for name, array in arrays.items():
                sha.add(kind, name, array)
        return sha.add("facts", json.dumps(self.facts.as_json(lineage=False))).hexdigest()


def _sealed_tensors(arrays: Arrays) -> Arrays:
    return types.MappingProxyType({name: sealed(np.asarray(array)) for name, array in sorted(arrays.items())})


def _read_only(arrays: dict[str, np.ndarray]) -> Arrays:
    for array in arrays.values():
        array.flags.writeable = False
    return types.MappingProxyType(arrays)


def under(folder: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors of a folder, by their names without it.

    >>> under("parameter", {"parameter/w": np.ones(1), "initial/w": np.zeros(1)})
    {'w': array([1.])}
    """
    return {k.removeprefix(f"{folder}/"): v for k, v in tensors.items() if k.startswith(f"{folder}/")}


def save_artifact(
    artifact: Artifact,
    folder: str | os.PathLike[str],
    *,
    once: bool = False,
    like: Path | None = None,
    beside: Mapping[str, str] = types.MappingProxyType({}),
) -> Path:
    """Write an artifact as one folder, atomically, replacing an existing one.

    The folder holds `model.onnx` (+ `model.onnx.data` above 2 GB), `tensors.safetensors` and `artifact.json`, which
    names the `source/…` tensors that still equal initializers of the model: these are stored only in the model.

    Args:
        artifact: the artifact.
        folder: the folder to write.
        once: keep an existing folder; the files of a new one are read-only.
        like: a folder with an artifact of the same content, whose files are linked instead of written again.
        beside: other files of the folder by name, as text.
    """
    target, same = Path(folder), _in_model(artifact)
    with atomic_folder(target, once=once) as partial:
        if like is None or not link_files(like, partial, {"model.onnx", TENSORS}, without="artifact.json"):
            model, weights = artifact.apart()
            write(model, partial, weights=weights)
            _write_tensors({name: a for name, a in artifact.tensors.items() if name not in same}, partial / TENSORS)
        facts = {"format": FORMAT, "digest": artifact.digest(), "same": same, "facts": artifact.facts.fields()}
        for name, text in {"artifact.json": json.dumps(facts, indent=1, default=vars) + "\n", **beside}.items():
            (partial / name).write_bytes(text.encode())
        if once and os.name == "posix":  # Windows does not delete read-only files, nor links to them
            for file in partial.iterdir():
                file.chmod(file.stat().st_mode & 0o444)  # links to the file would see an edit in place, too
    return target


def _in_model(artifact: Artifact) -> list[str]:
    """Return the names of `source/…` tensors that equal the model's initializers bit by bit."""
    names = []
    for name, array in under("source", artifact.tensors).items():
        initializer = artifact.initializers.get(name)
        if initializer is None or (array.dtype, array.shape) != (initializer.dtype, initializer.shape):
            continue
        if same_bytes(array, initializer):
            names.append(f"source/{name}")
    return names


CODES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}  # dtype → safetensors' code
CODES |= {f"{sign}int{bits}": f"{sign.upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
DTYPES = {code: name for name, code in CODES.items()}


def _write_tensors(arrays: Arrays, path: Path) -> None:
    """Write a .safetensors file, one array after the other.

    The library's `save` would hold two copies of all arrays; its `save_file` makes the file readable by its owner only,
    and its errors have no errno.
    """
    header, begin = dict[str, object](), 0
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # so that each is aligned
    for name in names:
        dtype, end = arrays[name].dtype.name, begin + arrays[name].nbytes
        if dtype not in CODES:
            rule = "An artifact's tensors must hold numbers or booleans."
            raise ModelError(rule, got=f"{name!r} of {dtype}", fix="Leave it out, or write it as numbers.")
        header[name] = {"dtype": CODES[dtype], "shape": arrays[name].shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(bytes_of(arrays[name]))


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read a .safetensors file, each array into immutable bytes; the library would hold two copies."""
    _check_header(path)
    arrays = dict[str, np.ndarray]()
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = parse_json(file.read(size))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                dtype = np.dtype(DTYPES[entry["dtype"]])
                file.seek(8 + size + begin)
                raw = np.empty(0, np.uint8) if begin == end else np.frombuffer(file.read(end - begin), np.uint8)
                arrays[name] = raw.view(dtype.newbyteorder("<")).reshape(entry["shape"])
    return arrays


def _check_header(path: Path) -> None:
    try:
        with safe_open(path, "np"):
            pass
    except (OSError, SafetensorError):  # without an errno, whatever the cause
        path.open("rb").close()  # raises with an errno if the file cannot be opened now
        with safe_open(path, "np"):  # raises if the file is damaged
            pass


def load_artifact(folder: str | os.PathLike[str], digest: str | None = None) -> Artifact:
    """Read an artifact that `save_artifact` wrote, and verify the recorded digest, and `digest` if it is given.

    Raises:
        ModelError: a file is missing or damaged, or the content has another digest.
        OSError: a file exists and cannot be read now.
    """
    source = Path(folder)
    record = source / "artifact.json"
    if not os.path.lexists(record):
        raise ModelError(
            "An artifact must be a folder with artifact.json.",
            got=source,
            fix="Give a stage's folder of a run.",
        )
    try:
        written = parse_json(read_below(source, record.name, MOST))
        if written.get("format", FORMAT) != FORMAT:
            raise ModelError(
                f"An artifact's format must be the one of this version of ortpipe, {FORMAT}.",
                got=f"{source}: format {written['format']}",
                fix="Read it with the version that wrote it, or run the stage again.",
            )
        expected = {written["digest"], digest or written["digest"]}
        with located(record):
            facts = Facts.from_json(written["facts"])
        model, weights = read_apart(file_below(source, "model.onnx"))
        artifact = Artifact(model, facts, _read_tensors(file_below(source, TENSORS)), weights=weights)
        same = {name: artifact.initializers[name.removeprefix("source/")] for name in written["same"]}
        artifact = artifact._with(tensors=_sealed_tensors({**artifact.tensors, **same})) if same else artifact
        actual = artifact.digest() if in_metadata(model, facts) else "other facts in model.onnx"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in NOTHING:
            raise
        raise ModelError(
            "An artifact's files must be there and readable.",
            got=f"{source}: {error}",
            fix="The folder is damaged: run the stage again.",
        ) from error
    if {actual} != expected:
        raise ModelError(
            "An artifact's content must have the digest it was written with.",
            got=f"{source}: {actual} instead of {' and '.join(sorted(expected))}",
            fix="The folder is damaged: run the stage again.",
        )
    return artifact
