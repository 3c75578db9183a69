"""Redaction of secrets in configs, commands, logs and everything printed.

Secrets are the passwords in addresses, the values of keys that look secret (`password`, `api_key`, `token` …), and the
values of `${oc.env:…}`. Once the text of a secret is known, it is masked wherever it appears.
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
from functools import cache, lru_cache
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
FREE = {"data", "recorder", "name", "hydra"}  # values of other groups decide results and are part of the store's keys
NAMES = re.compile(  # keys that users name, and the tokens of texts
    r"data\.source\.inputs\.|train\.factors\.|penalty\.terms\.|(?:data\.)?tokens(?:\.|$)"
)
PLAIN = {"", "true", "false", "null", "none", MASK, "…"}
LONG = 8  # characters from which on a secret is masked inside words too
VARIABLE = re.compile(r"PASSW|PWD$|_PASS$|SECRET|TOKEN|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|STORE_KEY")
PATH = re.compile(r"[/~.]|[A-Za-z]:[\\/]")
ENVIRONMENT = re.compile(r"\$\{\s*oc\.env:\s*(\w+)")
REFERENCE = re.compile(rf"{ENVIRONMENT.pattern}(?:[^{{}}]|{{(?:[^{{}}]|{{[^{{}}]*}})*}})*}}")  # whole, with its default

HINT = re.compile(  # none of the patterns below matches a text without one of these
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
ISSUED = re.compile(  # tokens with a known prefix: of GitHub, GitLab, Hugging Face, Slack; and JWT
    r"()(\b(?:(?:gh[pousr]|hf)_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|xox[abeprs]-[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}))"
)
SHAPES = (ADDRESS, USER_ALONE, ENCODED, QUERY, BEARER, PEM, ISSUED)
# Key=value, key: value, "key": "value". Tried once per word: a report's pictures are tens of thousands of letters.
KEY = re.compile(r"(?<![\w.-])([\w.-]*+(?<=\w))\\?[\"']?\s*[:=]\s*")
VALUE = re.compile(r"\\?\"(?:[^\"\\]|\\.)*?\\?\"|'(?:[^'\\]|\\.)*'|[^\s,;&}\])'\"]+")

_secret_texts: set[str] = set()


@lru_cache(2**14, typed=True)  # a run checks each key of its config and record some twenty times
def is_secret(key: object) -> bool:
    """Return whether the name of a config key, dotted or not, is that of a secret.

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
    return any(first in KEYS and second in ("key", "keys") for first, second in itertools.pairwise(words))


def _is_value_secret(value: Any, key: object) -> bool:
    """Return whether the value of a secret key is a secret; numbers under a plural (`max_tokens`) are not."""
    if value is None or isinstance(value, bool) or str(value).strip().lower() in PLAIN:
        return False
    return not (isinstance(value, int | float) and str(key).endswith("s"))


def redacted(text: str, *, pairs: bool = True) -> str:
    r"""Return text with its secrets masked; with `pairs`, also the values of secret keys within it.

    >>> redacted("recorder.tracking_uri=postgresql://me:p@ss/w@server/runs")
    'recorder.tracking_uri=postgresql://me:***@server/runs'
    >>> redacted("https://host/x?sig=abc&page=2 {'api_key': 'abc', 'rows': 3} +params.token=abc")
    "https://host/x?sig=***&page=2 {'api_key': '***', 'rows': 3} +params.token=***"
    >>> redacted("sqlite:///a.db?password=abc"), redacted(r'{"a": "{\"password\": \"abc\"}"}')
    ('sqlite:///a.db?password=***', '{"a": "{\\"password\\": \\"***\\"}"}')
    >>> redacted("http://host:5000/#/models/one@champion +params.token=${oc.env:TOKEN}")
    'http://host:5000/#/models/one@champion +params.token=${oc.env:TOKEN}'
    """
    if _secret_texts:
        text = _pattern(frozenset(_secret_texts)).sub(MASK, text)
    parts: list[str] = []
    position = 0
    for start, end in sorted(_secret_spans(text, pairs=pairs)):
        if start > position or not parts:  # else it adjoins the secret before, which has the mask
            parts += [text[position:start], MASK]
        position = max(position, end)
    return "".join([*parts, text[position:]])


def _secret_spans(text: str, *, pairs: bool = True) -> Iterator[tuple[int, int]]:
    """Yield the spans of a text's secrets, which their format or the name of their key reveals."""
    if HINT.search(text) is None:
        return
    for shape in SHAPES:
        for match in shape.finditer(text):
            if not match[2].startswith("${"):
                yield match.span(2)
    position = 0
    while pairs and (key := KEY.search(text, position)) is not None:
        position = key.end()
        if is_secret(key[1]) and (value := VALUE.match(text, position)) is not None:
            bare = value[0].strip("'\"\\")
            if not bare.startswith("${") and _is_value_secret(_number(bare), key[1]):
                start = position + value[0].index(bare)
                yield start, start + len(bare)
                position = value.end()


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


@cache
def _pattern(secrets: frozenset[str]) -> re.Pattern[str]:
    """Return the pattern of the known secrets; short ones and numbers match as whole words only."""
    patterns = []
    for text in sorted(secrets, key=lambda text: (-len(text), text)):
        as_word = len(text) < LONG or not isinstance(_number(text), str)
        patterns.append(rf"(?<![\w.]){re.escape(text)}(?!\w)" if as_word else re.escape(text))
    return re.compile("|".join(patterns))


def know(value: object) -> None:
    """Mask this text from now on, in all its escaped forms, unless it is part of the working folder's path."""
    text = str(value)
    if len(text.strip()) < 3 or text.lower() in PLAIN or text in _working_folder():
        return
    lines = [line for line in text.splitlines() if len(line) >= 2 * LONG] if "\n" in text else []
    for variant in (text, *lines):
        plain = json.dumps(variant)[1:-1], json.dumps(variant, ensure_ascii=False)[1:-1], repr(variant)[1:-1]
        escaped = html.escape(variant), html.escape(variant).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
        shell = (
            variant.replace("'", "'\"'\"'"),
            variant.replace("'", "''"),
            variant.replace("'", "\\'"),
            variant.replace("%", "%%"),
        )
        _secret_texts.update(
            (variant, *plain, *escaped, *shell, quote(variant), quote(variant, safe=""), quote_plus(variant))
        )


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def know_text(text: str) -> None:
    """Mask from now on the secrets within a text: the password of an address, the value of a secret key."""
    for start, end in _secret_spans(text):
        know(text[start:end])
        know(unquote(text[start:end]))


def know_config(config: Mapping[str, Any]) -> None:
    """Mask from now on the secrets of a config, resolved or not."""
    for name, node in config.items():
        know_values(node, name, setting=name not in FREE)


def know_values(node: Any, key: object = "", *, setting: bool = False) -> None:
    """Mask from now on the secrets of values under a dotted key.

    In a stage's `setting` numbers are no secrets, whatever their key.
    """
    secret = is_secret(key)
    if isinstance(node, Mapping):
        for name, value in node.items():
            know_values(value, f"{key}.{name}", setting=setting)
    elif isinstance(node, list | tuple):
        for value in node:
            know_values(value, key, setting=setting)
    elif isinstance(node, int | float):
        if secret and not setting and _is_value_secret(node, key):
            know(node)
    elif node is not None:
        text = str(getattr(node, "text", node))  # Hydra's quoted strings
        if "${" in text:
            know_environment(text, secret=secret, setting=setting)
        elif secret and _is_value_secret(text, key):
            know(text)
        know_text(text)


def know_environment(raw: str, *, secret: bool, setting: bool = False) -> None:
    """Mask from now on the values of the environment variables that a text refers to.

    In an address only the password is masked. Paths, numbers and the values of a stage's `setting` are masked only if
    the name of the key or variable is that of a secret.
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
    """Mask from now on the secrets of a command line, and of environment variables with the names of secrets."""
    for name, value in os.environ.items():
        if VARIABLE.search(name.upper()) and len(value) >= LONG and PATH.match(value) is None:
            know(value)
        if "://" in value and "@" in value:
            know_text(value)
    for word in words:
        if "=" in word and HINT.search(word) is not None:
            for key, value in _override_values(word):
                know_values(value, key)


def _override_values(word: str) -> Iterator[tuple[str, Any]]:
    """Yield an override's key with its value or, of a sweep, with all values; if Hydra cannot parse it, every word."""
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        key, _, text = word.partition("=")
        yield from ((key, part) for part in (text, *re.findall(r"[^\s,{}\[\]()'\"]+", text)))
        return
    value: Any = override.value()
    yield override.key_or_group, value.list if isinstance(value, ChoiceSweep) else value


def recordable(config: Any, values: Any = None) -> dict[str, Any]:
    """Return a config as recorded: resolved, except for secrets, which are masked from now on.

    Secrets from the environment are recorded as `${oc.env:NAME}`, others as `***`. Pass the resolved config as `values`
    if it is available.
    """
    raw: Any = OmegaConf.to_container(config, resolve=False)
    values = OmegaConf.to_container(config, resolve=True) if values is None else values
    know_config(raw)
    know_config(values)
    return {name: _without_secrets(raw[name], value, name, setting=name not in FREE) for name, value in values.items()}


def hidden(node: Any) -> Any:
    """Return the plain values of a record with secrets masked; numbers stay."""
    return _without_secrets(None, node, "", setting=True)


def _without_secrets(raw: Any, value: Any, key: str, *, setting: bool) -> Any:
    result: Any
    if isinstance(value, Mapping):
        inner = raw if isinstance(raw, Mapping) else {}
        result = {
            name: _without_secrets(inner.get(name), item, f"{key}.{name}" if key else str(name), setting=setting)
            for name, item in value.items()
        }
    elif isinstance(value, list | tuple):
        items = raw if isinstance(raw, list | tuple) and len(raw) == len(value) else [None] * len(value)
        result = [
            _without_secrets(raw_item, item, key, setting=setting) for raw_item, item in zip(items, value, strict=True)
        ]
    elif is_secret(key) and _is_value_secret(value, key) and (isinstance(value, str) or not setting):
        result = value if isinstance(value, str) and ENVIRONMENT.match(value) else MASK
    elif isinstance(value, str):  # in a path, `token=1/` may be a folder's name
        result = redacted(value, pairs="/" not in value or any(sign in value for sign in "{;&?"))
    else:
        result = value
    reference = _environment_reference(raw) if isinstance(raw, str) and result != value else None
    return result if reference is None else reference


def _environment_reference(raw: str) -> str | None:
    """Return the text that is recorded for a value from the environment, without defaults; None for other values.

    >>> os.environ["HOST"] = "here"
    >>> _environment_reference("${oc.env:HOST,'sqlite:///${paths.outputs}/a.db'}"), _environment_reference("${data.x}")
    ('${oc.env:HOST}', None)
    """
    names, literals = REFERENCE.findall(raw), REFERENCE.split(raw)[::2]
    is_plain = "".join(literals).replace("${oc.decode:", "").count("${") == 0
    clean = all(redacted(text) == text for text in literals)
    available = names and all(name in os.environ for name in names)
    return REFERENCE.sub(r"${oc.env:\1}", raw) if available and is_plain and clean else None


class _Formatter(logging.Formatter):
    """Masks secrets in the output of another formatter."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return redacted(self._inner.format(record))


def guard() -> None:
    """Mask secrets in the present log handlers of this process, and in the traceback of an uncaught exception.

    Printed text goes through `ortpipe.app.terminal`, which masks them too.
    """
    for handler in logging.getLogger().handlers:
        if not isinstance(handler.formatter, _Formatter):
            handler.setFormatter(_Formatter(handler.formatter or logging.Formatter()))
    sys.excepthook = _print_error


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print(redacted("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)
