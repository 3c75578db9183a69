"""Secrets are written nowhere: what is hidden of configs, commands, logs and of everything printed.

Hidden are the passwords of addresses, values under keys that look like secrets (`password`, `api_key`, `token` …), and
what came through `${oc.env:…}`; once such a value is known, its text is hidden wherever it turns up.
"""

import html
import itertools
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import TracebackType
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException
from omegaconf import OmegaConf

MASK = "***"
WORDS = {"auth", "authorization", "bearer", "cookie", "credential", "jwt", "pass", "passcode", "passphrase", "sas"}
ENDS = ("password", "passwd", "pwd", "secret", "token", "apikey", "accesskey", "privatekey", "secretkey")
KEYS = {"access", "account", "api", "encryption", "private", "secret", "session", "shared", "signing", "storage"}
FREE = {"data", "recorder", "name", "hydra"}  # the others' values decide results, and stand in the store's keys
NAMES = re.compile(  # keys that users name, and the tokens that texts are made into
    r"data\.source\.(?:inputs|encode)\.|train\.factors\.|penalty\.terms\.|(?:data\.)?tokens(?:\.|$)"
)
PLAIN = {"", "true", "false", "null", "none", MASK, "…"}
LONG = 8  # characters from which on a text is hidden within words too
VARIABLE = re.compile(r"PASSW|PWD$|_PASS$|SECRET|TOKEN|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|STORE_KEY")
PATH = re.compile(r"[/~.]|[A-Za-z]:[\\/]")
ENVIRONMENT = re.compile(r"\$\{\s*oc\.env:\s*(\w+)")

HINT = re.compile(  # what holds none of these, none of the patterns below finds a secret in
    r"://|%3a%2f%2f|pass|pwd|secret|token|key|cred|auth|sas|cookie|bearer|basic\s|jwt"
    r"|[?&](?:[\w-]*sig|code=)|gh[pousr]_|github_pat|hf_|glpat|xox|eyj",
    re.IGNORECASE,
)
ADDRESS = re.compile(r"(?i)([a-z][\w+.-]*://[^\s/:@\"<>]*:)(?!\d+(?:[/?#]|$|\s))([^\s\"<>]*)(?=@)")
USER_ALONE = re.compile(r"(?i)(https?://)([^\s/:@\"<>]+)(?=@)")  # such as an access token
ENCODED = re.compile(r"(?i)(%3a%2f%2f(?:(?!%3a|%40)\S)*%3a)((?:(?!%40)\S)+)(?=%40)")
QUERY = re.compile(r"(?i)([?&](?:[\w-]*sig|[\w-]*signature|key|code)=)([^&#\s'\"]+)")
BEARER = re.compile(r"(?i)(\b(?:bearer|basic)\s+)([\w.~+/=-]{16,})")
PEM = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(.+?)(?=-----END|$)", re.DOTALL)
ISSUED = re.compile(  # tokens that say themselves what they are: of GitHub, GitLab, Hugging Face, Slack; and JWT
    r"()(\b(?:(?:gh[pousr]|hf)_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|xox[abeprs]-[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}))"
)
SHAPES = (ADDRESS, USER_ALONE, ENCODED, QUERY, BEARER, PEM, ISSUED)
# Of key=value, key: value, "key": "value". Tried once per word: a report's pictures are tens of thousands of letters.
KEY = re.compile(r"(?<![\w.-])([\w.-]*+(?<=\w))\\?[\"']?\s*[:=]\s*")
VALUE = re.compile(r"\\?\"(?:[^\"\\]|\\.)*?\\?\"|'(?:[^'\\]|\\.)*'|[^\s,;&}\])'\"]+")

_known: set[str] = set()


def is_secret(key: object) -> bool:
    """Return whether a key of a config, dotted or not, says that its value is a secret.

    >>> [is_secret(key) for key in ("password", "dbPassword2", "AWS_SECRET_ACCESS_KEY", "params.api_key", "DBTOKEN")]
    [True, True, True, True, True]
    >>> [is_secret(key) for key in ("tokens_per_batch", "token_pattern", "key", "keyboard", "compass", "author")]
    [False, False, False, False, False, False]
    >>> [is_secret(f"data.{key}") for key in ("source.params.token", "source.inputs.token", "tokens.column")]
    [True, False, False]
    """
    return NAMES.match(str(key).lstrip("+")) is None and any(_is_secret(part) for part in re.split(r"[./]", str(key)))


@cache
def _is_secret(key: str) -> bool:
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", key)]
    if not words:
        return False
    last = words[-1].removesuffix("s") if words[-1] not in WORDS and words[-1] not in KEYS else words[-1]
    if last in WORDS or last.endswith(ENDS):
        return True
    return any(one in KEYS and other in ("key", "keys") for one, other in itertools.pairwise(words))


def _hides(value: Any, key: object) -> bool:
    """Return whether a value under a secret key is one; of a plural (`max_tokens`), numbers are none."""
    if value is None or isinstance(value, bool) or str(value).strip().lower() in PLAIN:
        return False
    return not (isinstance(value, int | float) and str(key).endswith("s"))


def redacted(text: str, *, pairs: bool = True) -> str:
    r"""Return text without secrets; with `pairs`, without those that stand behind a key's name.

    >>> redacted("recorder.tracking_uri=postgresql://me:p@ss/w@server/runs")
    'recorder.tracking_uri=postgresql://me:***@server/runs'
    >>> redacted("https://host/x?sig=abc&page=2 {'api_key': 'abc', 'rows': 3} +params.token=abc")
    "https://host/x?sig=***&page=2 {'api_key': '***', 'rows': 3} +params.token=***"
    >>> redacted("sqlite:///a.db?password=abc"), redacted(r'{"a": "{\"password\": \"abc\"}"}')
    ('sqlite:///a.db?password=***', '{"a": "{\\"password\\": \\"***\\"}"}')
    >>> redacted("http://host:5000/#/models/one@champion +params.token=${oc.env:TOKEN}")
    'http://host:5000/#/models/one@champion +params.token=${oc.env:TOKEN}'
    """
    if _known:
        text = _pattern(frozenset(_known)).sub(MASK, text)
    parts: list[str] = []
    place = 0
    for start, end in sorted(_secrets(text, pairs=pairs)):
        if start > place or not parts:  # else it goes on where another secret ends
            parts += [text[place:start], MASK]
        place = max(place, end)
    return "".join([*parts, text[place:]])


def _secrets(text: str, *, pairs: bool = True) -> Iterator[tuple[int, int]]:
    """Yield where a text holds secrets that are known by their form, or by the name of the key in front of them."""
    if HINT.search(text) is None:
        return
    for shape in SHAPES:
        for found in shape.finditer(text):
            if not found[2].startswith("${"):
                yield found.span(2)
    place = 0
    while pairs and (key := KEY.search(text, place)) is not None:
        place = key.end()
        if is_secret(key[1]) and (value := VALUE.match(text, place)) is not None:
            bare = value[0].strip("'\"\\")
            if not bare.startswith("${") and _hides(_number(bare), key[1]):
                start = place + value[0].index(bare)
                yield start, start + len(bare)
                place = value.end()


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


@cache
def _pattern(known: frozenset[str]) -> re.Pattern[str]:
    """Return what finds the known secrets: short ones and numbers as whole words only."""
    found = []
    for text in sorted(known, key=lambda text: (-len(text), text)):
        whole = len(text) < LONG or not isinstance(_number(text), str)
        found.append(rf"(?<![\w.]){re.escape(text)}(?!\w)" if whole else re.escape(text))
    return re.compile("|".join(found))


def know(value: object) -> None:
    """Hide this text from now on, in all the ways in which it is written; what a path here holds is no secret."""
    text = str(value)
    if len(text.strip()) < 3 or text.lower() in PLAIN or text in _here():
        return
    lines = [line for line in text.splitlines() if len(line) >= 2 * LONG] if "\n" in text else []
    for one in (text, *lines):
        plain = json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1], repr(one)[1:-1]
        escaped = html.escape(one), html.escape(one).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
        shell = one.replace("'", "'\"'\"'"), one.replace("'", "''"), one.replace("'", "\\'"), one.replace("%", "%%")
        _known.update((one, *plain, *escaped, *shell, quote(one), quote(one, safe=""), quote_plus(one)))


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def know_text(text: str) -> None:
    """Hide from now on what is a secret within a text: the password of an address, a pair of key and value."""
    for start, end in _secrets(text):
        know(text[start:end])
        know(unquote(text[start:end]))


def know_config(config: Mapping[str, Any]) -> None:
    """Hide from now on the secrets of a config, resolved or not."""
    for name, node in config.items():
        know_values(node, name, setting=name not in FREE)


def know_values(node: Any, key: object = "", *, setting: bool = False) -> None:
    """Hide the secrets of values under a dotted key; of a stage's `setting` no numbers, which go by any name there."""
    secret = is_secret(key)
    if isinstance(node, Mapping):
        for name, value in node.items():
            know_values(value, f"{key}.{name}", setting=setting)
    elif isinstance(node, list | tuple):
        for value in node:
            know_values(value, key, setting=setting)
    elif isinstance(node, int | float):
        if secret and not setting and _hides(node, key):
            know(node)
    elif node is not None:
        text = str(getattr(node, "text", node))  # Hydra's quoted strings
        if "${" in text:
            know_environment(text, secret=secret, setting=setting)
        elif secret and _hides(text, key):
            know(text)
        know_text(text)


def know_environment(raw: str, *, secret: bool, setting: bool = False) -> None:
    """Hide from now on what a text takes from the environment; a stage's `setting` only where a name says so.

    Of an address that is its password; a path or a number is a secret only by its name.
    """
    for name in ENVIRONMENT.findall(raw):
        value = os.environ.get(name, "")
        if secret or VARIABLE.search(name.upper()):
            know(value) if "://" not in value else know_text(value)
        elif "://" in value:
            know_text(value)
        elif not setting and PATH.match(value) is None and isinstance(_number(value), str):
            know(value)


def know_command(words: Iterable[str]) -> None:
    """Hide from now on the secrets of a command line, and those that the environment holds under their names."""
    for name, value in os.environ.items():
        if VARIABLE.search(name.upper()) and len(value) >= LONG and PATH.match(value) is None:
            know(value)
        if "://" in value and "@" in value:
            know_text(value)
    for word in words:
        if "=" in word and HINT.search(word) is not None:
            for key, value in _overridden(word):
                know_values(value, key)


def _overridden(word: str) -> Iterator[tuple[str, Any]]:
    """Yield the key of an override with each value, of a sweep all; of what Hydra does not read, all its words."""
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        key, _, text = word.partition("=")
        yield from ((key, part) for part in (text, *re.findall(r"[^\s,{}\[\]()'\"]+", text)))
        return
    value: Any = override._value  # `value()` gives quoted strings as they are; a sweep's are asked for here
    yield override.key_or_group, value.list if isinstance(value, ChoiceSweep) else value


def recordable(config: Any) -> dict[str, Any]:
    """Return a config as it is recorded: resolved, but for secrets, which are hidden from now on.

    Those that a user takes from the environment stay `${oc.env:NAME}`, the others become `***`.
    """
    raw: Any = OmegaConf.to_container(config, resolve=False)
    values: Any = OmegaConf.to_container(config, resolve=True)
    know_config(raw)
    know_config(values)
    return {name: _recorded(raw[name], value, name, setting=name not in FREE) for name, value in values.items()}


def hidden(node: Any) -> Any:
    """Return plain values of a record without secrets; its numbers stay."""
    return _recorded(None, node, "", setting=True)


def _recorded(raw: Any, value: Any, key: str, *, setting: bool) -> Any:
    shown: Any
    if isinstance(value, Mapping):
        inner = raw if isinstance(raw, Mapping) else {}
        shown = {
            name: _recorded(inner.get(name), one, f"{key}.{name}" if key else str(name), setting=setting)
            for name, one in value.items()
        }
    elif isinstance(value, list | tuple):
        items = raw if isinstance(raw, list | tuple) and len(raw) == len(value) else [None] * len(value)
        shown = [_recorded(item, one, key, setting=setting) for item, one in zip(items, value, strict=True)]
    elif is_secret(key) and _hides(value, key) and (isinstance(value, str) or not setting):
        shown = value if isinstance(value, str) and ENVIRONMENT.match(value) else MASK
    elif isinstance(value, str):  # in a path, `token=1/` is the name of a folder
        shown = redacted(value, pairs="/" not in value or any(sign in value for sign in "{;&?"))
    else:
        shown = value
    asked = asked_again(raw) if isinstance(raw, str) and shown != value else None
    return shown if asked is None else asked


def asked_again(raw: str) -> str | None:
    """Return a config's text as it is recorded where the environment gave it: without defaults; None where it did not.

    >>> os.environ["HOST"] = "here"
    >>> asked_again("${oc.env:HOST,'sqlite:///${paths.outputs}/a.db'}"), asked_again("${data.x}")
    ('${oc.env:HOST}', None)
    """
    parts, rest, names = [], raw, []
    while (found := ENVIRONMENT.search(rest)) is not None:
        end, depth = found.end(), 1
        while depth and end < len(rest):
            depth += {"{": 1, "}": -1}.get(rest[end], 0)
            end += 1
        parts += [rest[: found.start()], f"${{oc.env:{found[1]}}}"]
        names.append(found[1])
        rest = rest[end:]
    literals = [*parts[::2], rest]
    alone = "".join(literals).replace("${oc.decode:", "").count("${") == 0
    clean = all(redacted(text) == text for text in literals)
    there = names and all(name in os.environ for name in names)
    return "".join([*parts, rest]) if there and alone and clean else None


class _Formatter(logging.Formatter):
    """What another formatter gives, without secrets."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return redacted(self._inner.format(record))


def guard() -> None:
    """Hide secrets in what this process logs, as its logging is set up now, and in the error that ends it.

    What is printed goes through `ortpipe.app.terminal`, which hides them too.
    """
    for handler in logging.getLogger().handlers:
        if not isinstance(handler.formatter, _Formatter):
            handler.setFormatter(_Formatter(handler.formatter or logging.Formatter()))
    sys.excepthook = _print_error


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print(redacted("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)
