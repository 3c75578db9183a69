"""Trained weights back into what convert read: a scikit-learn estimator, a state_dict."""

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Artifact, Facts
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Data
from ortpipe.errors import ModelError
from ortpipe.graph import query
from ortpipe.graph.check import parsed
from ortpipe.graph.modes import is_statistic
from ortpipe.graph.origins import Origin, put
from ortpipe.graph.parameters import some
from ortpipe.graph.restore import Arrays, Decision, decide
from ortpipe.graph.state_dict import StateDict, StoredTensor
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.sources.kept import kept_estimator
from ortpipe.stages.convert.sources.sklearn_estimator import from_estimator
from ortpipe.stages.convert.stage import ROWS, TOLERANCE

SEEN = "Whether an estimator predicts what the model does is seen on rows that it takes."


class Weights(NamedTuple):
    """A model's float weights, and where they come from."""

    trained: Arrays  # what goes back: parameters, and running statistics that training moved
    untrained: Arrays
    source: Arrays  # what those of the source were that training may have moved
    origins: Mapping[str, Origin]


def restore(trained: Artifact, into: Any = None, *, data: Data | None = None) -> Any:
    """Return what a model was converted from, with the trained weights in it; what is given stays as it is.

    Args:
        trained: what train returned, or any other stage.
        into: a fitted estimator or Pipeline, or a state_dict; by default the estimator that convert fitted.
        data: rows on which the estimator must predict what the model does; by default some are drawn.

    Raises:
        ModelError: a trained weight has no place there, or the estimator predicts something else.

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
        tensors = {name: StoredTensor(name, array, array) for name, array in arrays.items() if array is not None}
        changed = into_state_dict(StateDict(tensors), "the state_dict", weights).changed
        new = {tensor.name: array for tensor, array in changed.items()}
        return {name: _like(value, new[name]) if name in new else value for name, value in into.items()}
    if isinstance(into, str | Path) or callable(getattr(into, "state_dict", None)):
        fix = "Give module.state_dict(), and load what comes back; for a file: ortpipe restore RUN --into FILE."
        raise ModelError("Weights go back into an estimator or a state_dict.", got=type(into).__name__, fix=fix)
    if into is None:
        into = kept_estimator(convert_record(facts.as_json()), trust=True)  # the caller's own artifact
    estimator, _ = into_estimator(into, weights)
    verify(estimator, trained.model, facts, data)
    return estimator


def convert_record(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what convert said of itself in a model's lineage."""
    return next((one for one in facts.get("lineage", ()) if one["stage"] == "convert"), {})


def weights_of(model: onnx.ModelProto, held: Arrays, facts: Mapping[str, Any], tensors: Arrays) -> Weights:
    """Return a model's weights, of its initializers as arrays; a bare file has no tensors."""
    record = convert_record(facts)
    graph = parsed(model).graph
    moved = {name.removeprefix("parameter/") for name in tensors if name.startswith("parameter/")}
    chosen = {*facts["parameters"], *moved, *record.get("init", {}).get("weights", ())}
    chosen |= {name for name, value in graph.initializers.items() if not tensors and is_statistic(value)}
    arrays = {t.name: held[t.name] for t in model.graph.initializer if ir.DataType(t.data_type) in query.FLOATS}
    return Weights(
        {name: array for name, array in arrays.items() if name in chosen},
        {name: array for name, array in arrays.items() if name not in chosen},
        {name.removeprefix("source/"): a for name, a in tensors.items() if name.startswith("source/")},
        record.get("origins", {}),
    )


# State dicts


def into_state_dict(source: StateDict, label: str, weights: Weights) -> Decision[StoredTensor]:
    """Return what goes where in a state_dict; of tied weights, under each name that it has."""
    spread = {name: list(_keys(source, name, weights.origins.get(name))) for name in weights.trained}

    def by_key(arrays: Arrays) -> dict[str, np.ndarray]:
        return {key: array for name, array in arrays.items() for key in spread.get(name) or [name]}

    origins = {key: origin for name, origin in weights.origins.items() for key in spread.get(name) or [name]}
    origins = {key: origin for key, origin in origins.items() if "state_dict" not in origin}
    decided = decide(source, label, by_key(weights.trained), weights.untrained, origins)
    began = by_key({n: a for n, a in weights.source.items() if n in weights.trained})
    _check_layout(source, label, began, origins)
    _check_folded(source, label, began, {*by_key(weights.trained), *weights.untrained}, origins)
    return decided


def _keys(source: StateDict, name: str, origin: Origin | None) -> Iterator[str]:
    for key in (origin or {}).get("state_dict", ()):
        if key in source.tensors:
            yield key


def _check_layout(source: StateDict, label: str, began: Arrays, origins: Mapping[str, Origin]) -> None:
    """Refuse tensors whose transpose is what the run began with: exporters turn matrices, and squares hide it."""
    turned = []
    for name, array in began.items():
        place = source.find(name, origins.get(name))
        if place is None or array.ndim != 2 or array.shape[0] != array.shape[1] or name in origins:
            continue
        held = place.array.astype(array.dtype)
        if not np.array_equal(held, array) and np.array_equal(held.T, array):
            turned.append(name)
    if turned:
        raise ModelError(
            "A weight lies in the state_dict as it does in the model.",
            got=f"{label}: {some(turned)} transposed",
            fix="Export the model again without folding transposes, or convert the module with convert=torch.",
        )


def _check_folded(
    source: StateDict, label: str, began: Arrays, names: Collection[str], origins: Mapping[str, Origin]
) -> None:
    """Refuse weights that an exporter multiplied by a normalization in front of which they lie, and which is gone."""
    used = {origins.get(name, {}).get("initializer", name) for name in names}
    gone = [key for key in source.tensors if key.endswith("running_var") and key not in used]
    places = {name: source.find(name, origins.get(name)) for name in began if name not in origins}
    other = [
        n for n, place in places.items() if place and not np.array_equal(place.array.astype(began[n].dtype), began[n])
    ]
    if gone and other:
        raise ModelError(
            "The weights of a state_dict are the model's own, not their products with a normalization.",
            got=f"{label}: the model has no {some(gone)}; the run began with another {some(other)}",
            fix="Convert the module itself (convert=torch), which keeps normalizations, instead of an exported file.",
        )


def named_as_in_state_dict(weights: Weights) -> dict[str, np.ndarray]:
    """Return all float weights under the names, and in the layout, that a state_dict has them."""
    found, homeless = dict[str, np.ndarray](), list[str]()
    for name, array in {**weights.untrained, **weights.trained}.items():
        origin = weights.origins.get(name, {})
        steps = origin.get("transform", [])
        if "node" in origin or "step" in origin or any(step not in ("transpose", "permute") for step, *_ in steps):
            homeless.append(name)
            continue
        for step in reversed(steps):
            array = put(np.empty(()), array, [step], weights.untrained.__getitem__)
        for key in origin.get("state_dict") or [origin.get("initializer", name)]:
            found[key] = np.ascontiguousarray(array)
    if homeless:
        raise ModelError(
            "A new file of weights has them as the source does.",
            got=f"{some(homeless)}, which convert made of others",
            fix="Name a file that is there, whose tensors are written over.",
        )
    return found


def _array_of(value: Any) -> np.ndarray | None:
    """Return a floating tensor, of PyTorch or NumPy, as an array."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind == "f" else None
    if not hasattr(value, "is_floating_point") or not value.is_floating_point():
        return None
    tensor = value.detach().cpu()
    wide = tensor.float() if tensor.element_size() < 4 else tensor  # NumPy has no bfloat16
    return np.asarray(wide.numpy())


def _like(value: Any, array: np.ndarray) -> Any:
    return array if isinstance(value, np.ndarray) else value.new_tensor(array)


# Estimators


@dataclass(frozen=True, eq=False)
class Attribute:
    """An array of an estimator, or one of a list or dict of arrays."""

    name: str
    array: np.ndarray = field(repr=False)
    owner: Any = field(repr=False)
    attribute: str
    index: int | str | None = None

    def set(self, array: np.ndarray) -> None:
        """Put a new array in its place, as what is there: dense, sparse, or one number."""
        now = getattr(self.owner, self.attribute)
        old = now if self.index is None else now[self.index]
        new = array if isinstance(old, np.ndarray) else type(old)(array)
        if self.index is None:
            setattr(self.owner, self.attribute, new)
        else:
            now[self.index] = new


@dataclass(frozen=True)
class EstimatorArrays:
    """Attributes of an estimator and its parts, as `decide` looks for them."""

    estimator: Any

    def find(self, name: str, origin: Origin | None) -> Attribute | None:
        """Return the attribute that an origin says."""
        if origin is None or "step" not in origin:
            return None
        try:
            owner = self.estimator
            for step in origin["step"]:
                owner = _part(owner, step)
            value = getattr(owner, origin["attribute"])
            index = origin.get("index")
            value = value if index is None else value[index]
        except (AttributeError, LookupError, TypeError):
            return None
        array = value.toarray() if hasattr(value, "toarray") else np.asarray(value)
        place = ".".join(map(str, [*origin["step"], origin["attribute"], *([] if index is None else [index])]))
        return Attribute(place, array, owner, origin["attribute"], index)

    def values(self, name: str) -> np.ndarray:
        """Return nothing: no step of an estimator's origin names another array."""
        raise KeyError(f"there is no {name!r}")


def _part(whole: Any, step: int | str) -> Any:
    """Return the part of an estimator, list or dict that a step of an origin names."""
    for parts in ("steps", "transformers_", "transformer_list"):
        named = getattr(whole, parts, None)
        if isinstance(named, list):
            if isinstance(step, int):
                return named[step][1]
            for name, part, *_ in named:
                if name == step:
                    return part
    if isinstance(whole, list | tuple | dict | np.ndarray):
        return whole[step]  # type: ignore[index]
    return getattr(whole, str(step))


def into_estimator(estimator: Any, weights: Weights) -> tuple[Any, Decision[Attribute]]:
    """Return a copy of a fitted estimator with trained weights, and what went where."""
    estimator = copy.deepcopy(estimator)
    trained, origins = dict(weights.trained), dict(weights.origins)
    for name, origin in weights.origins.items():
        for other in origin.get("also", ()):  # what predict reads is kept twice
            again = f"{name} as {other['attribute']}"
            origins[again] = {"step": origin["step"], **other}
            trained |= {again: trained[name]} if name in trained else {}
    label = type(estimator).__name__
    decided = decide(EstimatorArrays(estimator), label, trained, weights.untrained, origins)
    for place, array in decided.changed.items():
        place.set(array)
    written, unmoved = (tuple(n for n in names if n in weights.trained) for names in (decided.written, decided.kept))
    return estimator, replace(decided, written=written, kept=unmoved)


def verify(estimator: Any, model: onnx.ModelProto, facts: Facts, data: Data | None) -> tuple[int, float]:
    """Refuse an estimator that predicts something else than a model; return on how many rows, and how far it is off."""
    rows = None if data is None else data.train.head(ROWS)
    inputs = _drawn(estimator, model, facts) if rows is None else feed_inputs(model, facts, rows)
    floats = [array.dtype.name for array in inputs.values() if array.dtype.kind == "f"]
    forward = from_estimator(estimator, data, floats[0] if floats else "float32")
    assert forward.expected is not None
    given = rows.inputs if rows is not None and forward.as_given else inputs
    try:
        predicted = forward.expected(given, facts.prediction)
    except ValueError as error:  # as of counts or categories, which drawn rows are not
        raise ModelError(SEEN, got=f"{type(estimator).__name__}: {error}", fix="Give data.") from error
    [got] = Session(model).run(inputs, [facts.prediction])
    expected = np.asarray(predicted, np.float64).reshape(got.shape)
    worst = float(np.abs(got - expected).max() / max(1.0, np.abs(expected).max()))
    if not worst <= TOLERANCE.get(got.dtype.name, 1e-2):
        raise ModelError(
            "With the trained weights, an estimator predicts what the trained model does.",
            got=f"{type(estimator).__name__}: largest difference {worst:.3g} on {len(got)} rows",
            fix="Name the estimator that the run converted.",
        )
    return len(got), worst


def _drawn(estimator: Any, model: onnx.ModelProto, facts: Facts) -> dict[str, np.ndarray]:
    """Return normal rows, as scalers at the beginning of a Pipeline would have to be given for them."""
    generator, drawn = np.random.default_rng(0), dict[str, np.ndarray]()
    for value in (value for value in model.graph.input if value.name in facts.inputs):
        tensor = value.type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        shape = [ROWS, *(d.dim_value for d in list(tensor.shape.dim)[1:])]
        words = facts.categories.get(value.name, ())
        if dtype.kind == "f" and 0 not in shape:
            drawn[value.name] = generator.standard_normal(shape).astype(dtype)
        elif dtype.kind == "O" and words:
            drawn[value.name] = generator.choice(np.array(words, object), shape)
        else:
            raise ModelError(SEEN, got=f"no rows for input {value.name!r}", fix="Give data.")
    if len(drawn) == 1 and len(getattr(estimator, "steps", ())) > 1:
        [(name, rows)] = drawn.items()
        try:
            drawn[name] = np.asarray(estimator[:-1].inverse_transform(rows), rows.dtype)
        except (AttributeError, ValueError):  # no scalers: plain rows do
            return drawn
    return drawn
