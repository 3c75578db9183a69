"""A package is hidden while another is imported, from one thread; scikit-learn does without the one that is."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ortpipe.hidden import hidden

ROOT = Path(__file__).resolve().parents[1]


def test_a_module_is_hidden_in_its_block_from_the_thread_of_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("taken_along", "other"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    before = [*sys.meta_path]
    with hidden("taken_along"):
        with pytest.raises(ModuleNotFoundError, match="taken_along"):
            importlib.import_module("taken_along")
        with ThreadPoolExecutor(1) as another:
            assert another.submit(importlib.util.find_spec, "taken_along").result() is not None
        assert importlib.util.find_spec("other") is not None
    assert sys.meta_path == before
    assert importlib.util.find_spec("taken_along") is not None


TAKEN_ALONG = {  # a package → what ortpipe does that would import it, and what that prints
    "torch": ("import ortpipe.runtime.session; print('runtime')", "runtime"),
    "pandas": (
        "from ortpipe.stages.convert.sources.sklearn_estimator import SklearnEstimator; "
        "print(SklearnEstimator('sklearn.linear_model.LinearRegression')._make())",
        "LinearRegression()",
    ),
}


@pytest.mark.parametrize("package", TAKEN_ALONG)
@pytest.mark.parametrize("before", [False, True])
def test_a_package_is_not_taken_along_and_can_be_imported_before_and_after(
    before: bool, package: str, tmp_path: Path
) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(f"print('{package} is imported')\n")
    does, printed = TAKEN_ALONG[package]
    lines = [*([f"import {package}"] if before else []), does, f"import {package}", f"print({package}.__name__)"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, env=environment)
    imported = f"{package} is imported"
    expected = [imported, printed, package] if before else [printed, imported, package]
    assert done.stdout.splitlines() == expected, done.stderr


def test_scikit_learn_uses_pandas_nowhere_where_it_is_hidden() -> None:
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    tree = ast.parse((Path(spec.submodule_search_locations[0]) / "utils" / "fixes.py").read_text(encoding="utf-8"))
    takes_it = [
        name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and "pd" in [argument.arg for argument in function.args.args]
        for name in ast.walk(function)
    ]
    reads = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "pd" and isinstance(n.ctx, ast.Load)]
    assert [name.lineno for name in reads if name not in takes_it] == []
