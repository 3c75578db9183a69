"""The places of a new part: catalogues, config files, tables of tests and pages of the docs have the same members."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ortpipe.app.tracking.recorders import RECORDERS
from ortpipe.data.sources import SOURCES as DATA_SOURCES
from ortpipe.metrics import METRICS
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.convert.sources import SOURCES as CONVERT_SOURCES
from ortpipe.stages.derive.engines import ENGINES
from ortpipe.stages.penalty.penalties import PENALTIES
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.schedules import SCHEDULES

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"

# catalogue → (its conf group, where a file of the group says the member's name, the table of tests that lists it)
CATALOGUES = {
    "data sources": (DATA_SOURCES, "data", ("source", "name"), "tests/data/test_sources.py"),
    "convert sources": (CONVERT_SOURCES, "convert", ("source", "name"), None),
    "losses": (LOSSES, "add_loss", ("loss", "name"), "tests/stages/add_loss/test_losses.py"),
    "engines": (ENGINES, "derive", ("engine", "name"), None),
    "optimizers": (OPTIMIZERS, "train/optimizer", ("name",), "tests/stages/train/test_optimizers.py"),
    "schedules": (SCHEDULES, "train/schedule", ("name",), "tests/stages/train/test_schedules.py"),
    "recorders": (RECORDERS, "recorder", ("name",), None),
}


@pytest.mark.parametrize("name", CATALOGUES)
def test_every_member_of_a_catalogue_has_a_conf_file_and_the_reverse(name: str) -> None:
    catalogue, group, keys, _ = CATALOGUES[name]
    named = set()
    for path in (CONF / group).glob("*.yaml"):
        node = yaml.safe_load(path.read_text())
        for key in keys:
            node = node[key]
        named.add(node)
    missing, unknown = sorted(set(catalogue) - named), named - {"???"} - set(catalogue)
    assert not missing, f"add a file to conf/{group}/ for each of {missing}"
    assert not unknown, f"conf/{group}/ names {unknown}, which the catalogue lacks"  # data/own.yaml: the user's


@pytest.mark.parametrize("name", [name for name, row in CATALOGUES.items() if row[3] is not None])
def test_every_member_of_a_catalogue_is_named_in_its_test_table(name: str) -> None:
    catalogue, _, _, table = CATALOGUES[name]
    text = (ROOT / table).read_text()
    missing = [m for m, cls in catalogue.items() if f'"{m}"' not in text and cls.__name__ not in text]
    assert not missing, f"add {missing} to the table in {table}"


@pytest.mark.parametrize(
    ("folder", "catalogue"),
    [
        ("stages/add_loss/losses", LOSSES),
        ("stages/penalty/penalties", PENALTIES),
        ("stages/train/optimizers", OPTIMIZERS),
        ("stages/train/schedules", SCHEDULES),
        ("app/tracking/recorders", RECORDERS),
        ("data/sources", DATA_SOURCES),
    ],
)
def test_one_member_is_one_file_of_its_name(folder: str, catalogue: dict[str, object]) -> None:
    files = {path.stem for path in (ROOT / "ortpipe" / folder).glob("*.py")} - {"__init__"}
    assert files == set(catalogue)


def test_the_page_of_catalogues_names_every_member() -> None:
    text = (ROOT / "docs" / "reference" / "catalogues.md").read_text()
    members = [*LOSSES, *METRICS, *PENALTIES, *ENGINES, *OPTIMIZERS, *SCHEDULES, *RECORDERS, *CONVERT_SOURCES]
    members += [name for name in DATA_SOURCES if name != "bundled"]  # its sets are choices of their own
    missing = [m for m in members if f"`{m}`" not in text]
    assert not missing, f"add {missing} to docs/reference/catalogues.md"


def test_metrics_name_functions_that_scikit_learn_has() -> None:
    from sklearn import metrics

    assert [
        m.function for m in METRICS.values() if isinstance(m.function, str) and not hasattr(metrics, m.function)
    ] == []


def test_the_page_of_operators_holds_the_table_that_the_rules_print() -> None:
    from ortpipe.autodiff.rules.__main__ import table

    page = (ROOT / "docs" / "reference" / "operators.md").read_text()
    shown = re.search(r"<!-- operators:[^>]*-->\n(.*?)<!-- end of operators -->", page, re.S)
    assert shown is not None
    assert shown.group(1).strip() == table()
