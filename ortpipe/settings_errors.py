"""Errors for values that do not fit a setting: its annotation in words, and a fix."""

import contextlib
import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union

from ortpipe.errors import ConfigError, nearest
from ortpipe.settings import Catalogue, Fix, MisfitError, Must, article, bounds_of, catalogue_of, converted

WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", type(None): "None (null)"}


def misfit_error(misfit: MisfitError, key: str, default: Any) -> ConfigError:
    """Return the error for a value, or the part of one, that does not fit its annotation; it names `key`."""
    wrong, expected = misfit.value, in_words(misfit.hint)
    plain = wrong is None or isinstance(wrong, str | int | float | list | dict | tuple)
    if type(wrong) is int and wrong.bit_length() > 63:
        expected += " of at most 64 bits"
    return ConfigError(
        f"{{key}} must be {expected}.",
        key=".".join([key, *map(str, misfit.path)]),
        got=f"{wrong!r:.200}" + ("" if plain else f", of type {type(wrong).__name__}"),
        fix=_fix_for(misfit, default),
    )


def _fix_for(misfit: MisfitError, default: Any) -> str:
    wrong, hint = misfit.value, misfit.hint
    parts = (hint, *typing.get_args(hint))
    for bound in (bound for part in parts for bound in getattr(part, "__metadata__", ())):
        if isinstance(bound, Fix):
            return bound.text
        if isinstance(bound, Must) and bound.names:
            return nearest(str(wrong), bound.names)
        if isinstance(bound, Catalogue):
            if isinstance(wrong, type):
                return f"Call it: {wrong.__name__}()."
            named = isinstance(wrong, str) and wrong in bound
            return f"Call the catalogue's member {wrong!r}, with its settings." if named else nearest(str(wrong), bound)
    if isinstance(wrong, str):
        with contextlib.suppress(ValueError, MisfitError):
            return f"Write {{key}}={converted(int(wrong), hint)}."
        if any(typing.get_origin(part) is tuple for part in parts):
            return f"Write a list: [{wrong}]."
    group = next((part for part in parts if isinstance(part, type) and dataclasses.is_dataclass(part)), None)
    if group is not None and isinstance(wrong, Mapping):
        return f"Write {group.__name__}({', '.join(f'{name}={value!r}' for name, value in wrong.items())})."
    if default is None or isinstance(default, str | int | float):
        return f"The default is {'None (null)' if default is None else repr(default)}."
    return "Give one." if isinstance(hint, type) and hint not in WORDS else f"Give {in_words(hint)}."


def in_words(hint: Any) -> str:
    """Return a description of the values that an annotation allows.

    >>> from ortpipe.settings import Count, Positive, one_of
    >>> in_words(int | None), in_words(tuple[str, ...]), in_words(Literal["sum", "mean"])
    ('a whole number or None (null)', 'a list of text', "'sum' or 'mean'")
    >>> in_words(Positive), in_words(Count | None)
    ('a number, positive and finite', 'a whole number, at least 1 and at most 2147483647, or None (null)')
    >>> in_words(tuple[Annotated[str, one_of("metric", ["r2"])], ...])
    'a list, each item the name of a metric'
    """
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        catalogue, kind = catalogue_of(hint), in_words(choices[0])
        if catalogue is not None:
            return f"{article(catalogue.noun)} with its own settings"
        bounds = " and ".join(bound.words for bound in bounds_of(hint))
        return bounds if choices[0] is str and bounds else f"{kind}, {bounds}" if bounds else kind
    if origin in (Union, types.UnionType):
        *first, last = map(in_words, choices)
        bounded = "," if any(", " in words for words in first) else ""
        return f"{', '.join(first)}{bounded} or {last}"
    if origin is Literal:
        return " or ".join(map(repr, choices))
    if origin is tuple:
        item = in_words(choices[0])
        return f"a list, each item {item}" if " " in item else f"a list of {item}"
    if origin is not None:
        return f"a mapping of {' to '.join(in_words(choice) for choice in choices)}"
    return WORDS.get(hint) or ("anything" if hint is Any else article(getattr(hint, "__name__", str(hint))))
