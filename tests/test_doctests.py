"""The examples in docstrings. pytest's own search would import every module in every worker."""

from __future__ import annotations

import doctest
import importlib

import pytest
from command import ROOT

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "ortpipe").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"needs an extra: {error}")
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed
