"""A table of functions by operator; a function is imported with its family's file when it is first looked up."""

import importlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any


class OperatorTable(MutableMapping[str, Callable[..., Any]]):
    """Functions by operator.

    Args:
        families: file of the package → its operators, separated by spaces.
        package: the package that contains the files.
        attribute: the table of functions by operator in each file.
    """

    def __init__(self, families: Mapping[str, str], package: str, attribute: str) -> None:
        self.families = {family: tuple(operators.split()) for family, operators in families.items()}
        self._functions: dict[str, Callable[..., Any] | None] = {
            operator: None for operators in self.families.values() for operator in operators
        }
        self._package, self._attribute = package, attribute

    def __getitem__(self, operator: str) -> Callable[..., Any]:
        function = self._functions[operator]
        if function is None:
            [family] = (name for name, operators in self.families.items() if operator in operators)
            functions = getattr(importlib.import_module(f"{self._package}.{family}"), self._attribute)
            function = self._functions[operator] = functions[operator]
        return function

    def __setitem__(self, operator: str, function: Callable[..., Any]) -> None:
        self._functions[operator] = function

    def __delitem__(self, operator: str) -> None:
        del self._functions[operator]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __contains__(self, operator: object) -> bool:
        return operator in self._functions

    def __len__(self) -> int:
        return len(self._functions)
