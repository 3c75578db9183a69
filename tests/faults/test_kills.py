"""Runs that are killed, wherever they are."""

from __future__ import annotations

from pathlib import Path

from faults.kills import kills, statuses

# For more kills: PYTHONPATH=.:tests python -m faults.kills 100. `test_operations` kills at the writing of each file.
AIMS = (("convert", "artifacts"), ("train", "in"))


def test_killed_runs_leave_nothing_damaged_and_the_next_end_with_the_bytes_of_one_never_killed(tmp_path: Path) -> None:
    found = kills(tmp_path, AIMS)  # which looks at every entry, and runs each to its end
    assert any(kill.met for kill in found)  # writing takes less than a moment


def test_a_run_that_was_killed_is_closed_as_killed_by_the_next_one(tmp_path: Path) -> None:
    [kill] = kills(tmp_path, [("train", "in")], "mlflow")
    assert kill.met
    assert statuses(tmp_path) == {"FINISHED": 2, "KILLED": 1}
