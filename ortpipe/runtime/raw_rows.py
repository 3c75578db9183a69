"""The MLflow model for raw columns: a frame of rows with their original columns → a frame of predictions.

The logged model contains a copy of this file so that it does not need ortpipe: import nothing from ortpipe here.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import yaml
from mlflow.exceptions import MlflowException

FLOATS: dict[str, type[np.floating]] = {"tensor(float)": np.float32, "tensor(double)": np.float64}


def refused(why: str) -> Exception:
    """Return an error whose message reaches a server's clients; MLflow hides other errors in a traceback."""
    return MlflowException.invalid_parameter_value(why)


class RawRows:
    """Predict with a model whose inputs [N] are the columns of a table."""

    def __init__(self, path: str) -> None:
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        described = yaml.safe_load(Path(path).with_name("MLmodel").read_text(encoding="utf-8"))
        self._columns = described["metadata"]["columns"]  # training columns: `ortpipe.data.raw_columns.RawColumn`
        written = self._session.get_modelmeta().custom_metadata_map.items()
        facts = {key.removeprefix("ortpipe."): json.loads(text) for key, text in written if key.startswith("ortpipe.")}
        self._heads = {"": facts} | {
            f"{name}_": head | {"prediction": name} for name, head in facts.get("heads", {}).items()
        }

    def get_raw_model(self) -> onnxruntime.InferenceSession:
        """Return the session."""
        return self._session

    def predict(self, data: Any, params: object = None) -> pd.DataFrame:
        """Return the columns of `ortpipe predict`: `prediction`, and each class's `probability_CLASS`."""
        frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame({k: np.ravel(v) for k, v in data.items()})
        inputs = self._session.get_inputs()
        if missing := [model_input.name for model_input in inputs if model_input.name not in frame]:
            raise refused(f"The rows lack columns that the model reads: {', '.join(missing)}")
        if not len(frame):
            raise refused("The model needs at least one row; got none")
        feeds = {
            model_input.name: self._column(model_input.name, frame[model_input.name], model_input.type)
            for model_input in inputs
        }
        arrays = self._session.run([facts["prediction"] for facts in self._heads.values()], feeds)
        columns: dict[str, np.ndarray] = {}
        for (prefix, facts), array in zip(self._heads.items(), arrays, strict=True):
            columns |= as_columns(facts, array.reshape(len(frame), -1), prefix)
        return pd.DataFrame(columns, index=frame.index)

    def _column(self, name: str, values: pd.Series, kind: str) -> np.ndarray:
        """Return a column in the model's form: nan for a missing number, "" for missing text."""
        values = _as_written(name, values, self._columns.get(name, {}).get("written"))
        if kind in FLOATS:
            return _numbers(name, values, FLOATS[kind])
        if kind != "tensor(string)":
            return np.asarray(values)
        column = self._columns[name]
        if column["marks"] and not column["missing"] and values.isna().any():
            raise refused(
                f"Column {name!r} has no missing values in the training rows, and contains the words "
                f"{', '.join(map(repr, column['marks']))}, which pandas reads as missing, also when serving CSV: "
                "read the rows with keep_default_na=False, or send JSON"
            )
        if pd.api.types.is_datetime64_any_dtype(values):
            values = values.map(lambda moment: moment.isoformat(), na_action="ignore")
        as_text = _as_whole if column["whole"] else str
        text = values.map(as_text, na_action="ignore").astype(object).where(values.notna(), "")
        text = text.where(~text.isin({"None", "nan"}.difference(column["marks"])), "")  # MLflow's forms of a null
        text = text.str.lower() if column["of"] == "truth" else text
        pattern, words = column["form"] or ("(?s:.*)", "any text")
        if not (right := text.str.fullmatch(f"({pattern})?")).all():
            raise refused(f"Column {name!r} holds {words}, not {text[~right].iloc[0]!r}")
        return np.asarray(text, object)


def _as_written(name: str, values: pd.Series, record: dict[str, Any] | None) -> pd.Series:
    """Return text as plain text, as in training, nan if missing; see `ortpipe.data.written`."""
    if record is None or pd.api.types.is_numeric_dtype(values):
        return values
    text = values.map(str, na_action="ignore").astype(object).str.strip()
    text = text.where(values.notna() & ~text.str.lower().isin(record["missing"]), np.nan)
    if not (right := text.isna() | text.str.fullmatch(record["pattern"]).fillna(value=False).astype(bool)).all():
        raise refused(f"Column {name!r} holds {record['described']} as in training, not {text[~right].iloc[0]!r}")
    for pattern, replacement in record["steps"]:
        text = text.str.replace(pattern, replacement, regex=True)
    return pd.to_timedelta(text).dt.total_seconds() / 3600 if record["kind"] == "time" else text


def _numbers(name: str, values: pd.Series, dtype: type[np.floating]) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):
            numbers = pd.to_numeric(values).to_numpy(dtype, na_value=np.nan)
    except (ValueError, TypeError) as error:
        raise refused(f"Column {name!r} holds numbers: {error}") from error
    if (infinite := np.isinf(numbers)).any():
        raise refused(f"Column {name!r} holds finite numbers, not {values[infinite].iloc[0]}")
    return numbers


def _as_whole(value: object) -> str:
    """Return a word that may be a whole number, given as a float because another row's is missing."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def as_columns(facts: dict[str, Any], prediction: np.ndarray, prefix: str) -> dict[str, np.ndarray]:
    """Return the columns of a prediction [N, K], according to the model's metadata.

    See `ortpipe.metrics.columns.as_columns`.
    """
    if not (finite := np.isfinite(prediction).all(axis=1)).all():
        raise refused(f"The model predicts nan or inf in {(~finite).sum()} of {len(finite)} rows")
    values, task, classes = prediction.astype(np.float64), facts["task"], facts.get("classes")
    raw = facts.get("logits") == facts["prediction"]  # scores instead of probabilities
    if task == "regression":
        values = np.exp(np.clip(values, -700, 700)) if facts.get("link") == "log" else values
        level = {"quantiles": "q", "survival": "survival_"}.get(str(facts.get("link")), "")
        return _columns(values, [f"{level}{at:.12g}" for at in facts.get("levels", ())] or classes, prefix)
    values = values / 2 if facts.get("opposite") else values
    if task == "multiclass" or (task == "binary" and values.shape[1] == 2):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True) if raw else np.clip(values, 0, 1)
        shares = shares / shares.sum(axis=1, keepdims=True)  # float32 rows sum to 1 ± 1e-7
    else:
        shares = 1 / (1 + np.exp(-np.clip(values, -700, 700))) if raw else np.clip(values, 0, 1)
        shares = shares if task == "multilabel" else np.concatenate([1 - shares, shares], axis=1)
    probabilities = {
        f"{prefix}probability_{name}": s for name, s in zip(classes or range(len(shares.T)), shares.T, strict=False)
    }
    if task == "multilabel":
        return _columns((shares > 0.5).astype(np.int64), classes, prefix) | probabilities
    threshold = facts.get("threshold")
    label = shares.argmax(axis=1) if threshold is None else (shares[:, 1] >= threshold).astype(np.int64)
    return {f"{prefix}prediction": np.array(classes or range(len(shares.T)))[label]} | probabilities


def _columns(values: np.ndarray, names: list[Any] | None, prefix: str) -> dict[str, np.ndarray]:
    count = values.shape[1]
    if count == 1:
        return {f"{prefix}prediction": values[:, 0]}
    names = names if names and len(names) == count else list(range(count))
    return {f"{prefix}prediction_{name}": column for name, column in zip(names, values.T, strict=True)}


def _load_pyfunc(path: str) -> RawRows:
    return RawRows(path)
