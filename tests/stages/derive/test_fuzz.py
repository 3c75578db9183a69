"""Fresh random graphs, and the table of forms that they are drawn from."""

from __future__ import annotations

import datetime

from benchmarks.fuzz.forms import FORMS, NO_SLOPE
from ortpipe.stages.derive.expansions import EXPANSIONS
from ortpipe.stages.derive.rules import RULES

TODAY = 10_000 * int(f"{datetime.date.today():%y%m%d}")  # as `python -m benchmarks.fuzz` counts


def test_every_operator_with_a_rule_is_drawn_by_the_fuzzer() -> None:
    assert sorted({*RULES, *EXPANSIONS} - {*FORMS, *NO_SLOPE}) == []
