"""The modules that commands and training import, each in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("words", ["--help", "plan", "plan data=csv data.source.path=rows.csv convert=mlp"])
def test_a_command_that_computes_nothing_imports_no_package_that_only_computing_needs(words: str) -> None:
    heavy = "mlflow sklearn skl2onnx matplotlib pydantic pandas scipy sqlalchemy torch jax"
    heavy += " onnx onnx_ir onnxruntime numpy pyarrow" if words == "--help" else ""
    code = (
        "import sys, ortpipe.app.cli as cli\n"
        f"sys.argv[1:] = {words.split()}\n"
        "try: cli.main()\n"
        "finally: print('heavy:', [m for m in HEAVY.split() if m in sys.modules])"
    ).replace("HEAVY", repr(heavy))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "heavy: []" in done.stdout, done.stdout + done.stderr


def test_training_an_onnx_file_imports_neither_scikit_learn_nor_matplotlib() -> None:
    code = (
        "import sys, numpy as np\n"
        "from ortpipe import AddLossConfig, Data, LOSSES, Rows, SplitConfig, add_loss, convert, derive, split, train\n"
        "X = np.random.default_rng(0).random((64, 8, 8), np.float32)\n"
        "data = split(Rows({'X': X.reshape(64, 64)}, np.arange(64) % 10), SplitConfig(test=0.25))\n"
        "loss = add_loss(convert('conf/models/digits.onnx', data=data), AddLossConfig(LOSSES['cross_entropy']()))\n"
        "train(derive(loss), data=data)\n"
        "print([m for m in ('sklearn', 'scipy', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_whole_run_looks_for_no_package_of_an_extra(tmp_path: Path) -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [line for name in wanted if name not in ("test", "dev") for line in wanted[name]]
    names = {name for line in lines for name in re.findall(r"^[\w-]+", line)}
    extras = sorted(name.replace("hydra-", "hydra_plugins.hydra-").replace("-", "_") for name in names)
    assert {"torch", "tokenizers", "optuna", "hydra_plugins.hydra_joblib_launcher"} <= set(extras)
    code = (
        "import sys\n"
        f"asked, extras = [], {[*extras, 'ray', 'submitit']}\n"
        "class Watch:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        asked.extend([name] if name in extras else [])\n"
        "sys.meta_path.insert(0, Watch)  # it finds nothing, and writes down who is looked for\n"
        "from ortpipe.app.cli import main\n"
        "sys.argv = ['ortpipe', 'experiment=linear_regression', 'train.epochs=1', 'recorder=none']\n"
        "main()\n"
        "print(asked)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
