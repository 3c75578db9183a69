"""Putting trained weights back into the source of a model: a scikit-learn estimator or a state_dict."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Artifact, Facts
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Data
from ortpipe.errors import ModelError
from ortpipe.graph.core import query
from ortpipe.graph.core.inference import parsed
from ortpipe.graph.core.origins import Origin, Place, put
from ortpipe.graph.core.selection import some
from ortpipe.graph.forms.modes import is_statistic
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.imported_steps import TOLERANCE
from ortpipe.stages.convert.restore.onnx_model import Arrays, Decision, Find, decide
from ortpipe.stages.convert.rows.compared_rows import ROWS
from ortpipe.stages.convert.sources import estimator_of, from_estimator

NEEDS_ROWS = "Comparing an estimator with the model needs rows that the estimator accepts."


class Weights(NamedTuple):
    """A model's float weights, and where they come from."""

    trained: Arrays  # parameters, and running statistics that training moved
    untrained: Arrays
    source: Arrays  # the source's values of weights that training may have moved
    origins: Mapping[str, Origin]


def restore(trained: Artifact, into: Any = None, *, data: Data | None = None) -> Any:
    """Return the source that a model was converted from, with the trained weights; `into` itself stays unchanged.

    Args:
        trained: the artifact that train, or any other stage, returned.
        into: a fitted estimator or Pipeline, or a state_dict; by default the estimator that convert fitted.
        data: rows on which the estimator must predict the same as the model; by default random ones.

    Raises:
        ModelError: a trained weight has no place in `into`, or the estimator predicts something else.

    >>> from ortpipe import convert
    >>> from sklearn.linear_model import LinearRegression
    >>> estimator = LinearRegression().fit(np.eye(3), [1.0, 2.0, 3.0])
    >>> restore(convert(estimator), estimator).coef_.tolist() == estimator.coef_.tolist()
    True
    """
    facts = trained.facts
    weights = weights_of(trained.apart()[0], trained.initializers, facts.as_json(), trained.tensors)
    if isinstance(into, Mapping):
        arrays = {name: _array_of(value) for name, value in into.items()}
        tensors = {name: Place(name, array) for name, array in arrays.items() if array is not None}
        changed = into_state_dict(tensors, "the state_dict", weights).changed
        new = {tensor.name: array for tensor, array in changed.items()}
        return {name: _like(value, new[name]) if name in new else value for name, value in into.items()}
    if isinstance(into, str | Path) or callable(getattr(into, "state_dict", None)):
        fix = "Give module.state_dict(), and load what comes back; for a file: ortpipe restore RUN --into FILE."
        raise ModelError("Weights go back into an estimator or a state_dict.", got=type(into).__name__, fix=fix)
    if into is None:
        into = estimator_of(convert_record(facts.as_json()), trust=True)  # the caller's own artifact
    estimator, _ = into_estimator(into, weights)
    verify(estimator, trained.model, facts, data)
    return estimator


def convert_record(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return convert's record in a model's lineage."""
    return next((record for record in facts.get("lineage", ()) if record["stage"] == "convert"), {})


def weights_of(model: onnx.ModelProto, values: Arrays, facts: Mapping[str, Any], tensors: Arrays) -> Weights:
    """Return a model's weights; `values` are its initializers' arrays, and a bare file has no tensors."""
    record = convert_record(facts)
    graph = parsed(model).graph
    moved = {name.removeprefix("parameter/") for name in tensors if name.startswith("parameter/")}
    trained = {*facts["parameters"], *moved, *record.get("init", {}).get("weights", ())}
    trained |= {name for name, value in graph.initializers.items() if not tensors and is_statistic(value)}
    arrays = {t.name: values[t.name] for t in model.graph.initializer if ir.DataType(t.data_type) in query.FLOATS}
    return Weights(
        {name: array for name, array in arrays.items() if name in trained},
        {name: array for name, array in arrays.items() if name not in trained},
        {name.removeprefix("source/"): a for name, a in tensors.items() if name.startswith("source/")},
        record.get("origins", {}),
    )


# State dicts


def into_state_dict(tensors: Mapping[str, Place], label: str, weights: Weights) -> Decision[Place]:
    """Return which tensors of a state_dict change; tied weights change under each of their names."""
    keys_by_name = {
        name: [key for key in weights.origins.get(name, {}).get("state_dict", ()) if key in tensors]
        for name in weights.trained
    }

    def by_key(arrays: Arrays) -> dict[str, np.ndarray]:
        return {key: array for name, array in arrays.items() for key in keys_by_name.get(name) or [name]}

    origins = {key: origin for name, origin in weights.origins.items() for key in keys_by_name.get(name) or [name]}
    origins = {key: origin for key, origin in origins.items() if "state_dict" not in origin}
    find = partial(_tensor, tensors)
    decision = decide(find, label, by_key(weights.trained), weights.untrained, origins, list(tensors))
    source_arrays = by_key({n: a for n, a in weights.source.items() if n in weights.trained})
    used_keys = {origins.get(n, {}).get("initializer", n) for n in (*by_key(weights.trained), *weights.untrained)}
    unused = [key for key in tensors if key.endswith("running_var") and key not in used_keys]
    _check_layout(find, label, {n: a for n, a in source_arrays.items() if n not in origins}, unused)
    return decision


def _tensor(tensors: Mapping[str, Place], name: str, origin: Origin | None) -> Place | None:
    """Return the tensor named like the parameter, or like the initializer that the parameter came from."""
    if origin is not None and "initializer" not in origin:
        return None
    return tensors.get(name if origin is None else origin["initializer"])


def _check_layout(find: Find[Place], label: str, source_arrays: Arrays, unused: Sequence[str]) -> None:
    """Reject a state_dict that an exporter changed in ways that shapes do not tell.

    It may have transposed square weights, or have folded normalizations into the weights in front of them: their
    variances are then `unused`.
    """
    places = {name: find(name, None) for name in source_arrays}
    stored = {name: place.array.astype(source_arrays[name].dtype) for name, place in places.items() if place}
    changed = [name for name, array in stored.items() if not np.array_equal(array, source_arrays[name])]
    matrices = [name for name in changed if stored[name].ndim == 2]
    if transposed := [name for name in matrices if np.array_equal(stored[name].T, source_arrays[name])]:
        raise ModelError(
            "A weight must have the same layout in the state_dict as in the model.",
            got=f"{label}: {some(transposed)} transposed",
            fix="Export the model again without folding transposes, or convert the module with convert=torch.",
        )
    if unused and changed:
        raise ModelError(
            "A state_dict must hold the model's weights without a normalization folded into them.",
            got=f"{label}: the model has no {some(unused)}; the run started from another {some(changed)}",
            fix="Convert the module itself (convert=torch), which keeps normalizations, instead of an exported file.",
        )


def named_as_in_state_dict(weights: Weights) -> dict[str, np.ndarray]:
    """Return all float weights under the names and in the layout of a state_dict."""
    arrays, without_place = dict[str, np.ndarray](), list[str]()
    for name, array in {**weights.untrained, **weights.trained}.items():
        origin = weights.origins.get(name, {})
        steps = origin.get("transform", [])
        if "node" in origin or "step" in origin or any(step not in ("transpose", "permute") for step, *_ in steps):
            without_place.append(name)
            continue
        for step in reversed(steps):
            array = put(np.empty(()), array, [step], weights.untrained.__getitem__)
        for key in origin.get("state_dict") or [origin.get("initializer", name)]:
            arrays[key] = np.ascontiguousarray(array)
    if without_place:
        raise ModelError(
            "A new file of weights must hold them as the source does.",
            got=f"{some(without_place)}, which convert computed from other weights",
            fix="Name an existing file, whose tensors are then overwritten.",
        )
    return arrays


def _array_of(value: Any) -> np.ndarray | None:
    """Return a PyTorch or NumPy tensor of floats as an array; None for any other value."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind == "f" else None
    if not hasattr(value, "is_floating_point") or not value.is_floating_point():
        return None
    tensor = value.detach().cpu()
    floats = tensor.float() if tensor.element_size() < 4 else tensor  # NumPy has no bfloat16
    return np.asarray(floats.numpy())


def _like(value: Any, array: np.ndarray) -> Any:
    return array if isinstance(value, np.ndarray) else value.new_tensor(array)


# Estimators


@dataclass(frozen=True, eq=False)
class Attribute(Place):
    """An array attribute of an estimator, or an entry of an attribute that is a list or dict of arrays."""

    owner: Any = field(repr=False)
    attribute: str
    index: int | str | None = None

    def set(self, array: np.ndarray) -> None:
        """Replace the array, keeping its form: dense, sparse, or one number."""
        container = getattr(self.owner, self.attribute)
        current = container if self.index is None else container[self.index]
        new = array if isinstance(current, np.ndarray) else type(current)(array)
        if self.index is None:
            setattr(self.owner, self.attribute, new)
        else:
            container[self.index] = new


def _attribute(estimator: Any, name: str, origin: Origin | None) -> Attribute | None:
    """Return the attribute of an estimator or its parts that an origin names."""
    if origin is None or "step" not in origin:
        return None
    try:
        owner = estimator
        for step in origin["step"]:
            owner = _part(owner, step)
        value = getattr(owner, origin["attribute"])
        index = origin.get("index")
        value = value if index is None else value[index]
    except (AttributeError, LookupError, TypeError):
        return None
    array = value.toarray() if hasattr(value, "toarray") else np.asarray(value)
    path = ".".join(map(str, [*origin["step"], origin["attribute"], *([] if index is None else [index])]))
    return Attribute(path, array, owner, origin["attribute"], index)


def _part(container: Any, step: int | str) -> Any:
    """Return the part of an estimator, list or dict that a step of an origin names."""
    for parts in ("steps", "transformers_", "transformer_list"):
        named_parts = getattr(container, parts, None)
        if isinstance(named_parts, list):
            if isinstance(step, int):
                return named_parts[step][1]
            for name, part, *_ in named_parts:
                if name == step:
                    return part
    if isinstance(container, list | tuple | dict | np.ndarray):
        return container[step]  # type: ignore[index]
    return getattr(container, str(step))


def into_estimator(estimator: Any, weights: Weights) -> tuple[Any, Decision[Attribute]]:
    """Return a copy of a fitted estimator with trained weights, and which attributes changed."""
    estimator = copy.deepcopy(estimator)
    find, label = partial(_attribute, estimator), type(estimator).__name__
    decision = decide(find, label, weights.trained, weights.untrained, weights.origins)
    for place, array in decision.changed.items():
        place.set(array)
    return estimator, decision


def verify(estimator: Any, model: onnx.ModelProto, facts: Facts, data: Data | None) -> tuple[int, float]:
    """Reject an estimator that predicts something else than a model; return the number of rows and the difference."""
    rows = None if data is None else data.train.head(ROWS)
    inputs = _sample_rows(estimator, model, facts) if rows is None else feed_inputs(model, facts, rows)
    floats = [array.dtype.name for array in inputs.values() if array.dtype.kind == "f"]
    forward = from_estimator(estimator, data, floats[0] if floats else "float32")
    source_inputs = rows.inputs if rows is not None and forward.as_given else inputs
    try:
        estimator_output = forward.expected(source_inputs, facts.prediction)
    except ValueError as error:  # random rows are no counts or categories
        raise ModelError(NEEDS_ROWS, got=f"{type(estimator).__name__}: {error}", fix="Give data.") from error
    [output] = Session(model).run(inputs, [facts.prediction])
    expected = np.asarray(estimator_output, np.float64).reshape(output.shape)
    difference = float(np.abs(output - expected).max() / max(1.0, np.abs(expected).max()))
    if not difference <= TOLERANCE.get(output.dtype.name, 1e-2):
        raise ModelError(
            "With the trained weights, an estimator must predict what the trained model predicts.",
            got=f"{type(estimator).__name__}: largest difference {difference:.3g} on {len(output)} rows",
            fix="Name the estimator that the run converted.",
        )
    return len(output), difference


def _sample_rows(estimator: Any, model: onnx.ModelProto, facts: Facts) -> dict[str, np.ndarray]:
    """Return random rows that are normal behind the scalers at the beginning of a Pipeline."""
    generator, rows = np.random.default_rng(0), dict[str, np.ndarray]()
    for value in (value for value in model.graph.input if value.name in facts.inputs):
        tensor = value.type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        shape = [ROWS, *(d.dim_value for d in list(tensor.shape.dim)[1:])]
        if dtype.kind == "f" and 0 not in shape:
            rows[value.name] = generator.standard_normal(shape).astype(dtype)
        else:
            raise ModelError(NEEDS_ROWS, got=f"no rows for input {value.name!r}", fix="Give data.")
    if len(rows) == 1 and len(getattr(estimator, "steps", ())) > 1:
        [(name, standardized)] = rows.items()
        try:
            rows[name] = np.asarray(estimator[:-1].inverse_transform(standardized), standardized.dtype)
        except (AttributeError, ValueError):  # no scalers
            return rows
    return rows
