"""Add nodes to a graph by writing formulas: values in, values out, no random names."""

import contextlib
import gc
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ortpipe.doors import later
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.query import subgraphs
from ortpipe.graph.core.types import infer

if TYPE_CHECKING:
    from ortpipe.graph.core.doubles import in_float64
else:
    later(__name__)

NO_DOUBLE = having("no_double")

Op = Callable[..., Any]
Input = ir.Value | float | Sequence[int] | np.ndarray | None


class Names:
    """Generates names that a graph does not use yet; the same calls give the same names.

    >>> names = Names(["label"])
    >>> names.fresh("label"), names.fresh("label"), names.fresh("loss")
    ('label_1', 'label_2', 'loss')
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}  # the last suffix tried for each name; smaller ones are taken

    def fresh(self, stem: str) -> str:
        """Return `stem`, or `stem_1`, `stem_2` … if it is taken, and take it."""
        name, count = stem, self._counts.get(stem, 0)
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._counts[stem] = count
        self._taken.add(name)
        return name


def used_names(graph: ir.Graph) -> set[str]:
    """Return every value and node name in a graph and its subgraphs."""
    names, bodies = set[str | None](), [graph]
    for body in bodies:
        names.update(v.name for v in (*body.inputs, *body.initializers.values()))
        for node in body:
            names.update((node.name, *(v.name for v in (*node.outputs, *node.inputs) if v is not None)))
            bodies += subgraphs(node)
    return {name for name in names if name}


class Builder:
    """Writes nodes at the end of a graph; any ONNX operator is a method that takes and returns values.

    A number among the inputs becomes a scalar constant of their type, a list of integers a constant vector.
    Functions of float64 that onnxruntime has no kernel for are written in other operators (`doubles.py`).

    Args:
        graph: the graph to write into.
        prefix: the first part of every new name, so that a reader sees where a node came from.
        before: insert the nodes before this one instead of at the end.
        names: generates the names; a subgraph's builder shares that of the outer graph.

    >>> graph = ir.Graph([ir.val("x", ir.DataType.FLOAT, ["N", 1])], [], nodes=[], opset_imports={"": 21})
    >>> op = Builder(graph, "loss")
    >>> y = op.Mul(op.Abs(graph.inputs[0]), 2)
    >>> [node.op_type for node in graph], y.name
    (['Abs', 'Constant', 'Mul'], 'loss/Mul')
    """

    def __init__(
        self, graph: ir.Graph, prefix: str, *, before: ir.Node | None = None, names: Names | None = None
    ) -> None:
        self.graph = graph
        self._prefix = prefix
        self._before = before
        self._names = Names(used_names(graph)) if names is None else names
        self._constants: dict[tuple[np.dtype, tuple[int, ...], bytes], ir.Value] = {}

    def __getattr__(self, op_type: str) -> Op:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)

        def add(*inputs: Input, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
            values = self._values(inputs)
            if op_type in NO_DOUBLE and not domain and values[0] is not None and values[0].dtype == ir.DataType.DOUBLE:
                form = in_float64(self, op_type, values, attributes)
                if form is not None:
                    return form
            return self._add(op_type, values, outputs, domain, attributes)

        return add

    def _values(self, inputs: Sequence[Input]) -> list[ir.Value | None]:
        tensors = [x for x in inputs if isinstance(x, ir.Value)]
        # the first of a known type
        like = min(tensors, key=lambda x: x.dtype in (None, ir.DataType.BOOL), default=None)
        values = (self.like(x, like) if isinstance(x, int | float) else x for x in inputs)
        return [self._vector(x) if isinstance(x, Sequence | np.ndarray) else x for x in values]

    def _vector(self, numbers: Iterable[Any]) -> ir.Value:
        return self.const(np.array(list(map(operator.index, numbers)), np.int64))  # index rejects fractions

    @contextlib.contextmanager
    def formulas(self) -> Iterator[None]:
        """Let formulas of values such as `a * b + 1` write nodes with this builder, inside this context and thread.

        >>> op = Builder(ir.Graph([x := ir.val("x", ir.DataType.FLOAT, [])], [], nodes=[]), "f")
        >>> with op.formulas():
        ...     y = (1 - x) * x
        >>> [node.op_type for node in op.graph]
        ['Constant', 'Sub', 'Mul']
        """
        with _ARITHMETIC:
            before = _WRITES.set(self)
            try:
                yield
            finally:
                _WRITES.reset(before)

    def _add(
        self, op_type: str, inputs: Sequence[ir.Value | None], count: int, domain: str, attributes: dict[str, Any]
    ) -> Any:
        name = self._names.fresh(f"{self._prefix}/{op_type}")
        extra_names = [self._names.fresh(f"{name}_{i}") for i in range(1, count)]
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=count, name=name)
        for value, value_name in zip(node.outputs, [name, *extra_names], strict=True):
            value.name = value_name
        if self._before is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self._before, node)
        if not domain:
            infer(node)
        return node.outputs[0] if count == 1 else tuple(node.outputs)

    def placeholder(self, name: str, like: ir.Value, shape: ir.Shape | None) -> ir.Value:
        """Return a value of the type of `like` that belongs to no graph yet: a future subgraph's input."""
        return ir.Value(name=self._names.fresh(f"{self._prefix}/{name}"), type=like.type, shape=shape)

    def const(self, value: Any) -> ir.Value:
        """Return a constant that training never changes (a Constant node; initializers are for parameters)."""
        array = np.asarray(value)
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._constants:
            strings = [s.encode() for s in array.ravel().tolist()] if array.dtype.kind == "U" else None
            tensor = ir.Tensor(array) if strings is None else ir.StringTensor(strings, shape=ir.Shape(array.shape))
            self._constants[key] = self._add("Constant", (), 1, "", {"value": ir.AttrTensor("value", tensor)})
        return self._constants[key]

    def like(self, number: Any, value: Any) -> ir.Value:
        """Return a number, or an array, as a constant of a value's type, which must be known (ValueError)."""
        dtype = value.dtype
        if dtype is None:
            raise ValueError(f"the type of {value.name} is not known")
        return self.const(np.asarray(number, dtype.numpy()))

    def cast(self, value: Any, like: Any) -> ir.Value:
        """Return a value cast to the type of `like` (by Cast: CastLike would make the gradient depend on `like`)."""
        if like.dtype is None:
            raise ValueError(f"the type of {like.name} is not known")
        return self.Cast(value, to=like.dtype)

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str | None]) -> ir.Value:
        """Add a graph input with a fresh name that starts with `name`."""
        value = ir.val(self._names.fresh(name), dtype, list(shape))
        self.graph.inputs.append(value)
        return value

    def parameter(self, name: str, array: np.ndarray) -> ir.Value:
        """Add an initializer, which training may change."""
        fresh = self._names.fresh(name)
        value = ir.val(fresh, const_value=ir.tensor(array, name=fresh))
        self.graph.register_initializer(value)
        return value

    def rename(self, value: ir.Value, name: str) -> ir.Value:
        """Give a value a fresh name that starts with `name`."""
        value.name = self._names.fresh(name)
        return value


_WRITES: ContextVar[Builder] = ContextVar("writes")


class _Arithmetic:
    """onnx-ir's handler for a + b of two values, while any thread writes formulas.

    onnx-ir has one handler for the whole process, but each thread may write another graph. So this handler stays the
    same, and `_WRITES` holds each thread's builder. Threads without one get the previous handler, which is restored
    when the last thread has finished.
    """

    def __init__(self) -> None:
        self._lock, self._open, self._before = threading.Lock(), 0, None

    def __enter__(self) -> None:
        with self._lock:
            self._open += 1
            previous: Any = ir.set_value_magic_handler(self)
            self._before = self._before if previous is self else previous

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                ir.set_value_magic_handler(self._before)

    def __getattr__(self, op_type: str) -> Op:
        return getattr(_WRITES.get(self._before), op_type)


_ARITHMETIC = _Arithmetic()


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the collection of reference cycles, if it is on; a decorator, too.

    A graph's many values and nodes stay alive, and the collector would traverse all of them again and again while more
    are created. (With 9,000 nodes that took a quarter of the time.)

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
