"""The estimator that convert fitted, in its line of the lineage: so that trained weights can go back into it."""

import base64
import io
import pickle
import zlib
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, ClassVar

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
    try:
        file = io.BytesIO(zlib.decompress(base64.b85decode(record[KEY])))
        if trust:
            return pickle.load(file)
        estimator = _Plain(file).load()
        check_tame(estimator)
    except ModelError:
        raise
    except Exception as error:  # of what was written by somebody else, any
        raise ModelError(
            "The record holds the estimator that convert fitted, as the installed scikit-learn writes it.",
            got=f"{type(error).__name__}: {error}",
            fix="Name the estimator's file, or give the fitted estimator.",
        ) from error
    return estimator


METHODS = ("stack_method", "stack_method_", "chain_method", "chain_method_", "response_method")
PREDICT = (None, "auto", "predict", "predict_proba", "decision_function")


def check_tame(estimator: Any) -> None:
    """Refuse an estimator whose classes are harmless, but which does more than predict once it is asked to.

    A Pipeline's `memory` is a folder of pickles, which `fit` opens; the method that is called of a member may be `fit`;
    and an attribute called as a method is called in its place. A sparse matrix is read and written at the places it
    names, also outside of it.
    """
    import scipy.sparse

    seen, todo = dict[int, Any](), [estimator]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, str | bytes | int | float | type | FunctionType | ModuleType):
            continue
        seen[id(one)] = one  # kept, so that no other object gets its id
        if isinstance(one, Mapping):
            todo.extend([*one, *one.values()])
        elif isinstance(one, list | tuple | set | frozenset):
            todo.extend(one)
        elif isinstance(one, np.ndarray) and one.dtype == object:
            todo.extend(one.flat)
        elif isinstance(one, scipy.sparse.sparray | scipy.sparse.spmatrix) and (why := _outside(one)):
            _refuse(f"{type(one).__name__} with places outside of it: {why}")
        for name, value in getattr(one, "__dict__", {}).items():
            methods = value if isinstance(value, list | tuple) else [value]
            own = f"{name} {value!r:.80}".replace("\n", " ")
            if name in METHODS and any(not isinstance(one, str | None) or one not in PREDICT for one in methods):
                _refuse(f"{type(one).__name__} with {own}")
            if name == "memory" and value is not None:
                _refuse(f"{type(one).__name__} with {own}, a folder of pickles")
            if (name[:2] == name[-2:] == "__") or callable(getattr(type(one), str(name), None)):
                _refuse(f"{type(one).__name__} with a method of its own: {own}")
            todo.append(value)


def _outside(matrix: Any) -> str | None:
    """Return what is wrong with a sparse matrix's places, None where nothing is."""
    if not hasattr(matrix, "check_format"):
        return f"the form {matrix.format}, which is not looked at"
    try:
        type(matrix).check_format(matrix, full_check=True)
    except (ValueError, TypeError, AttributeError) as error:
        return str(error)
    return None


def _refuse(got: str) -> None:
    raise ModelError(
        "An estimator is opened on your word only where all it can do is to predict.",
        got=got,
        fix="Add --trust, or set convert.source.trust=true, if you know who wrote it: it may run code.",
    )


class _Plain(pickle._Unpickler):
    """Makes estimators and arrays, and imports and calls nothing else.

    In Python, as pickle's own in C lets nobody see what a state is put into: a class would be another one from then
    on, for everybody, and a dtype of objects that says it holds none takes bytes for pointers. So does an array of
    objects over a buffer: of numpy.ndarray a pickle gets a stand-in.
    """

    def load_build(self) -> None:
        *_, made, state = self.stack  # type: ignore[attr-defined]
        if isinstance(made, np.dtype):
            plain = made.names is None and isinstance(state, tuple) and state[2:8] == made.__reduce__()[2][2:8]
        else:
            plain = not isinstance(made, type | FunctionType | BuiltinFunctionType)
        if not plain:
            _refuse(f"a state for {made!r}")
        super().load_build()  # type: ignore[misc]

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return _array
        if (module, name) == ("numpy._core.multiarray", "_reconstruct"):
            return _empty
        if (module, name) in PLAIN or (module == "numpy" and np.generic in getattr(vars(np).get(name), "__mro__", ())):
            return super().find_class(module, name)
        if module.partition(".")[0] == "sklearn" and "tests" not in module.split(".") and "." not in name:
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


def _array(*_: Any) -> None:
    """Be what numpy.ndarray is in a pickle, which hands it on and never calls it."""
    _refuse("numpy.ndarray over bytes of its own")


def _empty(kind: Any, _: Any, __: Any) -> np.ndarray:
    """Return an array that a state is put into, in the place of NumPy's `_reconstruct`."""
    if kind is not _array:
        _refuse(f"an array of {kind!r}")
    return np.empty(0, np.int8)


PARTS = (
    "sklearn._loss.loss",
    "sklearn._loss._loss",
    "sklearn._loss.link",
    "sklearn.neural_network._stochastic_optimizers",
)
PLAIN = {
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
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
    ("sklearn.compose._column_transformer", "make_column_selector"),
    ("sklearn.utils._bunch", "Bunch"),
    ("builtins", "slice"),
    ("builtins", "set"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
}
