"""The tables of rules and expansions list the operators of each file."""

import importlib

import pytest

from ortpipe.autodiff.table import EXPANSIONS, RULES, OperatorTable


@pytest.mark.parametrize(("table", "package"), [(RULES, "rules"), (EXPANSIONS, "expansions")])
def test_a_table_lists_the_operators_of_each_file(table: OperatorTable, package: str) -> None:
    for family, operators in table.families.items():
        functions = getattr(importlib.import_module(f"ortpipe.autodiff.{package}.{family}"), package.upper())
        assert {*operators} == {*functions}, "list them in ortpipe/autodiff/table.py"
