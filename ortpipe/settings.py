"""Settings as data: dataclasses that check the types of their fields, and catalogues that know their names."""

from __future__ import annotations

import dataclasses
import functools
import os
import pkgutil
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, Union

from ortpipe.errors import ConfigError, UnknownNameError, nearest

Member = TypeVar("Member")
WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", type(None): "None"}


class Catalogue(Mapping[str, Member]):
    """Members by name; a member written as "module:Class" is imported when it is asked for, never by listing names.

    >>> catalogue = Catalogue("loss", {"l1": "operator:abs"})
    >>> list(catalogue), catalogue["l1"](-2)
    (['l1'], 2)
    >>> catalogue["l2"]
    Traceback (most recent call last):
    ...
    ortpipe.errors.UnknownNameError: 'l2' is no loss.
      fix: Did you mean 'l1'? Valid: l1.
    """

    def __init__(self, noun: str, members: Mapping[str, str | Member]) -> None:
        self._noun, self._members = noun, members

    def __getitem__(self, name: str) -> Member:
        if name not in self:
            raise UnknownNameError(f"{name!r} is no {self._noun}.", fix=nearest(str(name), self))
        member = self._members[name]
        return pkgutil.resolve_name(member) if isinstance(member, str) else member

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class Config:
    """Base of the dataclasses of settings: a value of another type than its annotation's is refused.

    Whole numbers serve as numbers, lists as tuples, NumPy's scalars and paths as Python's numbers and text.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        rules = cls.__dict__.get("__post_init__")
        if rules is not None:

            @functools.wraps(rules)
            def check(self: Any) -> None:
                _check_types(self)  # a rule such as "at least 1" needs a number
                rules(self)

            cls.__post_init__ = check  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        _check_types(self)


class _OtherTypeError(Exception):
    pass


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _check_types(config: Any) -> None:
    cls: type = type(config)
    hints, whose = _hints(cls), cls.__name__
    for entry in dataclasses.fields(config):
        value, catalogue = getattr(config, entry.name), entry.metadata.get("catalogue")
        try:
            if catalogue is not None and isinstance(value, str | bytes | int | float | Mapping | type | None):
                raise _OtherTypeError
            fitted = _fitted(value, hints[entry.name])
        except _OtherTypeError:
            got = f"{value!r}, of type {type(value).__name__}"
            if catalogue is not None:
                named = f"Call the catalogue's member {value!r}, with its settings." if value in catalogue else None
                fix = f"Call it: {value.__name__}()." if isinstance(value, type) else named
                raise ConfigError(
                    f"{whose}.{entry.name} is a member of its catalogue, made with its own settings.",
                    got=got,
                    fix=fix or nearest(str(value), catalogue),
                ) from None
            expected = in_words(hints[entry.name])
            fix = f"Give {'one' if expected.startswith('of') else expected}."
            if isinstance(value, str) and expected.startswith(WORDS[int]) and value.strip().lstrip("-+").isdigit():
                fix = f"Write {entry.name}={int(value)}."
            raise ConfigError(f"{whose}.{entry.name} is {expected}.", got=got, fix=fix) from None
        if fitted is not value:
            object.__setattr__(config, entry.name, fitted)


def _fitted(value: Any, hint: Any) -> Any:
    """Return a value as its annotation's type."""
    if hint is Any:
        return value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _first_fitted(value, choices)
    if origin is Literal:
        return _same(
            value, any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices)
        )
    if origin is tuple:
        _same(value, isinstance(value, tuple | list))
        if choices[1:] != (...,):
            _same(value, len(value) == len(choices))
        kinds = [choices[0]] * len(value) if choices[1:] == (...,) else choices
        return tuple(_fitted(part, kind) for part, kind in zip(value, kinds, strict=True))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        _same(value, isinstance(value, Mapping))
        return {_fitted(key, choices[0]): _fitted(part, choices[1]) for key, part in value.items()}
    if hint is float:
        return float(_same(value, isinstance(value, int | float) and not isinstance(value, bool)))
    if hint is int:
        return _same(value, isinstance(value, int) and not isinstance(value, bool))
    if hint is str:
        return os.fspath(_same(value, isinstance(value, str | os.PathLike)))
    if isinstance(hint, type):
        own = getattr(hint, "_is_protocol", False)  # a loss or source of the user's own is no subclass
        return _same(value, callable(value) if own else isinstance(value, hint))
    return value


def _first_fitted(value: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        try:
            return _fitted(value, choice)
        except _OtherTypeError:
            continue
    raise _OtherTypeError


def _same(value: Any, fits: bool) -> Any:
    if not fits:
        raise _OtherTypeError
    return value


def in_words(hint: Any) -> str:
    """Return what values an annotation allows.

    >>> in_words(int | None), in_words(tuple[str, ...]), in_words(Literal["sum", "mean"])
    ('a whole number or None', 'a list of text', "'sum' or 'mean'")
    """
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        *first, last = map(in_words, choices)
        return f"{', '.join(first)} or {last}"
    if origin is Literal:
        return " or ".join(map(repr, choices))
    if origin is tuple:
        return f"a list of {in_words(choices[0]).removeprefix('a ')}"
    if origin is not None:
        return f"a mapping of {' to '.join(in_words(choice) for choice in choices)}"
    return WORDS.get(hint, "anything" if hint is Any else f"of type {getattr(hint, '__name__', hint)}")
