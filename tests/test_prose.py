"""The prose of every folder is plain English, by the count of `python -m prose`; CONTRIBUTING.md names real files."""

from __future__ import annotations

import re
from pathlib import Path

from command import ROOT
from prose import rates

LIMIT = 0.5  # phrases per 100 lines; lower it when the count falls
NONE = ("README.md", "CONTRIBUTING.md")
FOLDERS = ("ortpipe", "conf", "docs", "benchmarks")


def test_no_folder_has_more_odd_phrases_than_its_limit() -> None:
    """Allow a single phrase, which is more than the limit in a small folder."""
    found = rates([ROOT / name for name in (*FOLDERS, *NONE)], ROOT)
    found = {room: places for room, (rate, places) in found.items() if room in NONE or rate > LIMIT}
    over = [place for room, places in found.items() if room in NONE or len(places) > 1 for place in places]
    assert over == [], "CONTRIBUTING.md says how to write these sentences"


def test_the_count_finds_each_kind_of_phrase(tmp_path: Path) -> None:
    text = "It refuses what was found.\n```\nwho lies\n```\nNobody says so.\nIt lies on the way.\n"
    (tmp_path / "a.md").write_text(text)
    rate, places = rates([tmp_path], tmp_path)["a.md"]
    assert (rate, len(places)) == (200.0, 6)


def test_contributing_names_files_that_exist() -> None:
    named = re.findall(r"`([a-z.]+/[^`\s]*)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []
