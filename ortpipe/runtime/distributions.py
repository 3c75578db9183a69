"""One runtime only: two distributions of onnxruntime overwrite each other's files."""

from contextlib import suppress
from importlib import metadata

from ortpipe.errors import ModelError

DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-training",
    "onnxruntime-training-cpu",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
)


def check_one_runtime() -> None:
    """Refuse an environment with more than one distribution of onnxruntime."""
    installed = []
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            metadata.version(name)
            installed.append(name)
    if len(installed) > 1:
        raise ModelError(
            "Only one distribution of onnxruntime may be installed: they overwrite each other's files.",
            got=" and ".join(installed),
            fix=f"pip uninstall -y {' '.join(installed)}, then pip install {installed[-1]}",
        )
