"""Keys that MLflow accepts, one for each name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortpipe.app.run.record import FINISHED, RunRecord
from ortpipe.app.tracking.client import client_at
from ortpipe.app.tracking.keys import LONGEST, keys
from ortpipe.app.tracking.metrics import Results, metrics
from ortpipe.app.tracking.mlflow_run import log_points
from ortpipe.app.tracking.sqlite import uri_of

NAMES = [
    *("", "trend/", "../up", "/", ".", "..", "a//b", "a/./b", "a/b", "./a", "a/.", "price ($)", "price (€)", "café"),
    *("price", "Price", "price ", "PRICE", "cafe", "cafe\u0301", "x" * 300, "x" * 301, "tab\t", "line\nline", "\ud800"),
    *("a=b", "a[0]", "a(0)", "naïve 価格", "🙂", "a:b", "x_0123456789ab", "x_0123456789AB", " ", "a/ /b", "x" * 250),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    client = client_at(uri_of(tmp_path_factory.mktemp("keys") / "mlflow.db"))
    client.create_experiment("keys")
    return client


def new_run(client: Any) -> str:
    return str(client.create_run(client.get_experiment_by_name("keys").experiment_id).info.run_id)


@pytest.mark.parametrize("prefix", ["", "importance/r2/"])
def test_every_name_has_a_valid_key_of_its_own_which_mlflow_stores(prefix: str, client: Any) -> None:
    from mlflow.entities import Metric, Param, RunTag

    run = new_run(client)
    key = keys(prefix + name for name in NAMES)
    client.log_batch(run, metrics=[Metric(text, i, 0, 0) for i, text in enumerate(key.values())])
    client.log_batch(run, params=[Param(text, str(i)) for i, text in enumerate(key.values())])
    client.log_batch(run, tags=[RunTag(text, str(i)) for i, text in enumerate(key.values())])
    data = client.get_run(run).data
    assert data.metrics == {text: float(i) for i, text in enumerate(key.values())}
    assert data.params == {text: str(i) for i, text in enumerate(key.values())}
    assert len({text.casefold() for text in key.values()}) == len(NAMES)
    plain = {"a/b", "a[0]", "x" * 250, "naïve 価格", "price ($)"}
    assert {name for name in plain if key[prefix + name] == prefix + name} == plain - {"a[0]", "price ($)"} - (
        {"x" * 250} if prefix else set()
    )


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.text(st.sampled_from("aA/. é$_\t0"), max_size=8), max_size=12))
def test_keys_are_valid_and_distinct_by_construction(names: list[str]) -> None:
    from mlflow.utils.validation import path_not_unique, validate_param_and_metric_name

    key = keys(names)
    assert len({text.casefold() for text in key.values()}) == len(set(names))
    for text in key.values():
        assert 0 < len(text) <= LONGEST
        assert validate_param_and_metric_name(text)
        assert not path_not_unique(text)


def test_no_column_name_costs_a_run_its_metrics(client: Any, tmp_path: Path) -> None:
    run = new_run(client)
    record = RunRecord(tmp_path, "mine", {}, status=FINISHED, ended=5)
    record.metrics = {"r2": {"trained": 0.5}}
    record.importance = {"r2": {name: [i / 9, 0.1] for i, name in enumerate(NAMES)}}
    record.sensitivity = dict.fromkeys(NAMES, 0.0)
    log_points(client, run, metrics(record, Results(), None, range(0)))
    assert len(client.get_run(run).data.metrics) == 1 + 2 * len(NAMES)
