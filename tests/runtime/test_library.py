"""onnxruntime is imported without its training package, and so without torch, which can be imported afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("before", [False, True])
def test_the_runtime_does_not_import_torch_which_can_be_imported_before_and_after(before: bool, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("print('torch is imported')\n")
    lines = ["import torch"] if before else []
    lines += ["import sys, ortpipe.runtime.session", "print('runtime')"]
    lines += ["print('onnxruntime.training' in sys.modules)", "import torch"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == (
        ["torch is imported", "runtime", "False"] if before else ["runtime", "False", "torch is imported"]
    ), done.stderr
