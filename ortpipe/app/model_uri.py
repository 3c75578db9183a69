"""Names of models in MLflow, as paths of a config say them, and of the files in which MLflow keeps them."""

import re

URI = re.compile(r"(?:models|runs):/(?P<name>[^/@]+)(?:@(?P<alias>[^/]+)|/(?P<rest>.+))?")
FILES = {  # of a flavour, the key of its file in MLmodel, and the names that such a file has
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
