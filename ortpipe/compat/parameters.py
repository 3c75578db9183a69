"""Constructor arguments as scikit-learn wants them: readable, settable, cloned, shown."""

from __future__ import annotations

import inspect
from typing import Any, Self

from ortpipe.errors import ConfigError, nearest

LONGEST = 50  # characters of an argument that a repr shows


class Parameters:
    """Base of a class whose constructor stores each argument under its own name."""

    @classmethod
    def _names(cls) -> list[str]:
        if cls.__init__ is object.__init__:
            return []
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return the constructor's arguments by name; `deep` adds those of arguments that have some, as `a__b`."""
        found = {name: getattr(self, name) for name in self._names()}
        inner = {k: v for k, v in found.items() if deep and isinstance(v, Parameters)}
        return found | {f"{k}__{name}": value for k, v in inner.items() for name, value in v.get_params(deep).items()}

    def set_params(self, **params: Any) -> Self:
        """Change arguments, checked as the constructor does; what was fitted stays.

        Raises:
            ConfigError: no argument has that name.
        """
        if unknown := [name for name in params if name not in self.get_params(deep=True)]:
            raise ConfigError(
                f"{type(self).__name__} has no such parameter.",
                got=unknown[0],
                fix=nearest(unknown[0], self._names()),
            )
        own = {k: v for k, v in params.items() if "__" not in k}
        self.__init__(**{**self.get_params(), **own})  # type: ignore[misc]
        for path, value in params.items():
            name, _, rest = path.partition("__")
            if rest:
                getattr(self, name).set_params(**{rest: value})
        return self

    def __repr__(self) -> str:
        shown = [f"{name}={_short(value)}" for name, value in self.get_params().items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn's searches ask an estimator: neither classifier nor regressor by its own account."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=True))


def _short(value: Any) -> str:
    text = repr(value)
    whole = isinstance(value, Parameters) or (len(text) <= LONGEST and "\n" not in text)
    return text if whole else repr(text[:10].replace("\n", " ") + "...")
