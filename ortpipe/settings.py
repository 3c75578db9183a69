"""Settings as data: dataclasses whose annotations hold each field's type and bounds, and catalogues of members."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import operator
import os
import pkgutil
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, ParamSpec, Self, TypeVar, Union

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen

from ortpipe.errors import ConfigError, UnknownNameError, nearest

Member = TypeVar("Member")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", type(None): "None (null)"}

Count = Annotated[int, Ge(1)]
Seed = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0), Lt(math.inf)]
NotNegative = Annotated[float, Ge(0), Lt(math.inf)]
Share = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True)
class Must:
    """A bound that annotated-types has no name for: its words follow "must be"."""

    words: str
    holds: Callable[[Any], bool]


class OneOf:
    """A bound of text: the name of a member of `names`, or one of `others`."""

    def __init__(self, noun: str, names: Collection[str], *others: str) -> None:
        self.words = " or ".join([f"the name of {article(noun)}", *map(repr, others)])
        self._names, self._others = names, others

    def names(self) -> list[str]:
        """Return every valid name."""
        return [*self._others, *self._names]


@dataclass(frozen=True)
class Fix:
    """What to do about a wrong value, where the field's default is no answer; `{key}` and `{at}` as in errors."""

    text: str


ARTIFACT = Fix("Give what the stage before it returns, or what load_artifact reads.")


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
        self.noun, self._members = noun, members

    def __getitem__(self, name: str) -> Member:
        if name not in self:
            raise UnknownNameError(f"{name!r} is no {self.noun}.", fix=nearest(str(name), self))
        member = self._members[name]
        return pkgutil.resolve_name(member) if isinstance(member, str) else member

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def default(self, name: str, **settings: Any) -> Any:
        """Return the dataclass field whose default is this member."""
        return dataclasses.field(default_factory=lambda: self[name](**settings))  # type: ignore[operator]


class Config:
    """Base of the dataclasses of settings: each value must have its annotation's type and keep its bounds.

    Bounds stand in the type: `rows: Annotated[int, Ge(1)]`, `loss: Annotated[Loss, LOSSES]`. Whole numbers serve as
    numbers, lists as tuples, NumPy's scalars and paths as Python's numbers and text. `__post_init__` is for rules
    between fields, and finds each of them checked.
    """

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Reject a name that is no field, with the nearest."""
        names = [entry.name for entry in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in named:
            if name not in names:
                raise UnknownNameError(f"{cls.__name__} has no setting {name!r}.", fix=nearest(name, names))
        return super().__new__(cls)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        rules = cls.__dict__.get("__post_init__")
        if rules is not None:

            @functools.wraps(rules)
            def check(self: Any) -> None:
                Config.__post_init__(self)
                rules(self)

            cls.__post_init__ = check  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        cls: type = type(self)
        for name, (entry, hint) in fields_of(cls).items():
            value = getattr(self, name)
            fitted = checked(value, hint, name, entry.default)
            if fitted is not value:
                object.__setattr__(self, name, fitted)


@functools.cache
def fields_of(cls: type) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """Return each field of a dataclass by name, with its annotation."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {entry.name: (entry, hints[entry.name]) for entry in dataclasses.fields(cls)}


def catalogue_of(hint: Any) -> Catalogue[Any] | None:
    """Return the catalogue in an annotation `Annotated[…, CATALOGUE]`."""
    return next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Catalogue)), None)


def checked(value: Any, hint: Any, key: str, default: Any = dataclasses.MISSING) -> Any:
    """Return a field's value as its annotation's type.

    Raises:
        ConfigError: it has another type, or is out of bounds; names `key`, or the part of it that is wrong.
    """
    try:
        return _fitted(value, hint)
    except _MisfitError as misfit:
        wrong, expected = misfit.value, in_words(misfit.hint)
        plain = wrong is None or isinstance(wrong, str | int | float | list | dict | tuple)
        raise ConfigError(
            f"{{key}} must be {expected}.",
            key=".".join([key, *map(str, misfit.path)]),
            got=f"{wrong!r:.200}" if plain else f"{wrong!r:.200}, of type {type(wrong).__name__}",
            fix=_way_out(misfit, default),
        ) from None


def typed(stage: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a stage: reject an artifact or a config of another type than its annotation's."""
    names = list(inspect.signature(stage).parameters)[:2]

    @functools.wraps(stage)
    def call(*values: Arguments.args, **named: Arguments.kwargs) -> Result:
        hints = typing.get_type_hints(stage)
        for name, value in {**dict(zip(names, values, strict=False)), **named}.items():
            if name in names:
                checked(value, Annotated[hints[name], ARTIFACT] if name == "artifact" else hints[name], name)
        return stage(*values, **named)

    return call


def _way_out(misfit: _MisfitError, default: Any) -> str:
    wrong, expected = misfit.value, in_words(misfit.hint)
    choices = typing.get_args(misfit.hint) if typing.get_origin(misfit.hint) is not Annotated else ()
    for part in (part for hint in (misfit.hint, *choices) for part in _metadata(hint)):
        if isinstance(part, Fix):
            return part.text
        if isinstance(part, OneOf):
            return nearest(str(wrong), part.names())
        if isinstance(part, Catalogue):
            if isinstance(wrong, type):
                return f"Call it: {wrong.__name__}()."
            named = isinstance(wrong, str) and wrong in part
            return f"Call the catalogue's member {wrong!r}, with its settings." if named else nearest(str(wrong), part)
    if isinstance(wrong, str) and expected.startswith(WORDS[int]) and wrong.strip().lstrip("-+").isdigit():
        with contextlib.suppress(_MisfitError):
            return f"Write {{key}}={_fitted(int(wrong), misfit.hint)}."
    if isinstance(wrong, str) and expected.startswith("a list"):
        return f"Write a list: [{wrong}]."
    if default is None or isinstance(default, str | int | float):
        return f"The default is {'None (null)' if default is None else repr(default)}."
    return "Give one." if isinstance(misfit.hint, type) and misfit.hint not in WORDS else f"Give {expected}."


class _MisfitError(Exception):
    def __init__(self, value: Any, hint: Any, path: tuple[object, ...] = ()) -> None:
        self.value, self.hint, self.path = value, hint, path


def _fitted(value: Any, hint: Any) -> Any:
    """Return a value as its annotation's type and within its bounds."""
    if hint is Any:
        return value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    fits = True
    if origin is Annotated:
        return _within(value, hint)
    if origin in (Union, types.UnionType):
        return _first_fitted(value, hint, choices)
    if origin is Literal:
        fits = any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices)
    elif origin is tuple:
        several = choices[1:] == (...,)
        if not isinstance(value, tuple | list) or not (several or len(value) == len(choices)):
            raise _MisfitError(value, hint)
        kinds = [choices[0]] * len(value) if several else choices
        return tuple(_inside(i, part, kind) for i, (part, kind) in enumerate(zip(value, kinds, strict=True)))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _MisfitError(value, hint)
        return {_inside(key, key, choices[0]): _inside(key, part, choices[1]) for key, part in value.items()}
    elif hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        value = float(value) if fits else value
    elif hint is int:
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        fits = isinstance(value, int) and not isinstance(value, bool)
    elif hint is str:
        fits = isinstance(value, str | os.PathLike)
        value = os.fspath(value) if fits else value
    elif isinstance(hint, type):
        by_shape = getattr(hint, "_is_protocol", False)  # a loss or source of the user's own is no subclass
        fits = callable(value) if by_shape else isinstance(value, hint)
    if not fits:
        raise _MisfitError(value, hint)
    return value


def _within(value: Any, hint: Any) -> Any:
    """Return a value of an `Annotated` type once every bound holds."""
    if catalogue_of(hint) is not None and isinstance(value, str | bytes | int | float | Mapping | type | None):
        raise _MisfitError(value, hint)
    try:
        value = _fitted(value, typing.get_args(hint)[0])
    except _MisfitError as misfit:
        raise misfit if misfit.path else _MisfitError(value, hint) from None
    for bound in _bounds(hint):
        if not bound.holds(value):
            raise _MisfitError(value, hint)
    return value


def _metadata(hint: Any) -> Iterator[Any]:
    for part in getattr(hint, "__metadata__", ()):
        yield from part if isinstance(part, GroupedMetadata) else (part,)


def _bounds(hint: Any) -> Iterator[Must]:
    """Yield an annotation's bounds; nan is within none.

    >>> [bound.words for bound in _bounds(Annotated[int, Ge(0), Lt(9)])]
    ['not negative', 'below 9']
    """
    for part in _metadata(hint):
        match part:
            case Must():
                yield part
            case OneOf():
                yield Must(part.words, part.names().__contains__)
            case Ge(ge=bound):
                yield Must(f"at least {bound}" if bound else "not negative", partial(operator.le, bound))
            case Gt(gt=bound):
                yield Must(f"above {bound}" if bound else "positive", partial(operator.lt, bound))
            case Le(le=bound):
                yield Must(f"at most {bound}", partial(operator.ge, bound))
            case Lt(lt=bound):
                yield Must("finite" if bound == math.inf else f"below {bound}", partial(operator.gt, bound))
            case MinLen(min_length=least):
                yield Must("not empty" if least == 1 else f"at least {least} long", partial(_lasts, least, math.inf))
            case MaxLen(max_length=most):
                yield Must(f"at most {most} long", partial(_lasts, 0, most))


def _lasts(least: float, most: float, value: Any) -> bool:
    return least <= len(value) <= most


def _inside(place: object, value: Any, hint: Any) -> Any:
    try:
        return _fitted(value, hint)
    except _MisfitError as misfit:
        raise _MisfitError(misfit.value, misfit.hint, (place, *misfit.path)) from None


def _first_fitted(value: Any, hint: Any, choices: tuple[Any, ...]) -> Any:
    deeper = []
    for choice in choices:
        try:
            return _fitted(value, choice)
        except _MisfitError as misfit:
            deeper += [misfit] if misfit.path else []
    raise deeper[0] if deeper else _MisfitError(value, hint)


def in_words(hint: Any) -> str:
    """Return what values an annotation allows.

    >>> in_words(int | None), in_words(tuple[str, ...]), in_words(Literal["sum", "mean"])
    ('a whole number or None (null)', 'a list of text', "'sum' or 'mean'")
    >>> in_words(Positive), in_words(Count | None)
    ('a number, positive and finite', 'a whole number, at least 1, or None (null)')
    """
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        catalogue, kind = catalogue_of(hint), in_words(choices[0])
        if catalogue is not None:
            return f"{article(catalogue.noun)} with its own settings"
        bounds = " and ".join(bound.words for bound in _bounds(hint))
        return bounds if choices[0] is str and bounds else f"{kind}, {bounds}" if bounds else kind
    if origin in (Union, types.UnionType):
        *first, last = map(in_words, choices)
        bounded = "," if any(", " in words for words in first) else ""
        return f"{', '.join(first)}{bounded} or {last}"
    if origin is Literal:
        return " or ".join(map(repr, choices))
    if origin is tuple:
        return f"a list of {in_words(choices[0]).removeprefix('a ')}"
    if origin is not None:
        return f"a mapping of {' to '.join(in_words(choice) for choice in choices)}"
    return WORDS.get(hint) or ("anything" if hint is Any else article(getattr(hint, "__name__", str(hint))))


def article(noun: str) -> str:
    """Return a noun with its article.

    >>> article("optimizer"), article("loss")
    ('an optimizer', 'a loss')
    """
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"
