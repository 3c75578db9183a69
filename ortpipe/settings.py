"""Settings as dataclasses whose annotations hold each field's type and bounds, and catalogues of members."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import os
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, ParamSpec, Self, TypeVar, Union

from annotated_types import Ge, Gt, Le, Lt

from ortpipe import own
from ortpipe.doors import later
from ortpipe.errors import UnknownNameError, nearest

if typing.TYPE_CHECKING:
    from ortpipe.own_code import load
    from ortpipe.settings_errors import misfit_error
else:
    later(__name__)

Member = TypeVar("Member")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

Count = Annotated[int, Ge(1), Le(2**31 - 1)]  # runtimes count with 32 bits
Times = Annotated[int, Ge(0), Le(2**31 - 1)]
Seed = Annotated[int, Ge(0), Le(2**63 - 1)]
Positive = Annotated[float, Gt(0), Lt(math.inf)]
NotNegative = Annotated[float, Ge(0), Lt(math.inf)]
Share = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True)
class Must:
    """A bound that annotated-types lacks: `words` follow "must be"; `names` are the valid strings, if there are few."""

    words: str
    holds: Callable[[Any], object]
    names: tuple[str, ...] = ()


def one_of(noun: str, names: Iterable[str], *extras: str) -> Must:
    """Return the bound for strings that name a member of `names`, or are one of `extras`."""
    valid = (*extras, *names)
    words = " or ".join([f"the name of {article(noun)}", *map(repr, extras)])
    catalogue = names if isinstance(names, Catalogue) else None
    # a user's own member is imported here, so that its code is hashed wherever its name is used
    return Must(words, lambda name: name in valid or (catalogue and name in catalogue and catalogue[name]), valid)


@dataclass(frozen=True)
class Fix:
    """The fix for a wrong value, if the field's default is no answer; `{key}` and `{at}` as in errors."""

    text: str


Text = Annotated[str, Must("text that is not empty", bool)]
ARTIFACT = Fix("Give the artifact that the stage before it or load_artifact returns.")


class Catalogue(Mapping[str, Member]):
    """Members by name; a member written as "module:Class" is imported on first access, not when names are listed.

    A catalogue that is open to users' own members also accepts import paths as names, which it does not list.

    >>> catalogue = Catalogue("loss", {"l1": "operator:abs"})
    >>> list(catalogue), catalogue["l1"](-2)
    (['l1'], 2)
    >>> catalogue["l2"]
    Traceback (most recent call last):
    ...
    ortpipe.errors.UnknownNameError: 'l2' is no loss.
      fix: Did you mean 'l1'? Valid: l1.
    """

    def __init__(self, noun: str, members: Mapping[str, str | Member], *, open_to_own: bool = False) -> None:
        self.noun, self._members, self._open = noun, members, open_to_own

    def __getitem__(self, name: str) -> Member:
        if name in self and name not in self._members:
            return self.of_own(load(name))
        if name not in self:
            raise UnknownNameError(f"{name!r} is no {self.noun}.", fix=nearest(str(name), self))
        member = self._members[name]
        return pkgutil.resolve_name(member) if isinstance(member, str) else member

    def __contains__(self, name: object) -> bool:
        return name in self._members or (self._open and own.is_path(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def of_own(self, part: Any) -> Member:
        """Return a user's own class or function as a member."""
        return part

    def name_of(self, member: Any) -> str:
        """Return the name of a member, or the import path of a user's own one."""
        path = f"{getattr(member, '__module__', '')}:{getattr(member, '__qualname__', '')}"  # imports no other member
        names = (name for name, candidate in self._members.items() if candidate is member or candidate == path)
        return next(names, None) or own.path_of(member)

    def default(self, name: str, **settings: Any) -> Any:
        """Return the dataclass field whose default is this member."""
        return dataclasses.field(default_factory=lambda: self[name](**settings))  # type: ignore[operator]


class Config:
    """Base of the dataclasses of settings: each value must have its annotation's type and be within its bounds.

    Bounds (Ge, Gt, Le, Lt or Must) are in the type: `rows: Annotated[int, Ge(1)]`, `loss: Annotated[Loss, LOSSES]`.
    Integers are accepted as floats, lists as tuples, NumPy scalars as Python numbers, and paths as strings.
    `__post_init__` is for rules between fields, which are already checked when it runs.
    """

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Reject a name that is not a field, and suggest the nearest one."""
        names = [entry.name for entry in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in named:
            if name not in names:
                raise UnknownNameError(f"{cls.__name__} has no setting {name!r}.", fix=nearest(name, names))
        return super().__new__(cls)

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Let a subclass's `__post_init__` read checked values, without a call of this class's."""
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
        for entry in dataclasses.fields(cls):
            value = getattr(self, entry.name)
            if value is None and entry.default is None and str(entry.type).endswith("| None"):
                continue  # so that the class of a group of settings is imported only if they are set
            in_type = checked(value, hint_of(cls, entry.name), entry.name, entry.default)
            if in_type is not value:
                object.__setattr__(self, entry.name, in_type)


@functools.cache
def hint_of(cls: type, name: str) -> Any:
    """Return the annotation of a dataclass's field, evaluated alone: others may name classes not imported yet."""
    owner = next(base for base in cls.__mro__ if name in vars(base).get("__annotations__", {}))
    field = types.SimpleNamespace(__annotations__={name: owner.__annotations__[name]})
    names = getattr(sys.modules.get(owner.__module__), "__dict__", {})
    return typing.get_type_hints(field, dict(vars(owner)), names, include_extras=True)[name]


@functools.cache
def fields_of(cls: type) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """Return each field of a dataclass by name, with its annotation."""
    return {entry.name: (entry, hint_of(cls, entry.name)) for entry in dataclasses.fields(cls)}


def catalogue_of(hint: Any) -> Catalogue[Any] | None:
    """Return the catalogue in an annotation `Annotated[…, CATALOGUE]`."""
    return next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Catalogue)), None)


def checked(value: Any, hint: Any, key: str, default: Any = dataclasses.MISSING) -> Any:
    """Return a field's value converted to its annotation's type.

    Raises:
        ConfigError: the value has another type, or is out of bounds; it names `key`, or the part that is wrong.
    """
    try:
        return converted(value, hint)
    except MisfitError as misfit:
        raise misfit_error(misfit, key, default) from None


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


class MisfitError(Exception):
    """A value, or the part of it at a path, that does not fit its annotation."""

    def __init__(self, value: Any, hint: Any, path: tuple[object, ...]) -> None:
        self.value, self.hint, self.path = value, hint, path


def converted(value: Any, hint: Any, *path: object) -> Any:
    """Return the value at a path in a setting, converted to its annotation's type and within its bounds."""
    if hint is Any:
        return value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    misfit = MisfitError(value, hint, path)
    if typing.is_typeddict(hint):
        if not isinstance(value, Mapping):
            raise misfit
        hints = typing.get_type_hints(hint)
        named = {name: value.get(name) for name in hints if name in value or name in hint.__required_keys__}
        return {**value, **{name: converted(item, hints[name], *path, name) for name, item in named.items()}}
    if origin is Annotated:
        return _within(value, hint, path)
    if origin in (Union, types.UnionType):
        deeper = []
        for part in parts:
            try:
                return converted(value, part, *path)
            except MisfitError as inner:
                deeper += [inner] if inner.path != path else []
        raise deeper[0] if deeper else misfit
    if origin is Literal:
        fits = any(value is choice or (type(value) is type(choice) and value == choice) for choice in parts)
    elif origin is tuple:
        if not isinstance(value, tuple | list):
            raise misfit
        kinds = parts[:1] * len(value) if parts[1:] == (...,) else parts
        if len(kinds) != len(value):
            raise misfit
        choices = typing.get_args(parts[0]) or parts[:1]
        if parts[1:] == (...,) and {int, str}.issuperset(choices) and set(map(type, value)).issubset(choices):
            return tuple(value)  # of many labels, without a call for each
        return tuple(converted(item, kind, *path, i) for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise misfit
        # the command line cannot quote keys, and exporters name outputs 387
        named = {str(k) if parts[0] is str and type(k) is int else k: item for k, item in value.items()}
        return {converted(k, parts[0], *path, k): converted(item, parts[1], *path, k) for k, item in named.items()}
    elif hint in (int, float):
        is_integer = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64
        fits = is_integer or (isinstance(value, float) and (hint is float or value.is_integer()))
        value = hint(value) if fits else value
    elif hint is str:
        fits = isinstance(value, str | os.PathLike) and "\0" not in os.fspath(value)  # which no path may hold
        value = os.fspath(value) if fits else value
    else:
        by_shape = getattr(hint, "_is_protocol", False)  # a user's own loss or source need not be a subclass
        fits = callable(value) if by_shape else isinstance(value, origin or hint)
    if not fits:
        raise misfit
    return value


def _within(value: Any, hint: Any, path: tuple[object, ...]) -> Any:
    """Return a value of an `Annotated` type, converted and within every bound."""
    misfit = MisfitError(value, hint, path)
    if catalogue_of(hint) is not None and isinstance(value, str | bytes | int | float | Mapping | type | None):
        raise misfit
    try:
        value = converted(value, typing.get_args(hint)[0], *path)
    except MisfitError as inner:
        raise inner if inner.path != path else misfit from None
    if all(bound.holds(value) for bound in bounds_of(hint)):
        return value
    raise misfit


def bounds_of(hint: Any) -> Iterator[Must]:
    """Yield an annotation's bounds; nan violates all of them.

    >>> [bound.words for bound in bounds_of(Annotated[int, Ge(0), Lt(9)])]
    ['not negative', 'below 9']
    """
    for part in hint.__metadata__:
        match part:
            case Must():
                yield part
            case Ge(ge=bound):
                yield Must(f"at least {bound}" if bound else "not negative", partial(operator.le, bound))
            case Gt(gt=bound):
                yield Must(f"above {bound}" if bound else "positive", partial(operator.lt, bound))
            case Le(le=bound):
                yield Must(f"at most {bound}", partial(operator.ge, bound))
            case Lt(lt=bound):
                yield Must("finite" if bound == math.inf else f"below {bound}", partial(operator.gt, bound))


def article(noun: str) -> str:
    """Return a noun with its article.

    >>> article("optimizer"), article("loss")
    ('an optimizer', 'a loss')
    """
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"
