"""The table of thresholds: each number has a reason, and a benchmark that exists."""

import dataclasses
from pathlib import Path

import pytest

from ortpipe.fast.thresholds import Thresholds

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("field", dataclasses.fields(Thresholds), ids=lambda field: field.name)
def test_a_threshold_names_a_benchmark_and_its_reason(field):
    assert field.metadata["why"]
    benchmark = (ROOT / "benchmarks" / f"{field.metadata['benchmark']}.py").read_text(encoding="utf-8")
    assert field.metadata["benchmark"] != "thresholds" or f'"{field.name}": (' in benchmark, "add a row to its CASES"
