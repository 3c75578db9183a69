"""Settings of fit are the last parts of keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ortpipe.app.fit import texts
from ortpipe.app.fit.leaves import pairs_of
from ortpipe.errors import ConfigError


def pairs(settings: Mapping[str, Any], config_dir: str | None = None) -> list[str]:
    return pairs_of(texts(settings), ["experiment=networks/mlp"], config_dir)


def test_a_setting_is_the_last_part_of_a_key_a_choice_of_a_group_or_a_whole_key() -> None:
    settings = {
        "epochs": 50,  # not train.checkpoint.epochs, which is nested deeper
        "optimizer": "adam",
        "lr": 0.01,
        "loss": "huber",
        "seed": 3,
        "hidden": (8, 4),
        "clip": {"norm": 1},
        "data.split.test": 0.5,
        "recorder": "none",
        "patience": None,
    }
    assert pairs(settings) == [
        "train/optimizer=adam",
        "recorder=none",
        "train.epochs=50",
        "train.optimizer.lr=0.01",
        "add_loss=huber",
        "seed=3",
        "convert.source.hidden=[8,4]",
        "train.clip={norm:1}",
        "data.split.test=0.5",
        "train.early_stop.patience=null",
    ]


def test_settings_of_a_chosen_loss_are_found() -> None:
    assert pairs({"delta": 2.0, "loss": "huber"}) == ["add_loss.loss.delta=2.0", "add_loss=huber"]


def test_a_choice_of_the_users_own_configs_counts(tmp_path: Path) -> None:
    (tmp_path / "train" / "optimizer").mkdir(parents=True)
    (tmp_path / "train" / "optimizer" / "mine.yaml").write_text("name: sgd\nlr: 0.5\nslow: 1\n")
    assert pairs({"optimizer": "mine", "slow": 2}, str(tmp_path)) == ["train/optimizer=mine", "train.optimizer.slow=2"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teachr": "boosting"}, "Did you mean 'teacher'"),
        ({"epoch": 5}, r"last part of a key(.|\n)*got: epoch\n(.|\n)*Did you mean 'epochs'"),
        ({"name_of_nothing": 5}, "got: name_of_nothing"),
        ({"path": "x"}, r"one key of the config(.|\n)*data\.source\.path(.|\n)*convert\.init\.path|got: path"),
        ({"engine": "xla"}, r"runtime\.engine, derive\.engine(.|\n)*\*\*\{\"runtime\.engine\": xla\}"),
        ({"epochs": object()}, r"plain value(.|\n)*epochs of type object"),
        ({"class_weight": {"a b": 2}}, r"plain words(.|\n)*class_weight: 'a b'"),
    ],
)
def test_a_wrong_setting_is_rejected_with_the_nearest(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pairs(settings)
