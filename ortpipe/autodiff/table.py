"""A table of functions by operator; the first look-up of a function imports its family's file."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class OperatorTable(Mapping[str, Callable[..., Any]]):
    """Functions by operator.

    Args:
        families: file of the package → its operators, separated by spaces.
        package: the package that contains the files.
        attribute: the table of functions by operator in each file.
    """

    def __init__(self, families: Mapping[str, str], package: str, attribute: str) -> None:
        self.families = {family: tuple(operators.split()) for family, operators in families.items()}
        self._family = {operator: family for family, operators in self.families.items() for operator in operators}
        self._package, self._attribute = package, attribute

    def __getitem__(self, operator: str) -> Callable[..., Any]:
        module = importlib.import_module(f"{self._package}.{self._family[operator]}")
        return getattr(module, self._attribute)[operator]

    def __contains__(self, operator: object) -> bool:
        return operator in self._family  # imports nothing

    def __iter__(self) -> Iterator[str]:
        return iter(self._family)

    def __len__(self) -> int:
        return len(self._family)
