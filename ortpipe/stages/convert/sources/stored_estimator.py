"""The estimator that convert fitted, stored in its lineage record so that trained weights can go back into it."""

import base64
import io
import itertools
import pickle
import zlib
from collections.abc import Collection, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType
from typing import Any, ClassVar

import numpy as np

from ortpipe.bounded import DEPTH, check_pickle, inflate
from ortpipe.errors import ModelError

FITTED = "fitted"  # in convert's record, which is not part of an artifact's digest
LARGEST_PICKLE = 2**28  # bytes of its pickle
ELEMENTS = 10**7  # of an estimator's containers, each as often as they refer to it
OBJECTS = 300_000  # of an estimator that are no numbers or text, likewise


def record_of(estimator: Any) -> dict[str, str]:
    """Return the part of convert's record that holds a fitted estimator; empty if it cannot be pickled.

    Not a .skops file, because skops imports all of scikit-learn and pandas, which takes longer than most runs.
    """
    try:
        pickled = pickle.dumps(estimator)
    except (pickle.PicklingError, AttributeError, TypeError):  # for example a lambda among its parameters
        return {}
    return {FITTED: base64.b85encode(zlib.compress(pickled)).decode()} if len(pickled) <= LARGEST_PICKLE else {}


def estimator_of(record: Mapping[str, Any], *, trust: bool) -> Any:
    """Return the estimator in convert's record; without trust, only of scikit-learn's and NumPy's classes.

    Raises:
        ModelError: there is none, or it needs trust.
    """
    if FITTED not in record:
        fix = "Name the estimator's file, or give the fitted estimator."
        raise ModelError("The record must hold the estimator that convert fitted.", got="none", fix=fix)
    try:
        pickled = inflate(base64.b85decode(record[FITTED]), LARGEST_PICKLE)
        if trust:
            return pickle.loads(pickled)
        check_pickle(pickled)
        estimator = _SafeUnpickler(io.BytesIO(pickled)).load()
        check_only_predicts(estimator)
    except ModelError:
        raise
    except Exception as error:  # an untrusted record may raise anything
        raise ModelError(
            "The record must hold the estimator that convert fitted, readable with the installed scikit-learn.",
            got=f"{type(error).__name__}: {error}",
            fix="Name the estimator's file, or give the fitted estimator.",
        ) from error
    return estimator


LEAF = (str, bytes, int, float, type, FunctionType, ModuleType, NoneType, np.generic)
METHODS = ("stack_method", "stack_method_", "chain_method", "chain_method_", "response_method")
PREDICT = (None, "auto", "predict", "predict_proba", "decision_function")


def check_only_predicts(estimator: Any) -> None:
    """Reject an estimator of harmless classes that would do more than predict when used.

    `fit` of a Pipeline opens pickles in its `memory` folder; the method called of a member may be `fit`; an attribute
    named like a method replaces it; the indices of a sparse matrix may lie outside of its memory; and lists that hold
    a list twice, again and again, have more elements than any memory.
    """
    import scipy.sparse

    elements, stack = 0, [(estimator, 0)]
    for number in itertools.count():
        if not stack:
            return
        item, depth = stack.pop()
        parts: Collection[Any] = ()
        if isinstance(item, Mapping):
            parts = [*item, *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            parts = item
        elif isinstance(item, np.ndarray) and item.dtype == object:
            parts = item.ravel()
        elif isinstance(item, scipy.sparse.sparray | scipy.sparse.spmatrix) and (why := _format_error(item)):
            _reject(f"{type(item).__name__} with invalid indices: {why}")
        for name, value in getattr(item, "__dict__", {}).items():
            methods = value if isinstance(value, list | tuple) else [value]
            if name in METHODS and (
                others := [m for m in methods if not isinstance(m, str | None) or m not in PREDICT]
            ):
                _reject(f"{type(item).__name__} with {name} {_shown(others[0])}")
            if name == "memory" and value is not None:
                _reject(f"{type(item).__name__} with {name} {_shown(value)}, a folder of pickles")
            if (name[:2] == name[-2:] == "__") or callable(getattr(type(item), str(name), None)):
                _reject(f"{type(item).__name__} with an attribute in place of a method: {name:.80}")
        values = getattr(item, "__dict__", {}).values()
        elements += len(parts) + len(values)
        if elements > ELEMENTS or number > OBJECTS or depth > DEPTH:
            _reject(f"more than {OBJECTS:,} objects or {ELEMENTS:,} elements, or some nested more than {DEPTH} deep")
        stack.extend((part, depth + 1) for part in (*parts, *values) if not isinstance(part, LEAF))


def _shown(value: object) -> str:
    """Return text or a type's name: the `repr` of a list of lists may be longer than any memory."""
    return f"{value!r:.80}" if isinstance(value, str) else f"of type {type(value).__name__}"


def _format_error(matrix: Any) -> str | None:
    """Return the error in a sparse matrix's indices; None if they are valid."""
    if not hasattr(matrix, "check_format"):
        return f"the format {matrix.format}, which is not checked"
    try:
        type(matrix).check_format(matrix, full_check=True)
    except (ValueError, TypeError, AttributeError) as error:
        return str(error)
    return None


def _reject(content: str) -> None:
    raise ModelError(
        "An untrusted estimator must do nothing but predict.",
        got=content,
        fix="Add --trust, or set {@convert.source.trust}=true, if you know who wrote it: it may run code.",
    )


class _SafeUnpickler(pickle._Unpickler):
    """An unpickler that makes estimators and arrays, and imports and calls nothing else.

    It is pickle's implementation in Python, because that in C does not show which object a state is set on: a state
    would change a class for the whole process, and a dtype of objects that claims to hold none would take bytes for
    pointers. So would an array of objects over a buffer: a pickle gets `_array` in place of numpy.ndarray.
    """

    def load_build(self) -> None:
        *_, target, state = self.stack  # type: ignore[attr-defined]
        if isinstance(target, np.dtype):
            is_safe = target.names is None and isinstance(state, tuple) and state[2:8] == target.__reduce__()[2][2:8]
        else:
            is_safe = not isinstance(target, type | FunctionType | BuiltinFunctionType)
        if not is_safe:
            _reject(f"a state for {target!r}")
        super().load_build()  # type: ignore[misc]

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return _array
        if (module, name) == ("numpy._core.multiarray", "_reconstruct"):
            return _empty
        if name in PLAIN.get(module, ()) or (
            module == "numpy" and np.generic in getattr(vars(np).get(name), "__mro__", ())
        ):
            return super().find_class(module, name)
        if module.partition(".")[0] == "sklearn" and "tests" not in module.split(".") and "." not in name:
            cls = super().find_class(module, name)
            bases = [f"{base.__module__}.{base.__qualname__}" for base in getattr(cls, "__mro__", ())]
            if "sklearn.base.BaseEstimator" in bases or (bases and module in PARTS):
                return cls
            if name.startswith("__pyx_unpickle_") and module in PARTS:
                return cls
        raise ModelError(
            "An untrusted record must hold nothing but scikit-learn's estimators.",
            got=f"{module}.{name}",
            fix="Add --trust if you know who wrote the record: opening it may run code.",
        )


def _array(*_: Any) -> None:
    """Replace numpy.ndarray, which a pickle passes on and never calls."""
    _reject("numpy.ndarray over a buffer")


def _empty(kind: Any, _: Any, __: Any) -> np.ndarray:
    """Return an array for a state to be set on, instead of NumPy's `_reconstruct`."""
    if kind is not _array:
        _reject(f"an array of {kind!r}")
    return np.empty(0, np.int8)


PARTS = (
    "sklearn._loss.loss",
    "sklearn._loss._loss",
    "sklearn._loss.link",
    "sklearn.neural_network._stochastic_optimizers",
)
PLAIN = {  # module → functions and classes that only make values
    "numpy._core.multiarray": {"scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy": {"dtype"},
    "numpy.random._pickle": {"__randomstate_ctor", "__bit_generator_ctor", "__generator_ctor"},
    "numpy.random.bit_generator": {"SeedSequence", "__pyx_unpickle_SeedSequence"},
    "numpy.random._mt19937": {"MT19937"},
    "numpy.random._pcg64": {"PCG64"},
    "scipy.sparse._csr": {"csr_matrix", "csr_array"},
    "sklearn.compose._column_transformer": {"make_column_selector"},
    "sklearn.utils._bunch": {"Bunch"},
    "builtins": {"slice", "set"},
    "collections": {"OrderedDict", "defaultdict"},
}
