"""Random graphs, and the table of forms that they are drawn from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from fuzz.draw import case
from fuzz.forms import FORMS, NO_SLOPE
from fuzz.judge import AGREE, judge

import ortpipe
from ortpipe.autodiff.table import EXPANSIONS, RULES

ENGINE = Path(ortpipe.__file__).parent
GRAPHS, PIECES = 24, 2  # `python -m fuzz` draws as many as you ask for


def _first() -> int:
    """Return the first seed. It depends on the engine's source code, so that each change of a rule draws new graphs."""
    files = sorted(file for room in ("graph", "autodiff") for file in (ENGINE / room).rglob("*.py"))
    text = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    return int.from_bytes(text.digest()[:4], "big")


def test_every_operator_with_a_rule_is_drawn_by_the_fuzzer() -> None:
    assert sorted({*RULES, *EXPANSIONS} - {*FORMS, *NO_SLOPE}) == []


@pytest.mark.parametrize("piece", range(PIECES))
def test_random_graphs_do_not_fail(piece: int) -> None:
    each = GRAPHS // PIECES
    first = _first() + piece * each
    found = {seed: judge(case(seed), thrifty=not piece) for seed in range(first, first + each)}
    failed = {seed: outcome.said for seed, outcome in found.items() if outcome.failed}
    assert not failed, f"python -m fuzz --count 1 --keep folder --seed {min(failed)}: {failed}"
    assert sum(outcome.kind == AGREE for outcome in found.values()) > each / 2
