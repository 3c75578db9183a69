"""What reads an initializer, and whether as a parameter: by the operator, and by what the initializer holds."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.contents import is_added_mask, is_counted, is_formula, is_switch, is_zero_one

WEIGHTS: dict[str, tuple[int, ...]] = {  # operator → the operands that are weights, where initializers are read there
    "BatchNormalization": (1, 2),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "DeformConv": (1, 3),
    "Einsum": tuple(range(9)),
    "GRU": (1, 2, 3),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Gemm": (0, 1, 2),
    "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LSTM": (1, 2, 3, 7),
    "LayerNormalization": (1, 2),
    "MatMul": (0, 1),
    "PRelu": (1,),
    "RMSNormalization": (1,),
    "RNN": (1, 2, 3),
}
CONSTANTS: dict[str, dict[int, str]] = {  # operator → the operands that are settings or statistics, and what to call it
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
    "Upsample": {1: "scales of Upsample"},
}
VIEWS = (  # operators whose result is their first operand in another form
    *("Cast", "CastLike", "DepthToSpace", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Slice"),
    *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"),
)
LAYERS = (frozenset(WEIGHTS) | {"LRN", "LpNormalization", "MeanVarianceNormalization"}) - {"PRelu"}
PRODUCTS = ("MatMul", "Gemm", "Einsum", "Conv")
ADDING = ("Add", "Sub", "Sum")
CARRYING = (*ADDING, "Concat", "Div", "Mean", "Mul", "Neg")  # what a layer gives stays that through them
SCALING = (*VIEWS, "Add", "Clip", "Div", "Max", "Min", "Mul", "Where")
ARITHMETIC = ("Div", "Max", "Min", "Pow", "Sub")  # of initializers alone, they may compute a weight
RANDOM = ("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike")


@dataclass(frozen=True)
class Use:
    """A node that reads an initializer, or what is computed from initializers alone."""

    node: ir.Node
    place: int  # of its operands
    value: ir.Value  # what it reads there
    path: tuple[ir.Node, ...]  # the nodes between the initializer and that
    trained: bool = False  # whether it reads it as a weight, a bias or an embedding
    reason: str = ""  # why not


class UseFinder:
    """Says what reads an initializer of a graph, and how: it knows each value's origin."""

    def __init__(self, graph: ir.Graph) -> None:
        self.fixed: set[ir.Value] = set()  # computed from initializers and constants alone
        self.given: set[ir.Value] = set()  # what a layer gives, with no activation since
        self.behind: set[ir.Value] = set()  # what depends on a layer
        self.scores: set[ir.Value] = set()  # products of two values that are no weights, scaled
        self._initializers = {*graph.initializers.values()}
        for node in graph.all_nodes():
            self._initializers.update(v for g in query.subgraphs(node) for v in g.initializers.values())
        self._places = {node: place for place, node in enumerate(graph.all_nodes())}
        for node in self._places:
            self._note(node)
        self._before_softmax = _leading_to(self._places, ("Softmax", "LogSoftmax"), SCALING)

    def uses(self, value: ir.Value) -> list[Use]:
        """Return what reads an initializer, in the graph's order, looking through what is computed from it alone."""
        found: list[Use] = []
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
                if self._is_looked_through(node, place):
                    stack += [(y, (*path, node)) for y in outputs]
                elif (scanned := _scanned(node, place)) is not None:
                    stack.append((scanned, (*path, node)))
                else:
                    use = Use(node, place, read, path)
                    trained, reason = self._judged(use, value)
                    found.append(replace(use, trained=trained, reason=reason))
        return sorted(found, key=lambda use: (self._places[use.node], use.place))

    def _note(self, node: ir.Node) -> None:
        inputs = [x for x in node.inputs if x is not None]
        outputs, moving = set(node.outputs), [x for x in inputs if not self._is_fixed(x)]
        if self._computes_a_constant(node):
            self.fixed |= outputs
            return
        op, read = node.op_type, {*inputs, *query.captured(node)}
        selects = op.startswith("Gather") and inputs[0] in moving
        inner = [n for g in query.subgraphs(node) for n in g.all_nodes()]
        layer = (op in LAYERS and not selects) or self._normalizes(node)
        carries = op in CARRYING and not self.given.isdisjoint(inputs)
        if layer or carries or ((op in VIEWS or selects) and inputs[0] in self.given):
            self.given |= outputs
        depends = op not in ("Shape", "Size") and not self.behind.isdisjoint(read)
        if layer or depends or any(n.op_type in LAYERS for n in inner):
            self.behind |= outputs
        if (op in PRODUCTS and len(moving) > 1) or (op in SCALING and self.scores.intersection(inputs)):
            self.scores |= outputs

    def _is_fixed(self, value: ir.Value) -> bool:
        return value in self._initializers or value in self.fixed

    def _computes_a_constant(self, node: ir.Node) -> bool:
        if node.op_type == "Constant":
            return True
        inputs = [x for x in node.inputs if x is not None]
        if not inputs or node.op_type in RANDOM or query.subgraphs(node):
            return False
        return self._is_fixed(inputs[0]) if node.op_type in VIEWS else all(map(self._is_fixed, inputs))

    def _is_looked_through(self, node: ir.Node, place: int) -> bool:
        if place in CONSTANTS.get(node.op_type, ()) and node.op_type not in ARITHMETIC:
            return False
        return self._computes_a_constant(node) and (place == 0 or node.op_type not in VIEWS)

    def _normalizes(self, node: ir.Node) -> bool:
        """Say whether a node divides by the root of something that is no constant, as normalizations do."""
        if node.op_type not in ("Div", "Mul"):
            return False
        for x in node.inputs[1:] if node.op_type == "Div" else node.inputs:
            made = x.producer() if x is not None and not self._is_fixed(x) else None
            if made is not None and made.op_type == "Reciprocal" and node.op_type == "Mul" and made.inputs[0]:
                made = made.inputs[0].producer()
            elif node.op_type == "Mul":
                continue
            if made is not None and made.op_type in ("Add", "Max", "Clip", "Expand") and made.inputs[0] is not None:
                made = made.inputs[0].producer()
            if made is not None and made.op_type == "Sqrt":
                return True
        return False

    def _judged(self, use: Use, value: ir.Value) -> tuple[bool, str]:
        """Return whether a node reads an initializer as a parameter, and the reason that forbids it, if one does."""
        node, op, size = use.node, use.node.op_type, size_of(value)
        passed = {n.op_type for n in use.path if n.op_type not in VIEWS}
        if (passed and size == 1) or size_of(use.value) == 1 != size:
            return False, ""  # such as a norm of a weight, and a number of a formula
        if "Mul" in passed and is_zero_one(query.array(value)):
            return False, "a mask of 0 and 1"
        if not passed.isdisjoint(("Sin", "Cos")):
            return False, "frequencies of Sin and Cos"
        if "Sqrt" in passed and _axes(value) <= 1 and not any("Reduce" in n for n in passed):
            return False, "a variance"
        if role := CONSTANTS.get(op, {}).get(use.place):
            return False, role if size != 1 else "one number"
        others = [x for x in node.inputs if x is not None and not self._is_fixed(x)]
        if use.place in WEIGHTS.get(op, ()):
            return self._weight(node, value, others)
        if op in ADDING:
            return self._added(use, bool(passed), value, others)
        if op == "Mul":
            return self._multiplied(use, value, others)
        if op == "Concat" and self.given.intersection(others):
            return bool(np.ptp(query.array(value).astype(np.float64)) > 0), ""  # a learned token, and no padding
        return False, ""

    def _weight(self, node: ir.Node, value: ir.Value, others: Sequence[ir.Value]) -> tuple[bool, str]:
        held = query.constant(value)  # not `array`, a copy: weights may be large
        assert held is not None
        if is_formula(held):
            return False, "sines and cosines"
        if node.op_type.startswith("Gather") and is_added_mask(held):
            return False, "a mask"
        if node.op_type in ("MatMul", "Einsum") and self.behind.isdisjoint(others) and _gives_angles(node):
            return False, "frequencies of Sin and Cos"
        return True, ""

    def _added(self, use: Use, computed: bool, value: ir.Value, others: Sequence[ir.Value]) -> tuple[bool, str]:
        node, held, softmax = use.node, query.array(value), use.node in self._before_softmax
        where = "added in front of Softmax" if softmax else "a mask that is added"
        added = -held if node.op_type == "Sub" else held
        if is_added_mask(added) or (is_zero_one(held) and computed):
            return False, where
        given = bool(self.given.intersection(others))
        if size_of(value) == 1:
            return given and any(map(_has_one_channel, others)), "" if given else "one number"
        if softmax and self.scores.intersection(others) and (not held.any() or is_switch(added)):
            return False, where if held.any() else f"zeros, {where}"
        scaled = (n for n, _ in node.outputs[0].uses() if n.op_type in ("Div", "Mul"))
        if node.op_type == "Sub" and any(x is not None and self._is_fixed(x) for n in scaled for x in n.inputs):
            return False, "a mean"
        if _axes(use.value) <= 1:
            return bool(self.behind.intersection(others)), ""
        if given and (is_formula(held, lines=True) or is_counted(held)):
            return False, "sines, cosines or whole steps"
        return given, ""

    def _multiplied(self, use: Use, value: ir.Value, others: Sequence[ir.Value]) -> tuple[bool, str]:
        held, near = query.array(value), self.behind.intersection(others)
        if held.size == 1:
            return False, "one number"
        if is_zero_one(held):
            return False, "a mask of 0 and 1"
        if is_formula(held):
            return False, "sines and cosines"
        if not near and _gives_angles(use.node):
            return False, "frequencies of Sin and Cos"
        if _reaches(use.node, VIEWS, ("ReduceSum",)):  # a product, written out
            return True, ""
        return _axes(use.value) <= 1 and bool(near), ""


def _scanned(node: ir.Node, place: int) -> ir.Value | None:
    """Return what the body of a Scan reads a slice of this operand as."""
    if node.op_type != "Scan":
        return None
    body, count = node.attributes["body"].as_graph(), node.attributes["num_scan_inputs"].as_int()
    return body.inputs[place] if place >= len(node.inputs) - count else None


def _reaches(node: ir.Node, through: Collection[str], wanted: Collection[str]) -> set[str]:
    """Return which of the wanted operators read what a node gives, through others."""
    found, stack, seen = set[str](), [node], {node}
    while stack:
        for y in stack.pop().outputs:
            for reader, _ in y.uses():
                if reader.op_type in wanted:
                    found.add(reader.op_type)
                elif reader.op_type in through and reader not in seen:
                    seen.add(reader)
                    stack.append(reader)
    return found


def _leading_to(nodes: Iterable[ir.Node], wanted: Collection[str], through: Collection[str]) -> set[ir.Node]:
    """Return the nodes whose results the wanted operators read, through others: in one walk, for all nodes at once."""
    found, stack = set[ir.Node](), [node for node in nodes if node.op_type in wanted]
    while stack:
        for x in stack.pop().inputs:
            made = x.producer() if x is not None else None
            if made is not None and made not in found:
                found.add(made)
                if made.op_type in through:
                    stack.append(made)
    return found


def _gives_angles(node: ir.Node) -> bool:
    """Say whether both the sine and the cosine of what a node gives are taken: of fixed frequencies, as a rule."""
    return len(_reaches(node, (*VIEWS, "Concat", "Mul"), ("Sin", "Cos"))) == 2


def _has_one_channel(value: ir.Value) -> bool:
    if value.shape is not None and value.shape.rank():
        return value.shape.rank() == 1 or value.shape[-1] == 1 or (value.shape.rank() > 3 and value.shape[1] == 1)
    made = value.producer()
    weight = made.inputs[1] if made is not None and made.op_type == "MatMul" else None
    return weight is not None and weight.shape is not None and bool(weight.shape) and weight.shape[-1] == 1


def size_of(value: ir.Value) -> int:
    """Return how many numbers a value holds, 0 if that is not known."""
    return 0 if value.shape is None else math.prod(d if isinstance(d, int) else 0 for d in value.shape)


def _axes(value: ir.Value) -> int:
    """Return how many axes a value varies along."""
    return 1 if value.shape is None else sum(d != 1 for d in value.shape)
