"""What MLflow loads a model of raw columns with: rows as people have them, in a frame → a frame of predictions.

A copy lies in the logged model, which so needs no ortpipe: this file imports nothing of it.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import yaml

FLOATS = {"tensor(float)": np.float32, "tensor(double)": np.float64}


class RawRows:
    """Predicts by a model whose inputs [N] are the columns of a table."""

    def __init__(self, path: str) -> None:
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        described = yaml.safe_load(Path(path).with_name("MLmodel").read_text(encoding="utf-8"))
        self._truth = set((described.get("metadata") or {}).get("truth_values", ()))
        classes = json.loads(self._session.get_modelmeta().custom_metadata_map.get("ortpipe.classes", "null"))
        self._classes = list(map(str, classes or ()))

    def get_raw_model(self) -> onnxruntime.InferenceSession:
        """Return the session."""
        return self._session

    def predict(self, data: Any, params: object = None) -> pd.DataFrame:
        """Return a column for each output [N], and one for each class of an output [N, classes]."""
        frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame({k: np.ravel(v) for k, v in data.items()})
        inputs = self._session.get_inputs()
        if missing := [given.name for given in inputs if given.name not in frame]:
            raise ValueError(f"The model reads columns that the rows lack: {', '.join(missing)}")
        feeds = {given.name: self._column(given.name, frame[given.name], given.type) for given in inputs}
        columns: dict[str, np.ndarray] = {}
        for output, array in zip(self._session.get_outputs(), self._session.run(None, feeds), strict=True):
            wide = np.reshape(array, (len(frame), -1))
            several = self._classes if len(self._classes) == wide.shape[1] else range(wide.shape[1])
            names = [output.name] if wide.shape[1] == 1 else [f"{output.name}_{name}" for name in several]
            columns.update(zip(names, wide.T, strict=True))
        return pd.DataFrame(columns, index=frame.index)

    def _column(self, name: str, values: pd.Series, kind: str) -> np.ndarray:
        """Return a column as the model reads it: nan for a number that is missing, "" for text."""
        if kind in FLOATS:
            return pd.to_numeric(values).to_numpy(FLOATS[kind], na_value=np.nan)
        if kind != "tensor(string)":
            return np.asarray(values)
        if pd.api.types.is_datetime64_any_dtype(values):
            values = values.map(lambda moment: moment.isoformat(), na_action="ignore")
        text = values.map(str, na_action="ignore").astype(object).where(values.notna(), "")
        return np.asarray(text.str.lower() if name in self._truth else text, object)


def _load_pyfunc(path: str) -> RawRows:
    return RawRows(path)
