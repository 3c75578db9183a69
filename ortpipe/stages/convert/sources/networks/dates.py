"""Dates as text, in the graph: ISO 8601, with a time or without, as numbers.

The days of a date y-m-d since 1970-01-01, and back, are Howard Hinnant's `days_from_civil` and `civil_from_days`
(https://howardhinnant.github.io/date_algorithms.html): years begin on the first of March, in eras of 400.
"""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.data.raw_columns import DATE, ISO, TIME
from ortpipe.graph.core.builder import Builder

ERA, SHIFT = 146_097, 719_468  # days of 400 years; from the first of March of year 0 to 1970-01-01


class DateNumbers(NamedTuple):
    """The parts of dates as int64 of the texts' shape; in UTC if the text has an offset."""

    is_date: ir.Value  # bool; where it is false, the numbers are those of 1970-01-01
    days: ir.Value  # since 1970-01-01
    month: ir.Value  # 1 … 12
    day: ir.Value  # 1 … 31
    weekday: ir.Value  # Monday is 0
    hour: ir.Value  # 0 … 23
    minute: ir.Value  # 0 … 59


def date_numbers(op: Builder, text: ir.Value) -> DateNumbers:
    """Add the nodes that read dates from texts [N, D]."""
    is_date = _matches(op, text, ISO)
    text = op.Where(is_date, text, _const(op, "1970-01-01"))
    has_time = _matches(op, text, f"{DATE}{TIME}")  # give every text a time
    text = op.Where(has_time, text, _concat(op, text, "T00:00"))
    year, month, tail = _split(op, text, "-", 3, max_splits=2)
    has_space = _matches(op, tail, ".* .*")  # a space instead of a T in front of the time
    (day, time), (spaced_day, spaced_time) = (_split(op, _concat(op, tail, mark), mark, 2) for mark in ("T", " "))
    day, time = op.Where(has_space, spaced_day, day), op.Where(has_space, spaced_time, time)
    [time] = _split(op, _concat(op, time, "Z"), "Z", 1)
    time, ahead = _split(op, _concat(op, time, "+00:00"), "+", 2)
    time, behind = _split(op, _concat(op, time, "-00:00"), "-", 2)
    hour, minute = (_integer(op, part) for part in _split(op, time, ":", 2))
    with op.formulas():
        days = _days(op, _integer(op, year), _integer(op, month), _integer(op, day))
        minutes = days * 1440 + hour * 60 + minute - _minutes(op, ahead) + _minutes(op, behind)
        of_day = op.Mod(minutes, 1440)
        days = (minutes - of_day) / 1440
        month, day = _month_and_day(op, days)
        return DateNumbers(is_date, days, month, day, op.Mod(days + 3, 7), of_day / 60, op.Mod(of_day, 60))


def _days(op: Builder, year: ir.Value, month: ir.Value, day: ir.Value) -> ir.Value:
    """Return the days since 1970-01-01."""
    year = year - op.Cast(op.Less(month, 3), to=ir.DataType.INT64)
    of_year = (op.Mod(month + 9, 12) * 153 + 2) / 5 + day - 1
    return year * 365 + year / 4 - year / 100 + year / 400 + of_year - SHIFT


def _month_and_day(op: Builder, days: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the month and the day of the month of days since 1970-01-01."""
    of_era = op.Mod(days + SHIFT, ERA)
    year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365
    of_year = of_era - (year * 365 + year / 4 - year / 100)
    month = (of_year * 5 + 2) / 153
    return op.Mod(month + 2, 12) + 1, of_year - (month * 153 + 2) / 5 + 1


def _minutes(op: Builder, offset: ir.Value) -> ir.Value:
    """Return the minutes of an offset such as 02:30 or 0230."""
    first, second = _split(op, _concat(op, offset, ":"), ":", 2)
    number = _integer(op, first)  # 02, or 0230
    is_hours = op.Cast(op.Less(number, 100), to=ir.DataType.INT64)
    minutes_of_four = number / 100 * 60 + op.Mod(number, 100)
    return is_hours * (number * 60 + _integer(op, _concat(op, second, front="0"))) + (1 - is_hours) * minutes_of_four


def _matches(op: Builder, text: ir.Value, pattern: str) -> ir.Value:
    """Return which texts match a pattern as a whole."""
    value: ir.Value = op.RegexFullMatch(text, pattern=pattern)
    value.type, value.shape = ir.TensorType(ir.DataType.BOOL), text.shape
    return value


def _split(op: Builder, text: ir.Value, delimiter: str, count: int, max_splits: int | None = None) -> list[ir.Value]:
    """Return the first `count` parts of each text; every text must have as many."""
    attributes = {} if max_splits is None else {"maxsplit": max_splits}
    parts, _ = op.StringSplit(text, outputs=2, delimiter=delimiter, **attributes)
    parts.type = ir.TensorType(ir.DataType.STRING)
    first_parts = []
    for place in range(count):
        part = op.Gather(parts, op.const(place), axis=-1)
        part.type, part.shape = ir.TensorType(ir.DataType.STRING), text.shape
        first_parts.append(part)
    return first_parts


def _concat(op: Builder, text: ir.Value, end: str = "", front: str = "") -> ir.Value:
    value: ir.Value = op.StringConcat(*([_const(op, front), text] if front else [text, _const(op, end)]))
    value.type, value.shape = text.type, text.shape
    return value


def _const(op: Builder, text: str) -> ir.Value:
    return op.const(np.array(text))


def _integer(op: Builder, text: ir.Value) -> ir.Value:
    value: ir.Value = op.Cast(text, to=ir.DataType.INT64)
    return value
