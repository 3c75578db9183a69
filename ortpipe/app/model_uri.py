"""URIs of MLflow models, which a config's paths may be, and the names of the files in which MLflow stores models."""

import re

URI = re.compile(r"(?:models|runs):/(?P<name>[^/@]+)(?:@(?P<alias>[^/]+)|/(?P<rest>.+))?")
FILES = {  # flavour: the key of its file in MLmodel, and that file's possible names
    "onnx": ("data", ("model.onnx",)),
    "sklearn": ("pickled_model", ("model.skops", "model.pkl")),
    "pytorch": ("model_data", ("model.pt2",)),
}
NAMES = tuple(name for _, names in FILES.values() for name in names)


def is_uri(path: object) -> bool:
    """Return whether a path is the URI of a model in MLflow.

    >>> is_uri("models:/churn@champion"), is_uri("runs:/0123/model"), is_uri("models/churn.onnx")
    (True, True, False)
    """
    return isinstance(path, str) and URI.fullmatch(path) is not None
