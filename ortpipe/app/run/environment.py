"""What a run was made with."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from ortpipe.pipeline.digest import versions

PACKAGES = (
    "ortpipe",
    "onnxruntime-training",
    "onnxruntime",
    "onnx",
    "onnx-ir",
    "numpy",
    "scikit-learn",
    "scipy",
    "hydra-core",
    "omegaconf",
    "mlflow",
)


def environment(seed: int, command: str) -> dict[str, str]:
    """Return versions, platform, seed, command, working folder, and the commit (`-dirty` with uncommitted changes)."""
    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }
    facts |= dict.fromkeys(PACKAGES, "not installed") | versions(PACKAGES)
    facts["git_commit"] = _commit(Path.cwd())
    facts["seed"] = str(seed)
    facts["folder"] = str(Path.cwd())
    facts["command"] = command
    return facts


def _commit(folder: Path) -> str:
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return said.stdout.strip() or "not a git checkout"
