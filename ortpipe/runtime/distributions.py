"""Check that only one distribution of onnxruntime is installed; two would overwrite each other's files."""

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
    """Raise if more than one distribution of onnxruntime is installed."""
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
