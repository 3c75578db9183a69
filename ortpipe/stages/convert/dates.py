"""Dates as text, in the graph: ISO 8601, with a time or without, as numbers.

The days of a date y-m-d since 1970-01-01, and back, are Howard Hinnant's `days_from_civil` and `civil_from_days`
(https://howardhinnant.github.io/date_algorithms.html): years begin on the first of March, in eras of 400.
"""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.graph.builder import Builder

DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
TIME = r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
ERA, SHIFT = 146_097, 719_468  # days of 400 years; from the first of March of year 0 to 1970-01-01


class DateNumbers(NamedTuple):
    """What dates are as numbers, int64 of the texts' shape, at UTC where the text says how far it is from it."""

    known: ir.Value  # bool: whether a text is a date; where it is not, the numbers are those of 1970-01-01
    days: ir.Value  # since 1970-01-01
    month: ir.Value  # 1 … 12
    day: ir.Value  # 1 … 31
    weekday: ir.Value  # Monday is 0
    hour: ir.Value  # 0 … 23
    minute: ir.Value  # 0 … 59


def date_numbers(op: Builder, text: ir.Value) -> DateNumbers:
    """Write what reads dates, [N, D] texts."""
    known = _matches(op, text, f"{DATE}({TIME})?")
    text = op.Where(known, text, _const(op, "1970-01-01"))
    timed = _matches(op, text, f"{DATE}{TIME}")  # every text gets a time
    text = op.Where(timed, text, _joined(op, text, "T00:00"))
    year, month, rest = _split(op, text, "-", 3, most=2)
    spaced = _matches(op, rest, ".* .*")  # a space, or a T, in front of the time
    (day, time), (day_of_spaced, time_of_spaced) = (_split(op, _joined(op, rest, by), by, 2) for by in ("T", " "))
    day, time = op.Where(spaced, day_of_spaced, day), op.Where(spaced, time_of_spaced, time)
    [time] = _split(op, _joined(op, time, "Z"), "Z", 1)
    time, ahead = _split(op, _joined(op, time, "+00:00"), "+", 2)
    time, behind = _split(op, _joined(op, time, "-00:00"), "-", 2)
    hour, minute = (_integer(op, part) for part in _split(op, time, ":", 2))
    with op.formulas():
        days = _days(op, _integer(op, year), _integer(op, month), _integer(op, day))
        minutes = days * 1440 + hour * 60 + minute - _minutes(op, ahead) + _minutes(op, behind)
        of_day = op.Mod(minutes, 1440)
        days = (minutes - of_day) / 1440
        month, day = _month_and_day(op, days)
        return DateNumbers(known, days, month, day, op.Mod(days + 3, 7), of_day / 60, op.Mod(of_day, 60))


def _days(op: Builder, year: ir.Value, month: ir.Value, day: ir.Value) -> ir.Value:
    """Return the days since 1970-01-01."""
    year = year - op.Cast(op.Less(month, 3), to=ir.DataType.INT64)
    of_year = (op.Mod(month + 9, 12) * 153 + 2) / 5 + day - 1
    return year * 365 + year / 4 - year / 100 + year / 400 + of_year - SHIFT


def _month_and_day(op: Builder, days: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the month and the day in it of days since 1970-01-01."""
    of_era = op.Mod(days + SHIFT, ERA)
    year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365
    of_year = of_era - (year * 365 + year / 4 - year / 100)
    month = (of_year * 5 + 2) / 153
    return op.Mod(month + 2, 12) + 1, of_year - (month * 153 + 2) / 5 + 1


def _minutes(op: Builder, offset: ir.Value) -> ir.Value:
    """Return the minutes of 02:30 or 0230."""
    first, second = _split(op, _joined(op, offset, ":"), ":", 2)
    number = _integer(op, first)  # 02, or 0230
    short = op.Cast(op.Less(number, 100), to=ir.DataType.INT64)
    of_four = number / 100 * 60 + op.Mod(number, 100)
    return short * (number * 60 + _integer(op, _joined(op, second, front="0"))) + (1 - short) * of_four


def _matches(op: Builder, text: ir.Value, pattern: str) -> ir.Value:
    """Return which texts are what a pattern says, the whole of them."""
    value: ir.Value = op.RegexFullMatch(text, pattern=pattern)
    value.type, value.shape = ir.TensorType(ir.DataType.BOOL), text.shape
    return value


def _split(op: Builder, text: ir.Value, by: str, count: int, most: int | None = None) -> list[ir.Value]:
    """Return the first parts of each text, all of which have so many."""
    limit = {} if most is None else {"maxsplit": most}
    parts, _ = op.StringSplit(text, outputs=2, delimiter=by, **limit)
    parts.type = ir.TensorType(ir.DataType.STRING)
    found = []
    for place in range(count):
        part = op.Gather(parts, op.const(place), axis=-1)
        part.type, part.shape = ir.TensorType(ir.DataType.STRING), text.shape
        found.append(part)
    return found


def _joined(op: Builder, text: ir.Value, end: str = "", front: str = "") -> ir.Value:
    value: ir.Value = op.StringConcat(*([_const(op, front), text] if front else [text, _const(op, end)]))
    value.type, value.shape = text.type, text.shape
    return value


def _const(op: Builder, text: str) -> ir.Value:
    return op.const(np.array(text))


def _integer(op: Builder, text: ir.Value) -> ir.Value:
    value: ir.Value = op.Cast(text, to=ir.DataType.INT64)
    return value
