"""A client: a bundle of `ortpipe export` that trains on rows of its own."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortpipe.bundle import changed_files, read_bundle, read_state, scalars_at
from ortpipe.errors import ConfigError, ModelError
from ortpipe.graph import read_apart
from ortpipe.runtime import Session


class BundleClient:
    """Train and evaluate a bundle on rows.

    Weights are one vector [P]: the parameters, and running statistics after them. The optimizer and its schedule start
    anew in every call of `fit`.

    Args:
        folder: the bundle.
        rows: arrays [N, …] by the names in the description's `rows`, classes as places from 0 on.

    Attributes:
        weights: those of the bundle, with which the first round begins.
        count: N.

    Raises:
        ModelError: the files are not those of a bundle, rows do not fit, or the bundle trains an average of weights.
    """

    def __init__(self, folder: str | Path, rows: Mapping[str, np.ndarray]) -> None:
        path = Path(folder)
        self._description = read_bundle(path)
        if changed := changed_files(path, self._description):
            rule, fix = "The files of a bundle must be those of its export.", "Copy or export it again."
            raise ModelError(rule, got=f"missing or changed: {', '.join(changed)}", fix=fix)
        self._state = read_state(path, self._description)
        self._names = [str(name) for name in self._description["weights"]]
        if self._names[0] != self._description["carried"][0]:
            rule, fix = "Clients average the weights themselves.", "Export the bundle with train.average=null."
            raise ModelError(rule, got=f"a bundle that predicts with {self._names[0]}", fix=fix)
        self._train, self._validate, self._predict = (_session(path, name) for name in ("train", "validate", "predict"))
        self._rows = self._checked(rows)
        self.count = len(next(iter(self._rows.values())))
        self.weights = self._flat(self._state)

    def fit(self, weights: np.ndarray, *, epochs: int, batch_size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights after training, and the loss of each step.

        Rows are shuffled in every epoch. The last batch of an epoch has the remaining rows.
        """
        for name, number in (("epochs", epochs), ("batch_size", batch_size)):
            if number < 1:
                raise ConfigError(f"{name} must be positive.", got=number, fix="Give 1 or more.")
        state = {name: self._state[name] for name in self._description["carried"]} | self._parts(weights)
        rng, losses, done = np.random.default_rng(seed), list[np.ndarray](), 0
        full = self.count - self.count % batch_size
        for _ in range(epochs):
            order = rng.permutation(self.count)
            for places in (order[:full].reshape(-1, batch_size), order[None, full:]):
                if places.size:
                    rows = {name: array[places] for name, array in self._rows.items()}
                    *values, part = self._train.run({**state, **rows, **self._scalars(done, len(places))})
                    state, done = dict(zip(state, values, strict=True)), done + len(places)
                    losses.append(part)
        return self._flat(state), np.concatenate(losses)

    def loss(self, weights: np.ndarray) -> float:
        """Return the loss of all rows."""
        return float(self._validate.run({**self._parts(weights), **self._rows})[0])

    def predict(self, weights: np.ndarray, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of the model for rows, by name."""
        kinds = {value["name"]: value["dtype"] for value in self._description["graphs"]["predict"]["inputs"]}
        arrays = {name: _cast(np.asarray(array), kinds.get(name, "float32"), name) for name, array in inputs.items()}
        values = self._predict.run({**self._parts(weights), **arrays})
        return dict(zip(self._predict.outputs, values, strict=True))

    def _scalars(self, done: int, count: int) -> dict[str, np.ndarray]:
        arrays = {name: self._state[f"scalars/{name}"] for name in self._description["scalars"]}
        return scalars_at(arrays, done, count)

    def _flat(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([state[name].ravel() for name in self._names])

    def _parts(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        shapes = {name: self._state[name] for name in self._names}
        if weights.shape != (size := sum(array.size for array in shapes.values()),):
            raise ModelError("Weights must be one vector of the bundle's length.", got=weights.shape, fix=f"({size},)")
        parts = np.split(weights, np.cumsum([array.size for array in shapes.values()])[:-1])
        return {n: part.reshape(a.shape).astype(a.dtype) for (n, a), part in zip(shapes.items(), parts, strict=True)}

    def _checked(self, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the rows in the dtypes of the graph."""
        inputs = {value["name"]: value for value in self._description["graphs"]["validate"]["inputs"]}
        names = [str(name) for name in self._description["rows"]]
        if {*rows} != {*names} or len({len(array) for array in rows.values()}) != 1 or not len(rows[names[0]]):
            got = ", ".join(f"{name} {np.shape(array)}" for name, array in rows.items()) or "none"
            fix = f"Pass arrays of equal, positive length for {', '.join(names)}."
            raise ModelError("Rows must be arrays of the bundle's inputs.", got=got, fix=fix)
        arrays = dict[str, np.ndarray]()
        for name in names:
            sizes, array = inputs[name]["shape"], np.asarray(rows[name])
            fits = len(sizes) == array.ndim
            if not fits or any(isinstance(s, int) and s != n for s, n in zip(sizes, array.shape, strict=True)):
                rule, fix = f"Rows of {name} must have the bundle's shape.", "Reshape them."
                raise ModelError(rule, got=f"{array.shape}, not {sizes}", fix=fix)
            arrays[name] = _cast(array, inputs[name]["dtype"], name)
        for head in self._description["predictions"]:
            if head["label"] in arrays and head["classes"] is not None and head["padding"] is None:
                _check_classes(arrays[head["label"]], len(head["classes"]), head["label"])
        return arrays


def _session(folder: Path, name: str) -> Session:
    model, weights = read_apart(folder / f"{name}.onnx")
    return Session(model, weights=weights)


def _cast(array: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Return an array in the dtype of an input; whole numbers must be whole, and words stay words."""
    if dtype == "string":
        return array.astype(object)
    numbers = array.dtype.kind in "biuf"
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype) if numbers else array
    if not numbers or not (cast == array if cast.dtype.kind in "iu" else np.isinf(cast) == np.isinf(array)).all():
        rule, fix = f"Rows of {name} must be numbers of {dtype}.", "Convert them."
        raise ModelError(
            rule, got="fractions, gaps or large numbers" if numbers else f"an array of {array.dtype}", fix=fix
        )
    return cast


def _check_classes(labels: np.ndarray, count: int, name: str) -> None:
    if labels.dtype.kind in "iu" and not (labels.min() >= 0 and labels.max() < count):
        rule = f"Labels of {name} must be places of classes, from 0 to {count - 1}."
        fix = "See `classes` in bundle.json."
        raise ModelError(rule, got=f"{labels.min()} to {labels.max()}", fix=fix)
