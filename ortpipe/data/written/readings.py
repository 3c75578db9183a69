"""Readings: how the texts of a column become numbers, dates or truth values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from ortpipe.data.written.formats import FORMATS, HOUR, MINUTE, MONTH, in_words, is_format, pattern_of, steps_of

Kind = Literal["number", "date", "time", "truth", "unit"]
SPACE = " \u00a0\u202f'’"
# how a number is written → its pattern, its separators of digits, and its decimal mark
FORMS = {
    "1,234.5": (r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+", ",", "."),
    "1.234,5": (r"(?:[1-9][0-9]{0,2}(?:\.[0-9]{3})+|[0-9]+)(?:,[0-9]*)?", ".", ","),
    "1 234.5": (rf"[1-9][0-9]{{0,2}}(?:[{SPACE}][0-9]{{3}})+(?:\.[0-9]*)?|[0-9]+(?:\.[0-9]*)?", SPACE, "."),
    "1 234,5": (rf"[1-9][0-9]{{0,2}}(?:[{SPACE}][0-9]{{3}})+(?:,[0-9]*)?|[0-9]+(?:,[0-9]*)?", SPACE, ","),
}
CURRENCIES = ("$", "€", "£", "¥", "₹", "USD", "EUR", "GBP", "CHF", "JPY")
MINUS = "[-+−]?"
YES, NO = "yes|y|true|t|1", "no|n|false|f|0"
FAMILIES = ({"yes", "y", "1", "no", "n", "0"}, {"true", "t", "1", "false", "f", "0"})
KINDS = ("number", "money", "percent", "date", "time", "boolean")  # settings that leave the form to the column's rows


@dataclass(frozen=True)
class TextReading:
    r"""How the texts of a column become values.

    Attributes:
        name: in messages, such as `money, $`.
        kind: of the values; `unit`: numbers with a unit, which are rejected.
        pattern: the regular expression that a text matches entirely, without spaces around it.
        steps: regular expressions and their replacements, in order; for both Python and RE2.
        form: the form of the number or date, such as `1,234.5` or `%m/%d/%Y`.
        sign: the currency or percent sign.

    >>> reading = number("money, $", "$", "1,234.5")
    >>> reading.plain("$221,900"), reading.plain("($1.50)"), reading.plain("12 km")
    ('221900', '-1.50', None)
    >>> date("%m/%d/%y %I:%M %p").plain("7/4/99 12:05 am")
    '1999-07-04 00:05'
    """

    name: str
    kind: Kind
    pattern: str
    steps: tuple[tuple[str, str], ...]
    form: str = ""
    sign: str = ""

    @property
    def described(self) -> str:
        """The reading in messages."""
        noun = "numbers" if self.name == "number" else self.name
        return {"date": f"dates {noun}", "time": "times of day"}.get(self.kind, noun)

    def plain(self, text: str) -> str | None:
        """Return a text as a plain number, a date or time of ISO 8601, or true or false; None if it does not match."""
        if not re.fullmatch(self.pattern, text):
            return None
        for pattern, replacement in self.steps:
            text = re.sub(pattern, replacement, text)
        return text

    def record(self, missing: Iterable[str]) -> dict[str, Any]:
        """Return the reading as JSON values, with the texts in lower case that mark a missing value."""
        steps = [list(step) for step in self.steps]
        return {**vars(self), "steps": steps, "missing": sorted(missing), "described": self.described}

    def text_of(self, value: float | str) -> str:
        """Return a text that is read as a value.

        >>> date("%d.%m.%Y").text_of("2014-10-13"), number("money, €", "€", "1.234,5").text_of(5.5)
        ('13.10.2014', '€5,5')
        """
        if self.kind == "time":
            return (datetime(1970, 1, 1) + timedelta(seconds=round(float(value) * 3600))).strftime(self.form)
        if self.kind == "date":
            return datetime.fromisoformat(str(value)).strftime(self.form)
        text = str(value).replace(".", FORMS[self.form][2]) if self.kind == "number" else str(value)
        return f"{text}%" if self.sign == "%" else f"{self.sign}{text}"

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TextReading:
        """Return the reading of a record."""
        values = {name: record[name] for name in cls.__dataclass_fields__}
        return cls(**{**values, "steps": tuple(map(tuple, record["steps"]))})


def number(name: str, sign: str, form: str, *, optional: bool = False) -> TextReading:
    """Return the reading of numbers of a form, with a currency or percent sign before or behind each, or each if any.

    Parentheses are a minus sign.
    """
    digits, groups, decimal = FORMS[form]
    mark, value = re.escape(sign), f"(?:{digits})(?:[eE][-+]?[0-9]+)?"
    with_sign = f"{MINUS} ?{mark} ?{value}|{mark} ?{MINUS} ?{value}|{MINUS} ?{value} ?{mark}"
    core = f"{MINUS} ?{value}" if not sign else f"{with_sign}|{MINUS} ?{value}" if optional else with_sign
    steps = [(r"^\((.*)\)$", r"-\1"), ("−", "-"), *([(mark, "")] if sign else [])]
    steps += [(f"[{re.escape(groups)} ]", ""), *([(",", ".")] if decimal == "," else [])]
    return TextReading(name, "number", rf"{core}|\((?:{core})\)", (*steps, (r"^\+", ""), (r"\.$", "")), form, sign)


def date(form: str) -> TextReading:
    """Return the reading of dates of a format."""
    return TextReading(in_words(form), "date", pattern_of(form), steps_of(form), form)


def times() -> Iterator[TextReading]:
    """Yield the readings of times of day, which become hours: those of 24 hours, and with am and pm.

    >>> [reading.plain(text) for reading, text in zip(times(), ("9:05", "12:30:01 AM"))]
    ['09:05:00', '00:30:01']
    """
    steps: tuple[tuple[str, str], ...] = ((r"^([0-9]):", r"0\1:"), (r"^([0-9]+:[0-9]+)( [ap])?$", r"\1:00\2"))
    yield TextReading("time of day", "time", f"{HOUR}:{MINUTE}(?::{MINUTE})?", steps, "%H:%M:%S")
    halves = [(r"^12(.*) a$", r"00\1"), (r"^12(.*) p$", r"12\1"), (" a$", "")]
    halves += [(f"^{hour:02}(.*) p$", rf"{hour + 12}\1") for hour in range(1, 12)]
    steps = ((" *(?i:a[.]?m[.]?)$", " a"), (" *(?i:p[.]?m[.]?)$", " p"), *steps, *halves)
    pattern = f"{MONTH}:{MINUTE}(?::{MINUTE})? *(?i:[ap][.]?m[.]?)"
    yield TextReading("time of day", "time", pattern, steps, "%I:%M:%S %p")


def hours(time: str) -> float:
    """Return a time of day of ISO 8601 in hours.

    >>> hours("13:45:00")
    13.75
    """
    hour, minute, second = map(int, time.split(":"))
    return (3600 * hour + 60 * minute + second) / 3600


def truth() -> TextReading:
    """Return the reading of yes and no in any spelling."""
    steps = ((f"^(?i:{YES})$", "true"), (f"^(?i:{NO})$", "false"))
    return TextReading("boolean", "truth", f"(?i:{YES}|{NO})", steps)


def unit(text: str) -> TextReading | None:
    """Return the reading of numbers with the unit of a text, which is rejected; None for other texts."""
    match = re.fullmatch(rf"{MINUS}[0-9][0-9.,]*(?:[eE][-+]?[0-9]+)?( ?[A-Za-zµ°][A-Za-z/²³]*)", text)
    if match is None:
        return None
    pattern = rf"{MINUS}[0-9][0-9.,]*(?:[eE][-+]?[0-9]+)?{re.escape(match[1])}"
    return TextReading(f"numbers in {match[1].strip()}", "unit", pattern, ())


def numbers(texts: Iterable[str], *, optional: bool) -> Iterator[TextReading]:
    """Yield the readings of numbers with the signs that occur in texts: without a sign, percent, then currencies."""
    joined = " ".join(texts)
    signs = [("number", ""), *([("percent", "%")] if "%" in joined else [])]
    signs += [(f"money, {sign}", sign) for sign in CURRENCIES if sign in joined]
    yield from (number(name, sign, form, optional=optional) for name, sign in signs for form in FORMS)


def candidates(texts: list[str], setting: str | None) -> Iterator[TextReading]:
    """Yield the readings that a column with these texts may have, in order of preference, by its setting if any."""
    if setting is not None and is_format(setting):
        yield date(setting)
        return
    if setting is None or setting in ("number", "money", "percent", *FORMS):
        of_form = [
            reading
            for reading in numbers(texts, optional=setting is not None)
            if setting not in FORMS or reading.form == setting
        ]
        word = setting if setting in ("money", "percent") else ""
        yield from (reading for reading in of_form if reading.name.startswith(word))
    if setting in (None, "date"):
        yield from map(date, FORMATS)
    if setting in (None, "time"):
        yield from times()
    if setting in (None, "boolean"):
        yield truth()
    if setting is None:
        yield from filter(None, {unit(text): None for text in texts[:3]})


def is_setting(text: str) -> bool:
    """Return whether a text is the setting of a column: a kind, a form of numbers, a format of dates, or its use."""
    return text in (*KINDS, *FORMS, "category", "ignore") or is_format(text)


def rival_of(reading: TextReading) -> str:
    """Return the form that may match the same texts with other values, or ""."""
    if reading.kind == "date" and "%b" not in reading.form:
        swapped = reading.form.replace("%m", "%_").replace("%d", "%m").replace("%_", "%d")
        return swapped if swapped != reading.form else ""
    return {"1,234.5": "1.234,5", "1.234,5": "1,234.5"}.get(reading.form, "")
