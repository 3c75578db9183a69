"""The pages of docs/ build without a warning, and their notebooks run; these are kept without outputs.

Notebooks run in this session's warm process; with `ORTPIPE_TESTS=all` they also run as the build of the pages does it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from command import ROOT, run
from sample import ALL

DOCS = ROOT / "docs"
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))


def test_the_pages_build_and_show_what_their_notebooks_draw(tmp_path: Path) -> None:
    site = tmp_path / "site"
    settings = [] if ALL else ["-D", "nb_execution_mode=off"]
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", *settings, "docs", str(site)]
    done = run(command, cwd=ROOT, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = re.findall(r"\((_sources/[^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert [source for source in listed if not (site / source).exists()] == []
    assert len(listed) == len([*DOCS.rglob("*.md"), *NOTEBOOKS]) - 1  # all but index.md
    assert "# The flow" in (site / "llms-full.txt").read_text(encoding="utf-8")
    for notebook in NOTEBOOKS if ALL else ():
        if notebook.stem.startswith("pytorch") and importlib.util.find_spec("torch") is None:
            continue
        drawn = [cell for cell in _code(notebook) if "plot" in "".join(cell["source"])]
        page = (site / notebook.relative_to(DOCS)).with_suffix(".html").read_text(encoding="utf-8")
        assert len(drawn) == len(re.findall(r'\.png" src="[./]*_images/', page))


CELLS = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.display_formatter.active_types = shell.display_formatter.format_types  # also HTML and pictures
for source in json.loads(sys.argv[1]):
    shell.run_cell(source).raise_error()
"""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    if notebook.stem.startswith("pytorch") and importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch")
    cells = json.dumps(["".join(cell["source"]) for cell in _code(notebook)])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path), "MPLBACKEND": "agg"}
    done = run([sys.executable, "-c", CELLS, cells], cwd=tmp_path, env=environment, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_kept_without_outputs(notebook: Path) -> None:
    assert [cell["source"] for cell in _code(notebook) if cell["outputs"] or cell["execution_count"]] == []


def _code(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]
