"""onnxruntime's import leaves torch alone; a package on the path that looks like torch says when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("first", ["", "import torch"])
def test_importing_the_runtime_does_not_import_torch_which_can_be_imported_before_and_after(
    first: str, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("print('torch is imported')\n")
    code = f"{first}\nimport ortpipe.runtime.session\nprint('runtime')\nimport torch\nprint(torch.__name__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    expected = ["runtime", "torch is imported", "torch"] if not first else ["torch is imported", "runtime", "torch"]
    assert done.stdout.splitlines() == expected, done.stderr
