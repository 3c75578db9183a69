"""The estimator that convert fitted, in its line of the lineage: so that trained weights can go back into it."""

import base64
import io
import pickle
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ortpipe.errors import ModelError

KEY = "fitted"  # in convert's record, which is no part of an artifact's digest


def record_of(estimator: Any) -> dict[str, str]:
    """Return the part of convert's record that holds a fitted estimator; nothing of one that cannot be pickled.

    A .skops file would do too, but skops imports all of scikit-learn and pandas, which takes longer than most runs.
    """
    try:
        return {KEY: base64.b85encode(zlib.compress(pickle.dumps(estimator))).decode()}
    except (pickle.PicklingError, AttributeError, TypeError):  # a lambda among its parameters, say
        return {}


def kept_estimator(record: Mapping[str, Any], *, trust: bool) -> Any:
    """Return the estimator in a convert's record; without trust it is made of scikit-learn's and NumPy's classes alone.

    Raises:
        ModelError: there is none, or it needs trust.
    """
    if KEY not in record:
        fix = "Name the estimator's file, or give the fitted estimator."
        raise ModelError("The record holds the estimator that convert fitted.", got="none", fix=fix)
    file = io.BytesIO(zlib.decompress(base64.b85decode(record[KEY])))
    return pickle.load(file) if trust else _Plain(file).load()


class _Plain(pickle.Unpickler):
    """Makes estimators and arrays, and imports and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in PLAIN or (module == "numpy" and np.generic in getattr(vars(np).get(name), "__mro__", ())):
            return super().find_class(module, name)
        if module.partition(".")[0] == "sklearn" and "." not in name:
            found = super().find_class(module, name)
            above = [f"{one.__module__}.{one.__qualname__}" for one in getattr(found, "__mro__", ())]
            if "sklearn.base.BaseEstimator" in above or (above and module in PARTS):
                return found
            if name.startswith("__pyx_unpickle_") and module in PARTS:
                return found
        raise ModelError(
            "What convert fitted is opened on your word only where it is more than scikit-learn's estimators.",
            got=f"{module}.{name}",
            fix="Add --trust if you know who wrote the record: opening it may run code.",
        )


PARTS = (
    "sklearn._loss.loss",
    "sklearn._loss._loss",
    "sklearn._loss.link",
    "sklearn.neural_network._stochastic_optimizers",
)
PLAIN = {
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.random._pickle", "__randomstate_ctor"),
    ("numpy.random._pickle", "__bit_generator_ctor"),
    ("numpy.random._pickle", "__generator_ctor"),
    ("numpy.random.bit_generator", "SeedSequence"),
    ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"),
    ("numpy.random._mt19937", "MT19937"),
    ("numpy.random._pcg64", "PCG64"),
    ("scipy.sparse._csr", "csr_matrix"),
    ("scipy.sparse._csr", "csr_array"),
    ("builtins", "slice"),
    ("builtins", "set"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
}
