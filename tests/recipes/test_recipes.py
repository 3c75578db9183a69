"""Each recipe runs in its short form, and its trained file works in the package that it comes from."""

from __future__ import annotations

import importlib
import json
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from command import ROOT, shell

RECIPES = ROOT / "docs" / "recipes"
sys.path.insert(0, str(RECIPES))
recipe = importlib.import_module("recipe")
pytestmark = pytest.mark.usefixtures("own_environment")


@pytest.mark.parametrize("name", recipe.names())
def test_a_recipe_trains_a_file_that_works_in_its_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(name)
    for needed in module.NEEDS:
        pytest.importorskip(needed)
    monkeypatch.chdir(tmp_path)
    for line in recipe.commands(name, short=True):
        program, script, *words = line.split()
        if program == "python":
            assert script == f"docs/recipes/{name}.py"
            with warnings.catch_warnings(action="ignore"):  # of other packages
                recipe.main(module, words)
        else:
            done = shell(line, tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / recipe.OUTPUTS / name
    results = json.loads((folder / "dropin.json").read_text())
    assert "trained.onnx" in results
    assert all(np.isfinite(result) for result in results.values())
    metrics = json.loads((folder / "run" / "run.json").read_text())["metrics"]
    assert {"before", "trained"} <= {*metrics[module.METRIC]}


def test_the_graph_of_noise_suppression_computes_the_sounds_of_its_package(tmp_path: Path) -> None:
    module = importlib.import_module("noise_suppression")
    for needed in module.NEEDS:
        pytest.importorskip(needed)
    sounds, file = np.random.default_rng(0).uniform(-0.1, 0.1, (2, 4096)).astype(np.float32), tmp_path / "before.onnx"
    file.write_bytes(module.network(4096).SerializeToString())
    expected = [module.enhancer(file)(sound) for sound in sounds]
    [found] = onnxruntime.InferenceSession(file.read_bytes()).run(None, {"X": sounds})
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", recipe.names())
def test_a_recipe_has_a_script_a_config_and_a_picture_that_its_page_shows(name: str) -> None:
    assert (RECIPES / f"{name}.py").exists()
    assert (ROOT / "conf" / "experiment" / "recipes" / f"{name}.yaml").exists()
    assert (ROOT / "docs" / "static" / "recipes" / f"{name}.png").exists()
    assert f"(../static/recipes/{name}.png)" in (RECIPES / f"{name}.md").read_text(encoding="utf-8")


def test_the_table_has_a_row_for_each_recipe() -> None:
    table = (RECIPES / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[[^\]]+\]\((\w+)\.md\)", table, re.M) == sorted(recipe.names(), key=_title)


def _title(name: str) -> str:
    return (RECIPES / f"{name}.md").read_text(encoding="utf-8").partition("\n")[0]


def test_the_pages_of_recipes_have_no_python_that_is_not_run() -> None:
    assert [name for name in recipe.names() if "```python" in (RECIPES / f"{name}.md").read_text()] == []
