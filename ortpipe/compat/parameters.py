"""What the small classes of onnxcustom share: scikit-learn's parameters, and choice by name."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

from sklearn.base import BaseEstimator

from ortpipe.errors import ConfigError, nearest

LONGEST = 50  # characters of an argument that a repr shows


class Parameters(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no type hints
    """Base of a class whose constructor checks each argument and stores it under its own name."""

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return the constructor's arguments by name; `deep` adds those of arguments that have some, as `a__b`."""
        return super().get_params(deep)

    def set_params(self, **params: Any) -> Self:
        """Change arguments, checked as the constructor does; what was fitted stays.

        Raises:
            ConfigError: no argument has that name.
        """
        names = self.get_params(deep=True)
        if unknown := [name for name in params if name not in names]:
            rule = f"{type(self).__name__} has no such parameter."
            raise ConfigError(rule, got=unknown[0], fix=nearest(unknown[0], self.get_params()))
        own = {name: value for name, value in params.items() if "__" not in name}
        type(self).__init__(self, **{**self.get_params(), **own})
        super().set_params(**{name: value for name, value in params.items() if "__" in name})
        return self

    def __repr__(self, N_CHAR_MAX: int = LONGEST) -> str:
        given = self.get_params()
        names = inspect.signature(type(self)).parameters  # in their own order
        shown = [f"{name}={_short(given[name], N_CHAR_MAX)}" for name in names if name in given]
        return f"{type(self).__name__}({', '.join(shown)})"


def by_name(base: type, members: Mapping[type, Sequence[str]], given: Any, **params: Any) -> Any:
    """Return what is an object of the base class already, or the member of a name, made with these parameters.

    Raises:
        ConfigError: no member has that name.
    """
    if isinstance(given, base):
        return given
    names = {alias: member for member, aliases in members.items() for alias in (member.__name__, *aliases)}
    if not isinstance(given, str) or given not in names:
        rule = f"A {base.__name__} is given as an object, or by its name."
        raise ConfigError(rule, got=repr(given), fix=nearest(str(given), names))
    return names[given](**params)


def warn_unused(owner: object, **defaults: object) -> None:
    """Warn of arguments, kept under their names, that do nothing and have other values than these."""
    if given := [name for name, default in defaults.items() if getattr(owner, name) != default]:
        text = f"{type(owner).__name__} does not use {', '.join(given)}: kept so that older scripts run."
        warnings.warn(text, stacklevel=3)


def _short(value: Any, longest: int) -> str:
    text = repr(value)
    whole = isinstance(value, Parameters) or (len(text) <= longest and "\n" not in text)
    return text if whole else repr(text[:10].replace("\n", " ") + "...")
