"""Dates by a format of `strptime`, such as %d.%m.%Y, as a pattern and replacements that return ISO 8601."""

import re

DAY, MONTH, TWO = "(0?[1-9]|[12][0-9]|3[01])", "(0?[1-9]|1[0-2])", "([0-9]{2})"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
NAMES = (
    "((?i:january|february|march|april|may|june|july|august|september|october|november|december|"
    f"{'|'.join(MONTHS)}|sept)[.]?)"
)
HOUR, MINUTE = "([01]?[0-9]|2[0-3])", "([0-5][0-9])"
# directive → its pattern, and its name in messages
DIRECTIVES = {
    "Y": ("([0-9]{4})", "year"),
    "y": (TWO, "yy"),
    "m": (MONTH, "month"),
    "b": (NAMES, "month"),
    "B": (NAMES, "month"),
    "d": (DAY, "day"),
    "H": (HOUR, "hour"),
    "I": (MONTH, "hour"),
    "M": (MINUTE, "minute"),
    "S": (MINUTE, "second"),
    "p": ("((?i:[ap]m))", "AM or PM"),
}
DATES = (
    *("%Y-%m-%d", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%m-%d-%Y", "%d-%m-%Y", "%d.%m.%Y"),
    *("%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d %b %Y", "%b %d, %Y", "%b %d %Y", "%d-%b-%Y", "%d-%b-%y"),
)
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
FORMATS = (*(date + time for date in DATES for time in TIMES), "%Y%m%dT%H%M%S")  # those that are tried


def is_format(text: str) -> bool:
    """Return whether a text is a format with a year and a month, and with minutes if it has hours."""
    directives = re.findall("%(.)", text)
    are_valid = len(set(directives)) == len(directives) and set(directives) <= DIRECTIVES.keys()
    are_complete = {"H", "I"}.isdisjoint(directives) or "M" in directives
    return are_valid and are_complete and all(not {*names}.isdisjoint(directives) for names in ("Yy", "mbB"))


def in_words(form: str) -> str:
    """Return a format as words.

    >>> in_words("%m/%d/%Y %H:%M")
    'month/day/year hour:minute'
    """
    return re.sub("%(.)", lambda directive: DIRECTIVES[directive[1]][1], form)


def pattern_of(form: str) -> str:
    """Return the pattern that dates of a format match entirely."""
    parts = re.split("%(.)", form)
    texts = [re.sub(r"(\\ )+", " *" if p.startswith(" ") else " +", re.escape(p)) for p in parts[::2]]
    groups = [DIRECTIVES[directive][0] for directive in parts[1::2]]
    if "%p" in form:
        texts = [re.sub(r" \+$", " *", text) for text in texts]
    return "".join(text + group for text, group in zip(texts, [*groups, ""], strict=True))


def steps_of(form: str) -> tuple[tuple[str, str], ...]:
    """Return the replacements that turn a date of the format into ISO 8601, in order; without a day, it is the first.

    They hold for both Python's regular expressions and RE2, those of Arrow.
    """
    place = {directive: rf"\{number}" for number, directive in enumerate(re.findall("%(.)", form), 1)}
    month = place.get("m") or place.get("b") or place.get("B")
    iso = f"{place.get('Y') or place.get('y')}-{month}-{place.get('d', '1')}"
    hour = place.get("H") or place.get("I")
    iso += f" {hour}:{place['M']}" + (f":{place['S']}" if "S" in place else "") if hour else ""
    steps = [(f"^{pattern_of(form)}$", f"{iso}{place.get('p', '')}")]
    if "b" in place or "B" in place:
        steps += [(f"-(?i:{name})[A-Za-z.]*-", f"-{number}-") for number, name in enumerate(MONTHS, 1)]
    steps += [("(?i:([ap]m))$", r" \1")] if "p" in place else []
    steps += [(r"\b([0-9])\b", r"0\1")]
    if "p" in place:
        steps += [(" 12(:.*) (?i:am)$", r" 00\1"), (" 12(:.*) (?i:pm)$", r" 12\1")]
        steps += [(f" {hour:02}(:.*) (?i:pm)$", rf" {hour + 12}\1") for hour in range(1, 12)]
        steps += [(" (?i:am)$", "")]
    if "y" in place:  # as in POSIX
        steps += [("^(69|[7-9][0-9])-", r"19\1-"), ("^([0-9]{2})-", r"20\1-")]
    return tuple(steps)
