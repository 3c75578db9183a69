"""The network that fits the training rows of a table: linear, a perceptron or TabM, by facts about these rows alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.data.rows import Data, Rows
from ortpipe.stages.convert.forward import Forward
from ortpipe.stages.convert.sources.catalogue import SOURCES
from ortpipe.stages.convert.sources.networks.labels import need_rows
from ortpipe.stages.convert.sources.networks.layers import Layers
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.convert.sources.networks.network import LabelKind, Network, TableNetwork, read_labels
from ortpipe.stages.convert.sources.networks.tabular import Tabular

FEW_ROWS = 100  # below this number of training rows, a linear model
MANY_ROWS = 20_000  # above this number of training rows, one perceptron: an ensemble takes too long
HEAVY_TAIL = 30.0  # kurtosis of labels above which the loss is Huber's; a normal distribution has 3, Laplace's has 6

Preset = Literal["linear", "mlp", "piecewise", "tabm", "tabm_wide", "tabm_periodic"]

# Networks with good settings. Dropout is 0: its random masks would take most of the time of a step.
PRESETS: dict[str, tuple[type[TableNetwork], dict[str, Any]]] = {
    "linear": (MLP, {"hidden": ()}),
    "mlp": (MLP, {"dropout": 0.0}),
    "piecewise": (Tabular, {"members": 1, "width": 128, "dropout": 0.0}),
    "tabm": (Tabular, {"members": 4, "width": 128, "dropout": 0.0}),
    "tabm_wide": (Tabular, {"members": 8, "width": 256, "dropout": 0.0}),
    "tabm_periodic": (Tabular, {"members": 4, "width": 128, "dropout": 0.0, "numbers": "periodic"}),
}


class NetworkChoice(NamedTuple):
    """A preset, its network, the reason for it, and the loss if it is not the usual one of the task."""

    preset: str
    network: TableNetwork
    reason: str
    loss: dict[str, Any] | None

    @property
    def note(self) -> str:
        """The choice and its reason in a line."""
        settings = PRESETS[self.preset][1].items()
        values = ", ".join(f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in settings)
        source = f"convert={SOURCES.name_of(type(self.network))}: {values}"
        text = f"the automatic network is {self.preset} ({source}), because {self.reason}"
        return text + ("" if self.loss is None else "; the labels have heavy tails, so the automatic loss is huber")


@dataclass(frozen=True)
class Automatic(Network):
    """A linear model, a perceptron or TabM; the settings were chosen on the seen tables of `benchmarks/tables.py`.

    Attributes:
        network: a name in PRESETS; null: the number of training rows decides.
    """

    network: Preset | None = None

    def body(self, layers: Layers, rows: Rows, labels: LabelKind) -> ir.Value:
        """Return the raw outputs of the network for these rows."""
        return self.choice(Data(rows)).network.body(layers, rows, labels)

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Return the network for the training rows, with a note of the choice."""
        choice = self.choice(data)
        forward = choice.network(data, dtype)
        return dataclasses.replace(forward, notes=(choice.note, *forward.notes), loss=choice.loss)

    def choice(self, data: Data | None) -> NetworkChoice:
        """Return the choice for training rows; it depends on their number, the task and the labels' kurtosis."""
        if data is None:
            need_rows()
        rows, count = data.train.sample(), len(data.train)
        labels = read_labels(rows.label, self.task, rows.sample_weight, classes=self.classes)
        preset, reason = self._preset(rows, f"{count:,} training rows", count)
        kind, settings = PRESETS[preset]
        common = {field.name: getattr(self, field.name) for field in dataclasses.fields(Network)}
        heavy = labels.task == "regression" and labels.width == 1 and kurtosis(rows.label, labels) > HEAVY_TAIL
        loss = {"name": "huber", "delta": float(labels.scale[0])} if heavy and self.scale_target else None
        return NetworkChoice(preset, kind(**common, **settings), reason, loss)

    def _preset(self, rows: Rows, counted: str, count: int) -> tuple[str, str]:
        """Return the name of a preset, and the reason."""
        if self.network is not None:
            return self.network, "the config names it"
        if count < FEW_ROWS:
            return "linear", f"{counted} are fewer than {FEW_ROWS}"
        if count > MANY_ROWS:
            return "mlp", f"{counted} are more than {MANY_ROWS:,}"
        if any(array.ndim > 2 for array in rows.inputs.values()):
            return "mlp", "the rows are no table"
        return "tabm", f"there are {counted}"


def kurtosis(label: np.ndarray, kind: LabelKind) -> float:
    """Return the fourth moment of standardized labels.

    >>> kind = read_labels(np.array([0.5, -0.5]), None)
    >>> kurtosis(np.array([0.5, -0.5]), kind)
    1.0
    """
    return float(np.mean(((label.reshape(len(label), -1) - kind.mean) / kind.scale) ** 4))
