"""Artifact, which stages pass on: a checked ONNX model, named tensors, and facts about them."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ortpipe.doors import later
from ortpipe.facts import Facts as Facts
from ortpipe.facts import HeadFacts as HeadFacts
from ortpipe.facts import Task as Task
from ortpipe.facts import metadata_of
from ortpipe.graph.core.protos import is_large_weight, sealed, without_metadata
from ortpipe.hashing import Hasher

if TYPE_CHECKING:  # for notebooks, and for new models: onnx-ir imports sympy, which takes 0.4 s
    import onnx_ir as ir
    from onnx_ir import Tensor, from_proto

    from ortpipe.artifact_show import about, as_html
    from ortpipe.graph.core.builder import gc_paused
    from ortpipe.graph.core.check import finish_apart
    from ortpipe.graph.core.edit import keep_outputs
else:
    later(__name__)

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
        checked, apart = (model, weights or {}) if isinstance(model, onnx.ModelProto) else finish_apart(model)
        graph = without_metadata(checked)
        initializers = {
            t.name: sealed(apart[t.name]) if t.name in apart else onnx.numpy_helper.to_array(t)
            for t in graph.graph.initializer
        }
        for array in initializers.values():
            array.flags.writeable = False
        del graph.graph.initializer[:]
        vars(self).update(facts=facts, tensors=_sealed_tensors(tensors or {}))
        vars(self).update(initializers=types.MappingProxyType(initializers))
        vars(self).update(_graph=graph.SerializeToString(deterministic=True))

    @property
    def model(self) -> onnx.ModelProto:
        """A copy of the model with the facts in its metadata."""
        return self._proto()

    def _proto(self, outside: Collection[str] = ()) -> onnx.ModelProto:
        """Return the model with the facts in its metadata; initializers of `outside` have no values."""
        model = self.signature
        for name, array in self.initializers.items():
            if name in outside:
                dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                model.graph.initializer.add(name=name, data_type=dtype, dims=array.shape)
            else:
                model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        for key, value in metadata_of(self.facts):
            model.metadata_props.add(key=key, value=value)
        return model

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return f"Artifact({'; '.join(f'{key} {value}' for key, value in about(self).items())})"

    def _repr_html_(self) -> str:
        """Return a summary and a picture of the graph, for notebooks."""
        return str(as_html(self))

    def apart(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """Return the model without the values of its large weights, and these by name, without a copy."""
        plain = {name: array for name, array in self.initializers.items() if array.dtype != object}  # without strings
        codes = {name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in plain.items()}
        weights = {name: array for name, array in plain.items() if is_large_weight(codes[name], array.size)}
        return self._proto(weights), weights

    @property
    def signature(self) -> onnx.ModelProto:
        """The model without its initializers, for queries of inputs, outputs and nodes."""
        return onnx.ModelProto.FromString(self._graph)

    def ir_model(self, outputs: Sequence[str] | None = None) -> ir.Model:
        """Return a new onnx_ir.Model to edit, which shares the artifact's arrays.

        With `outputs`, it is only the part that computes these.
        """
        shared = {name: array for name, array in self.initializers.items() if array.dtype != object}
        with gc_paused():
            result = from_proto(self._proto(shared))
            for name, array in shared.items():
                result.graph.initializers[name].const_value = Tensor(array, name=name)
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

    def with_tensors(self, tensors: Arrays) -> Artifact:
        """Return the same model with other tensors."""
        return self._with(tensors=_sealed_tensors(tensors))

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


def in_folder(folder: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors of a folder, by their names without it.

    >>> in_folder("parameter", {"parameter/w": np.ones(1), "initial/w": np.zeros(1)})
    {'w': array([1.])}
    """
    return {k.removeprefix(f"{folder}/"): v for k, v in tensors.items() if k.startswith(f"{folder}/")}
