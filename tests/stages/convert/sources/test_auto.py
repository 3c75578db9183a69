"""convert=auto: the network for the training rows, with its reason, and a robust loss for labels with heavy tails."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import yaml
from command import ROOT

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import NoRowsError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.convert.sources.networks.auto import PRESETS, Preset
from ortpipe.stages.convert.stage import convert

RNG = np.random.default_rng(0)
AUTO = SOURCES["auto"]()


def table(rows: int, label: np.ndarray | None = None) -> Data:
    x = np.linspace(0, 1, 2 * rows).reshape(rows, 2)
    return Data(Rows(x, np.sin(x[:, 0]) if label is None else label))


@pytest.mark.parametrize(
    ("rows", "network"),
    [
        (60, "linear (convert=mlp: hidden=[]), because 60 training rows are fewer than 100"),
        (120, "tabm (convert=tabular: members=4, width=128, dropout=0.0), because there are 120 training rows"),
        (20_001, "mlp (convert=mlp: dropout=0.0), because 20,001 training rows are more than 20,000"),
    ],
)
def test_the_number_of_rows_chooses_the_network(rows: int, network: str) -> None:
    assert AUTO.choice(table(rows)).note == f"the automatic network is {network}"


def test_it_is_the_network_with_these_settings() -> None:
    data = table(120)
    choice = replace(AUTO, seed=3).choice(data)
    automatic = convert(None, ConvertConfig(AUTO, seed=3), data=data)
    assert automatic.model == convert(None, ConvertConfig(choice.network), data=data).model
    assert AUTO.choice(data).note in automatic.facts.lineage[0]["notes"]


@pytest.mark.parametrize(("power", "loss"), [(1, "l2"), (9, "huber")])
def test_heavy_tails_choose_a_robust_loss(power: int, loss: str) -> None:
    label = RNG.normal(size=90) ** power
    artifact = convert(None, ConvertConfig(AUTO), data=table(90, label))
    delta = {"delta": pytest.approx(label.std())} if loss == "huber" else {}  # oracle: NumPy
    assert artifact.facts.objective == ({"loss": {"name": loss, **delta}} if delta else {})
    notes = add_loss(artifact, AddLossConfig(LOSSES["auto"]())).facts.lineage[-1]["notes"]
    assert any(f"the automatic loss is {loss}" in note for note in notes)


def test_the_search_for_tables_varies_the_presets() -> None:
    config = yaml.safe_load((ROOT / "conf/hparams_search/table.yaml").read_text(encoding="utf-8"))
    [names] = config["hydra"]["sweeper"]["params"].values()
    assert names.split(",") == list(get_args(Preset)) == list(PRESETS)
    assert replace(AUTO, network="piecewise").choice(table(20)).network.members == 1


def test_it_needs_rows() -> None:
    with pytest.raises(NoRowsError, match="needs training rows"):
        convert(None, ConvertConfig(AUTO))
