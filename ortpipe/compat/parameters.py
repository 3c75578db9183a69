"""Shared by onnxcustom's small classes: scikit-learn's parameters, and choice by name."""

import inspect
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from sklearn.base import BaseEstimator

from ortpipe import OrtpipeError
from ortpipe.errors import ConfigError, nearest

LONGEST = 50  # the largest number of characters of an argument in a repr


class Parameters(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no type hints
    """Base of classes whose constructor checks each argument and stores it under the argument's name."""

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return the constructor's arguments by name; `deep` adds the arguments' own parameters, as `a__b`."""
        return super().get_params(deep)

    def set_params(self, **params: Any) -> Self:
        """Change arguments, with the constructor's checks; the fitted state stays.

        Raises:
            ConfigError: no argument has that name.
        """
        names = self.get_params(deep=True)
        if unknown := [name for name in params if name not in names]:
            rule = f"{type(self).__name__} has no such parameter."
            raise ConfigError(rule, got=unknown[0], fix=nearest(unknown[0], self.get_params()))
        direct = {name: value for name, value in params.items() if "__" not in name}
        type(self).__init__(self, **{**self.get_params(), **direct})
        super().set_params(**{name: value for name, value in params.items() if "__" in name})
        return self

    def __repr__(self, N_CHAR_MAX: int = LONGEST) -> str:
        values = self.get_params()
        names = inspect.signature(type(self)).parameters  # in the constructor's order
        shown = [f"{name}={_short(values[name], N_CHAR_MAX)}" for name in names if name in values]
        return f"{type(self).__name__}({', '.join(shown)})"


def by_name(base: type, members: Mapping[type, Sequence[str]], choice: Any, **params: Any) -> Any:
    """Return `choice` if it is an instance of the base class, else an instance of the member of that name.

    Raises:
        ConfigError: no member has that name.
    """
    if isinstance(choice, base):
        return choice
    names = {alias: member for member, aliases in members.items() for alias in (member.__name__, *aliases)}
    if not isinstance(choice, str) or choice not in names:
        rule = f"A {base.__name__} must be given as an object, or by its name."
        raise ConfigError(rule, got=repr(choice), fix=nearest(str(choice), names))
    return names[choice](**params)


def check_known(name: Any, choices: Collection[str], rule: str, error: type[OrtpipeError] = ConfigError) -> None:
    """Raise an error with this rule unless the name is one of the choices."""
    if name not in choices:
        raise error(rule, got=repr(name), fix=nearest(str(name), choices))


def warn_unused(owner: object, **defaults: object) -> None:
    """Warn of arguments that are ignored and differ from these defaults."""
    if unused := [name for name, default in defaults.items() if getattr(owner, name) != default]:
        text = f"{type(owner).__name__} ignores {', '.join(unused)}, accepted only so that older scripts run."
        warnings.warn(text, stacklevel=3)


def _short(value: Any, longest: int) -> str:
    text = repr(value)
    is_short = isinstance(value, Parameters) or (len(text) <= longest and "\n" not in text)
    return text if is_short else repr(text[:10].replace("\n", " ") + "...")
