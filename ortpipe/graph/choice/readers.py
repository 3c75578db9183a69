"""Find the nodes that read an initializer, and decide by operator and values whether they read it as a parameter."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.operators import having, operands

# operator → operand → why it is no parameter; kept here because reports quote it, and untie puts it in names
CONSTANTS: dict[str, dict[int, str]] = {
    "BatchNormalization": {3: "running mean", 4: "running variance"},
    "Clip": {1: "bound of Clip", 2: "bound of Clip"},
    "DequantizeLinear": {1: "scale of DequantizeLinear", 2: "zero point of DequantizeLinear"},
    "Div": {1: "a divisor"},
    "Dropout": {1: "ratio of Dropout"},
    "GRU": {5: "first state of GRU"},
    "LSTM": {5: "first state of LSTM", 6: "first state of LSTM"},
    "Max": dict.fromkeys(range(9), "bound of Max"),
    "Min": dict.fromkeys(range(9), "bound of Min"),
    "OneHot": {2: "values of OneHot"},
    "Pad": {2: "value of Pad"},
    "Pow": {1: "exponent of Pow"},
    "QuantizeLinear": {1: "scale of QuantizeLinear", 2: "zero point of QuantizeLinear"},
    "RNN": {5: "first state of RNN"},
    "Resize": {1: "region of Resize", 2: "scales of Resize"},
    "Sub": {0: "what something is subtracted from"},
}
FORMS = (having("moves") - having("indexed")) | having("view", "masks")  # the first operand in another form
WEIGHTS, LAYERS = operands("weights"), having("normalizes", "weights") - {"PRelu"}
SUMS, SHAPE, PRODUCTS, CARRYING = having("sum"), having("shape"), having("product"), having("carries")
SCALING = FORMS | having("scores")
ARITHMETIC = having("broadcasts") - {"Clip"}  # of initializers only, they may compute a weight
SCATTERING = ("ScatterElements", "ScatterND")
DRAWING = having("random") - {"Dropout"}
LOW = -1e4  # the largest value of an additive mask; float16 ends at −65504
SURELY_LOW = -1e8  # lower than any bias
LEAST = 8  # entries of a sequence for a proof: two determine a recurrence, the others confirm it
FIRST, COLUMNS = 64, 256  # the rows and columns that are examined; float32 angles lose digits in later rows


@dataclass(frozen=True)
class Use:
    """A node that reads an initializer, or a value computed from initializers only."""

    node: ir.Node
    place: int  # the operand's index
    value: ir.Value  # the operand
    path: tuple[ir.Node, ...]  # the nodes between the initializer and the operand
    trained: bool = False  # whether the node reads it as a weight, a bias or an embedding
    reason: str = ""  # why it does not


class UseFinder:
    """Finds the uses of a graph's initializers; it classifies each value of the graph once."""

    def __init__(self, graph: ir.Graph) -> None:
        self.fixed: set[ir.Value] = set()  # computed from initializers and constants only
        self.layer_outputs: set[ir.Value] = set()  # outputs of layers before an activation
        self.after_layers: set[ir.Value] = set()  # values that depend on a layer
        self.scores: set[ir.Value] = set()  # scaled products of two values that are no weights
        self._initializers = {*graph.initializers.values()}
        for node in graph.all_nodes():
            self._initializers.update(v for g in query.subgraphs(node) for v in g.initializers.values())
        self._places = {node: place for place, node in enumerate(graph.all_nodes())}
        for node in self._places:
            self._classify(node)
        self._before_softmax = _leading_to(self._places, ("Softmax", "LogSoftmax"), SCALING)

    def uses(self, value: ir.Value) -> list[Use]:
        """Return the uses of an initializer in the graph's order, also of values computed from it only."""
        uses: list[Use] = []
        stack: list[tuple[ir.Value, tuple[ir.Node, ...]]] = [(value, ())]
        seen: set[ir.Value] = set()
        while stack:
            read, path = stack.pop(0)
            if read in seen:
                continue
            seen.add(read)
            for node, place in read.uses():
                outputs = [y for y in node.outputs if y.dtype is None or y.dtype in query.FLOATS]
                if not outputs:
                    continue  # no gradient passes
                if self._is_passed_through(node, place):
                    stack += [(y, (*path, node)) for y in outputs]
                elif (slice_input := _slice_input(node, place)) is not None:
                    stack.append((slice_input, (*path, node)))
                else:
                    use = Use(node, place, read, path)
                    trained, reason = self._assessed(use, value)
                    uses.append(replace(use, trained=trained, reason=reason))
        return sorted(uses, key=lambda use: (self._places[use.node], use.place))

    def _classify(self, node: ir.Node) -> None:
        inputs = [x for x in node.inputs if x is not None]
        outputs, moving = set(node.outputs), [x for x in inputs if not self._is_fixed(x)]
        if self._computes_a_constant(node):
            self.fixed |= outputs
            return
        op, read = node.op_type, {*inputs, *query.captured(node)}
        selects = op.startswith("Gather") and inputs[0] in moving
        inner = [n for g in query.subgraphs(node) for n in g.all_nodes()]
        layer = (op in LAYERS and not selects) or self._normalizes(node)
        carries = op in CARRYING and not self.layer_outputs.isdisjoint(inputs)
        if layer or carries or ((op in FORMS or selects) and inputs[0] in self.layer_outputs):
            self.layer_outputs |= outputs
        depends = op not in SHAPE and not self.after_layers.isdisjoint(read)
        if layer or depends or any(n.op_type in LAYERS for n in inner):
            self.after_layers |= outputs
        if (op in PRODUCTS and len(moving) > 1) or (op in SCALING and self.scores.intersection(inputs)):
            self.scores |= outputs

    def _is_fixed(self, value: ir.Value) -> bool:
        return value in self._initializers or value in self.fixed

    def _computes_a_constant(self, node: ir.Node) -> bool:
        if node.op_type == "Constant":
            return True
        inputs = [x for x in node.inputs if x is not None]
        if not inputs or node.op_type in DRAWING or query.subgraphs(node):
            return False
        return self._is_fixed(inputs[0]) if node.op_type in FORMS else all(map(self._is_fixed, inputs))

    def _is_passed_through(self, node: ir.Node, place: int) -> bool:
        if place in CONSTANTS.get(node.op_type, ()) and node.op_type not in ARITHMETIC:
            return False
        return self._computes_a_constant(node) and (place == 0 or node.op_type not in FORMS)

    def _normalizes(self, node: ir.Node) -> bool:
        """Return whether a node divides by the square root of a non-constant, as normalizations do."""
        if node.op_type not in ("Div", "Mul"):
            return False
        for x in node.inputs[1:] if node.op_type == "Div" else node.inputs:
            maker = x.producer() if x is not None and not self._is_fixed(x) else None
            if maker is not None and maker.op_type == "Reciprocal" and node.op_type == "Mul" and maker.inputs[0]:
                maker = maker.inputs[0].producer()
            elif node.op_type == "Mul":
                continue
            if maker is not None and maker.op_type in ("Add", "Max", "Clip", "Expand") and maker.inputs[0] is not None:
                maker = maker.inputs[0].producer()
            if maker is not None and maker.op_type == "Sqrt":
                return True
        return False

    def _assessed(self, use: Use, value: ir.Value) -> tuple[bool, str]:
        """Return whether a node reads an initializer as a parameter, and a reason against it, or ""."""
        node, op, size = use.node, use.node.op_type, size_of(value)
        passed = {n.op_type for n in use.path if n.op_type not in FORMS}
        if (passed and size < 2) or size_of(use.value) == 1 != size:
            return False, ""  # such as a weight's norm, or a number in a formula
        if not passed.isdisjoint(SCATTERING) and np.ptp(query.array(value).astype(np.float64)) == 0:
            return False, "equal numbers that are scattered"
        if "Mul" in passed and is_zero_one(query.array(value)):
            return False, "a mask of 0 and 1"
        if not passed.isdisjoint(("Sin", "Cos")):
            return False, "frequencies of Sin and Cos"
        if "Sqrt" in passed and _axes(value) <= 1 and not any("Reduce" in n for n in passed):
            return False, "a variance"
        if role := CONSTANTS.get(op, {}).get(use.place):
            return False, role if size != 1 else "one number"
        data_inputs = [x for x in node.inputs if x is not None and not self._is_fixed(x)]
        if use.place in WEIGHTS.get(op, ()):
            return self._weight(node, value, data_inputs)
        if op in SUMS:
            return self._added(use, bool(passed), value, data_inputs)
        if op == "Mul":
            return self._multiplied(use, value, data_inputs)
        if op == "Concat" and self.layer_outputs.intersection(data_inputs):
            return bool(np.ptp(query.array(value).astype(np.float64)) > 0), ""  # a learned token, not padding
        return False, ""

    def _weight(self, node: ir.Node, value: ir.Value, data_inputs: Sequence[ir.Value]) -> tuple[bool, str]:
        array = query.constant(value)  # not query.array, which copies: weights may be large
        assert array is not None
        if is_formula(array):
            return False, "sines and cosines"
        if node.op_type.startswith("Gather") and is_added_mask(array):
            return False, "a mask"
        if node.op_type in ("MatMul", "Einsum") and self.after_layers.isdisjoint(data_inputs) and _gives_angles(node):
            return False, "frequencies of Sin and Cos"
        return True, ""

    def _added(self, use: Use, computed: bool, value: ir.Value, data_inputs: Sequence[ir.Value]) -> tuple[bool, str]:
        node, array, softmax = use.node, query.array(value), use.node in self._before_softmax
        mask = "added in front of Softmax" if softmax else "a mask that is added"
        added = -array if node.op_type == "Sub" else array
        if is_added_mask(added) or (is_zero_one(array) and computed):
            return False, mask
        is_layer_output = bool(self.layer_outputs.intersection(data_inputs))
        if size_of(value) == 1:
            return is_layer_output and any(map(_has_one_channel, data_inputs)), "" if is_layer_output else "one number"
        if softmax and self.scores.intersection(data_inputs) and (not array.any() or is_switch(added)):
            return False, mask if array.any() else f"zeros, {mask}"
        scaled = (n for n, _ in node.outputs[0].uses() if n.op_type in ("Div", "Mul"))
        if node.op_type == "Sub" and any(x is not None and self._is_fixed(x) for n in scaled for x in n.inputs):
            return False, "a mean"
        if _axes(use.value) <= 1:
            return bool(self.after_layers.intersection(data_inputs)), ""
        if is_layer_output and (is_formula(array, lines=True) or is_counted(array)):
            return False, "sines, cosines or whole steps"
        return is_layer_output, ""

    def _multiplied(self, use: Use, value: ir.Value, data_inputs: Sequence[ir.Value]) -> tuple[bool, str]:
        array, after_layers = query.array(value), self.after_layers.intersection(data_inputs)
        if array.size == 1:
            return False, "one number"
        if is_zero_one(array):
            return False, "a mask of 0 and 1"
        if is_formula(array):
            return False, "sines and cosines"
        if not after_layers and _gives_angles(use.node):
            return False, "frequencies of Sin and Cos"
        if _reaches(use.node, FORMS, ("ReduceSum",)):  # a matrix product, written out
            return True, ""
        return _axes(use.value) <= 1 and bool(after_layers), ""


def _slice_input(node: ir.Node, place: int) -> ir.Value | None:
    """Return the input of a Scan's body that gets the slices of this operand, if it is a scanned one."""
    if node.op_type != "Scan":
        return None
    body, count = node.attributes["body"].as_graph(), node.attributes["num_scan_inputs"].as_int()
    return body.inputs[place] if place >= len(node.inputs) - count else None


def _reaches(node: ir.Node, through: Collection[str], op_types: Collection[str]) -> set[str]:
    """Return which of these operators read a node's outputs, directly or through operators of `through`."""
    reached, stack, seen = set[str](), [node], {node}
    while stack:
        for y in stack.pop().outputs:
            for reader, _ in y.uses():
                if reader.op_type in op_types:
                    reached.add(reader.op_type)
                elif reader.op_type in through and reader not in seen:
                    seen.add(reader)
                    stack.append(reader)
    return reached


def _leading_to(nodes: Iterable[ir.Node], op_types: Collection[str], through: Collection[str]) -> set[ir.Node]:
    """Return the nodes whose outputs these operators read, directly or through operators of `through`, in one walk."""
    leading, stack = set[ir.Node](), [node for node in nodes if node.op_type in op_types]
    while stack:
        for x in stack.pop().inputs:
            producer = x.producer() if x is not None else None
            if producer is not None and producer not in leading:
                leading.add(producer)
                if producer.op_type in through:
                    stack.append(producer)
    return leading


def _gives_angles(node: ir.Node) -> bool:
    """Return whether both sine and cosine of a node's output are taken, which suggests fixed frequencies."""
    return len(_reaches(node, FORMS | {"Concat", "Mul"}, ("Sin", "Cos"))) == 2


def _has_one_channel(value: ir.Value) -> bool:
    if value.shape is not None and value.shape.rank():
        return value.shape.rank() == 1 or value.shape[-1] == 1 or (value.shape.rank() > 3 and value.shape[1] == 1)
    producer = value.producer()
    weight = producer.inputs[1] if producer is not None and producer.op_type == "MatMul" else None
    return weight is not None and weight.shape is not None and bool(weight.shape) and weight.shape[-1] == 1


def size_of(value: ir.Value) -> int:
    """Return a value's number of entries, 0 if it is unknown."""
    return 0 if value.shape is None else math.prod(d if isinstance(d, int) else 0 for d in value.shape)


def _axes(value: ir.Value) -> int:
    """Return a value's number of axes longer than 1; 1 if the shape is unknown."""
    return 1 if value.shape is None else sum(d != 1 for d in value.shape)


def is_added_mask(array: np.ndarray) -> bool:
    """Return whether values are those of an additive mask: 0, and very low numbers or −∞.

    >>> is_added_mask(np.array([0, -1e9])), is_added_mask(np.array([-2e4, 3.0]))
    (True, False)
    """
    if np.isneginf(array).any():
        return not np.isnan(array).any()
    low = array <= LOW
    return bool(low.any() and not array[~low].any() and (not low.all() or (array <= SURELY_LOW).all()))


def is_zero_one(array: np.ndarray) -> bool:
    """Return whether values are 0 and 1, and both occur."""
    return array.size > 1 and bool(np.isin(array, (0, 1)).all()) and len(np.unique(array)) == 2


def is_switch(array: np.ndarray) -> bool:
    """Return whether values are 0 and one negative number, and both occur, as in a mask of −100."""
    values = np.unique(array)
    return len(values) == 2 and bool(values[0] < 0 == values[1])


def is_counted(array: np.ndarray) -> bool:
    """Return whether values are many whole numbers or halves, as the positions of a grid."""
    halves = 2 * array.astype(np.float64)
    return bool((halves == np.round(halves)).all()) and len(np.unique(halves)) >= LEAST


def is_formula(array: np.ndarray, *, lines: bool = False) -> bool:
    """Return whether values are exact sines and cosines along an axis; `lines` includes straight lines.

    s(t) = a·cos(ω·t + φ) satisfies s(t + 1) + s(t − 1) = 2·cos ω·s(t); lines do with ω = 0. Each column must, with its
    own ω: tables of positions do along the positions, a Fourier basis under any window along the frequencies (rows of
    cosines, then of sines). Trained or random values do not, for each further entry is one more equation.

    >>> t, k = np.arange(16)[:, None], np.arange(8)[None]
    >>> window = np.hanning(10)[1:-1]
    >>> is_formula(np.cos(t * k) * window), is_formula(np.random.default_rng(0).normal(size=(16, 8)))
    (True, False)
    """
    values = np.squeeze(array)
    if not np.isfinite(values).all():
        return False
    tolerance = 5e-3 if array.dtype.itemsize == 2 else 1e-4
    return any(
        _is_formula_along(values, axis, lines, tolerance) for axis, size in enumerate(values.shape) if size >= LEAST
    )


def _is_formula_along(values: np.ndarray, axis: int, lines: bool, tolerance: float) -> bool:
    columns = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    columns = columns[:, np.linspace(0, columns.shape[1] - 1, min(columns.shape[1], COLUMNS)).astype(int)].astype(
        np.float64
    )
    half = len(columns) // 2
    blocks = [[columns], [columns[:half], columns[half:]], [columns[::2], columns[1::2]]]
    return any(
        all(
            len(block) >= LEAST and _satisfies_recurrence(block[:FIRST].astype(np.float64), tolerance)
            for block in parts
        )
        and any(_varies(block[:FIRST].astype(np.float64), lines) for block in parts)
        for parts in blocks
    )


def _satisfies_recurrence(columns: np.ndarray, tolerance: float) -> bool:
    around, middle = columns[2:] + columns[:-2], columns[1:-1]
    error = np.abs(around - 2 * _cosines(columns) * middle)
    return bool((error <= tolerance * max(np.abs(columns).max(), 1e-30)).all())


def _varies(columns: np.ndarray, lines: bool) -> bool:
    """Return whether columns are not constant; constant ones, such as a new bias, satisfy the recurrence, too."""
    moving = np.ptp(columns, axis=0) > 1e-3 * np.abs(columns).max()
    return bool(moving.any()) if lines else int((moving & (_cosines(columns) < 0.999)).sum()) >= 2


def _cosines(columns: np.ndarray) -> np.ndarray:
    around, middle = columns[2:] + columns[:-2], columns[1:-1]
    norms = 2 * (middle**2).sum(axis=0)
    return np.clip(np.divide((around * middle).sum(axis=0), norms, out=np.ones(len(norms)), where=norms > 0), -1, 1)
