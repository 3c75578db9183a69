"""The text of errors: marks replaced by the caller's names of settings, and the valid choice nearest to a wrong one."""

import difflib
import re
from collections.abc import Iterable, Mapping

ARGUMENT = re.compile(r"\{@(\w+)(?::([^}]*))?\}")  # the caller's argument for the preceding advice, and its value
SETTING = re.compile(r"\{@([^}]+)\}")  # a setting of another stage
AT = re.compile(r"\{at\}([\w.]*)")  # a setting in the group of the error's setting


def filled(text: str, key: str, at: str, words: Mapping[str, str]) -> str:
    """Return a rule or fix with the names of settings and arguments in place of its marks (see `OrtpipeError`).

    `key` is the error's setting with its path `at`; `words` are the caller's for settings and arguments. A word
    replaces the name of a mark, or the beginning of a setting's name. A word that ends with = is followed by the mark's
    value.

    >>> fix = "Freeze it{@freeze:[w]}, or set {@train.epochs}=1."
    >>> filled(fix, "", "", {})
    "Freeze it, or set train's epochs=1."
    >>> filled(fix, "", "", {"": "", "freeze": "derive.frozen="})
    'Freeze it (derive.frozen=[w]), or set train.epochs=1.'
    """

    def argument(mark: re.Match[str]) -> str:
        word, value = words.get(mark[1], ""), mark[2]
        return f" ({word}{value})" if value and word.endswith("=") else f" ({word.rstrip('=')})" if word else ""

    def other_setting(mark: re.Match[str]) -> str:
        word = in_words(mark[1], words)
        return word if word != mark[1] or "" in words else re.sub("[./]", "'s ", word, count=1)

    text = SETTING.sub(other_setting, ARGUMENT.sub(argument, text))
    text = text.replace("{group}", key.replace(".", "/"))
    text = AT.sub(lambda mark: in_words(at + mark[1], words), text)
    return text.replace("{key}", in_words(key, words))


def in_words(name: str, words: Mapping[str, str]) -> str:
    """Return a setting's name, whose beginning is replaced by a caller's word for it (the longest that fits).

    >>> in_words("convert.source.shape", {"convert.": "", "convert.source.": "model."})
    'model.shape'
    """
    begin = max((word for word in words if name.startswith(word)), key=len, default="")
    return words[begin] + name.removeprefix(begin) if begin else name


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return a sentence that lists the valid choices and suggests the closest one.

    >>> nearest("adm", ["sgd", "adam"]), nearest("encode", ["encoding"])
    ("Did you mean 'adam'? Valid: adam, sgd.", 'Valid: encoding.')
    """
    valid = sorted(choices)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    edits = [edit for match in close for edit in difflib.SequenceMatcher(None, name, match).get_opcodes()]
    is_other_word = any(edit == "replace" and max(j - i, m - k) > max(2, len(name) // 4) for edit, i, j, k, m in edits)
    guess = f"Did you mean {close[0]!r}? " if close and not is_other_word else ""
    return f"{guess}Valid: {', '.join(valid) or 'none'}."
