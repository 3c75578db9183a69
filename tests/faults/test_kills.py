"""Runs that are killed, wherever they are."""

from __future__ import annotations

from pathlib import Path

from faults.kills import kills, statuses

# For more kills: PYTHONPATH=.:tests python -m faults.kills 100. `test_operations` kills at the writing of each file.
AIMS = (("convert", "artifacts"), ("train", "in"))


def test_killed_runs_leave_nothing_damaged_and_the_next_end_with_the_bytes_of_one_never_killed(tmp_path: Path) -> None:
    """Each run that ends closes the records of those that were killed before."""
    _, in_train = kills(tmp_path, AIMS, "mlflow")  # which looks at every entry, and runs each to its end
    assert in_train.met  # writing takes less than a moment
    recorded = statuses(tmp_path)
    assert recorded["KILLED"] >= 1
    assert recorded.keys() == {"FINISHED", "KILLED"}
