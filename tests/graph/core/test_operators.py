"""The table of facts about operators, against ONNX's schemas, inference and reference, and onnxruntime's kernels."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, shape_inference
from onnx.reference import ReferenceEvaluator

import ortpipe
from ortpipe.autodiff.table import EXPANSIONS, RULES
from ortpipe.errors import ModelError
from ortpipe.graph.core import operators
from ortpipe.graph.core.operators import having
from ortpipe.runtime.session import Session

EVER = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain}
NAMES = sorted({s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated})
FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
# Of one input they give its shape, but not each entry from one entry; or they are no functions of floats.
NOT_UNARY = having("like_first", "reduces", "broadcasts", "random")
NOT_UNARY |= {"EyeLike", "Flatten", "LRN", "OptionalGetElement", "Squeeze", "Trilu"}
NOT_PREDICATES = {"EyeLike", "Flatten", "Identity", "OptionalGetElement", "Squeeze", "Trilu"}
# Operators without such a column: the types or shapes of their outputs need more than a fact.
OTHERS = {"BatchNormalization", "Cast", "CastLike", "Dropout", "If", "InstanceNormalization", "LRN", "Loop", "MaxPool"}
OTHERS |= {"OneHot", "NegativeLogLikelihoodLoss", "Scan", "TopK", "QuantizeLinear", "DequantizeLinear"}
OTHERS |= {"ConcatFromSequence", "OptionalGetElement", "SequenceAt"}


def inferred(op, *inputs):
    """Return type and shape that ONNX infers of an operator's output, None where it takes no such inputs."""
    values = [helper.make_tensor_value_info(f"x{i}", kind, shape) for i, (kind, shape) in enumerate(inputs)]
    node = helper.make_node(op, [v.name for v in values], ["y"])
    graph = helper.make_graph([node], "g", values, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    try:
        model = shape_inference.infer_shapes(model, strict_mode=True, check_type=True)
    except (shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError):
        return None
    y = model.graph.output[0].type.tensor_type
    return y.elem_type, tuple(d.dim_value for d in y.shape.dim)


def test_unary_operators_are_those_whose_output_has_the_inputs_type_and_shape():
    assert {op for op in NAMES if inferred(op, (FLOAT, (3, 4))) == (FLOAT, (3, 4))} - NOT_UNARY == having("unary")


def test_broadcasting_operators_are_those_that_onnx_broadcasts():
    pair, choice = [(FLOAT, (3, 1)), (FLOAT, (1, 4))], [(BOOL, (3, 1)), (FLOAT, (1, 4)), (FLOAT, (1, 1))]
    joined = {op for op in NAMES for inputs in (pair, choice) if inferred(op, *inputs) == (FLOAT, (3, 4))}
    one_way = {"Clip", "PRelu"}  # bounds are scalars, and a slope is broadcast to x, never x to it
    assert (joined - {"Gemm", "MatMul"}) | one_way == having("broadcasts")


def test_predicates_are_those_that_give_booleans():
    inputs = [*([(kind, (3, 4))] for kind in (FLOAT, BOOL)), *([(k, (3, 1)), (k, (1, 4))] for k in (FLOAT, BOOL))]
    found = {op for op in NAMES for given in inputs if inferred(op, *given) == (BOOL, (3, 4))}
    assert found - NOT_PREDICATES == having("predicate")


def test_several_outputs_of_floats_are_those_of_the_schemas():
    several = set()
    for name in NAMES:
        floats = [o for o in onnx.defs.get_schema(name).outputs if any("float)" in kind for kind in o.types)]
        many = any(o.option == onnx.defs.OpSchema.FormalParameterOption.Variadic for o in floats)
        if len(floats) > 1 or many:
            several.add(name)
    later = {"Attention", "CausalConvWithState", "LinearAttention", "SequenceMap"}  # no rules, or no opset yet
    assert several - later - {"BatchNormalization"} == having("several")  # its running ones are not learned


@pytest.mark.parametrize("name", sorted({*RULES, *EXPANSIONS}))
def test_an_operator_with_a_rule_is_in_the_table(name):
    typed = having("unary", "broadcasts", "like_first", "reduces", "first_type", "several")
    assert name in typed or name in OTHERS, f"give {name} a row in the table, or list it in OTHERS of this test"


def test_random_operators_are_those_with_a_seed():
    seeded = {name for name in NAMES if "seed" in onnx.defs.get_schema(name).attributes}
    assert seeded == having("random")
    kinds = {onnx.defs.get_schema(name).attributes["seed"].type.name for name in seeded - {"Dropout"}}
    assert kinds == {"FLOAT"}, "modes.set_seeds writes floats, except for Dropout"


def test_the_table_names_operators_and_columns_that_exist():
    names = [name for row in operators.TABLE for name in row.split()]
    assert len(names) == len(set(names))
    assert set(names) <= EVER
    used = {entry.partition("=")[0] for entries in operators.TABLE.values() for entry in entries.split()}
    assert used == operators.COLUMNS.keys()


def parameters(name):
    return [parameter.name for parameter in onnx.defs.get_schema(name).inputs]


def test_operands_that_the_table_names_are_those_of_the_schemas():
    for name, places in (*operators.operands("weights").items(), *operators.operands("sized_from").items()):
        assert name == "Einsum" or max(places) < len(parameters(name))
    assert all(parameters(name)[2].lower() in ("b", "c", "bias") for name in having("bias"))
    assert {name for name in NAMES if parameters(name)[5:6] == ["initial_h"]} == having("recurrent")
    assert {n for n in NAMES if parameters(n)[1:2] == ["indices"]} - {"MaxUnpool", "TensorScatter"} == having("indexed")
    assert {name for name in NAMES if re.match("Reduce|Global", name)} == having("reduces")
    assert all(onnx.defs.get_schema(name).outputs[0].types == {"tensor(int64)"} for name in having("shape"))


X = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 2, 2)
AXES, PLACES = np.array([0]), np.zeros((1, 4, 2, 2), np.int64)
FORMS = {  # arguments and attributes of an operator that moves, masks, or gives another form to X
    "Cast": ((), {"to": TensorProto.DOUBLE}),
    "CastLike": ((np.float64(1),), {}),
    "Compress": ((np.array([True, False, True]),), {}),
    "DepthToSpace": ((), {"blocksize": 2}),
    "Expand": ((np.array([2, 4, 2, 2]),), {}),
    "Gather": ((np.array([1, 0]),), {"axis": 1}),
    "GatherElements": ((PLACES,), {}),
    "GatherND": ((np.array([[0, 1]]),), {}),
    "Reshape": ((np.array([4, -1]),), {}),
    "ReverseSequence": ((np.array([1, 2, 1, 1]),), {"time_axis": 0, "batch_axis": 1}),
    "Slice": ((np.array([1]), np.array([3]), np.array([1])), {}),
    "SpaceToDepth": ((), {"blocksize": 2}),
    "Split": ((), {"num_outputs": 1}),
    "Squeeze": ((AXES,), {}),
    "Tile": ((np.array([1, 2, 1, 1]),), {}),
    "Transpose": ((), {"perm": [0, 2, 1, 3]}),
    "Unsqueeze": ((AXES,), {}),
}


@pytest.mark.parametrize("name", sorted(having("moves", "layout", "view", "masks")))
def test_moved_entries_are_those_of_the_first_input(name):
    arguments, attributes = FORMS.get(name, ((), {}))
    if name == "ReverseSequence":
        arguments = (np.array([1, 1, 1, 1]),)
    feeds = dict(zip("xabc", (X, *map(np.asarray, arguments)), strict=False))
    node = helper.make_node(name, list(feeds), ["y"], **attributes)
    [y] = ReferenceEvaluator(node).run(None, feeds)
    entries = y[y != 0] if name in having("masks") else y
    assert np.isin(entries, X).all()
    if name in having("layout"):
        assert sorted(y.ravel()) == sorted(X.ravel())
    if name in having("view"):
        assert y.ravel().tolist() == X.ravel().tolist()


@pytest.mark.parametrize("name", sorted(having("positive", "not_negative", "orders", "rounds") - {"QuantizeLinear"}))
def test_signs_order_and_rounding_are_those_of_the_reference(name):
    x = np.linspace(-3, 3, 13, dtype=np.float32)
    feeds = {"x": np.abs(x)} if name == "Sqrt" else {"x": x, "z": x[::-1]} if name in having("orders") else {"x": x}
    [y] = ReferenceEvaluator(helper.make_node(name, list(feeds), ["y"])).run(None, feeds)
    if name in having("orders"):
        assert y[0] != y[-1]
    elif name in having("rounds"):
        np.testing.assert_array_equal(y, np.rint(x))
    else:
        assert (y > 0).all() if name in having("positive") else (y >= 0).all()


def loads(schema, kind):
    """Return whether onnxruntime loads a model of one node whose inputs have this type, as far as they may."""
    allowed = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}
    required = {onnx.defs.OpSchema.AttrType.INT: 1, onnx.defs.OpSchema.AttrType.INTS: [1, 1]}
    required[onnx.defs.OpSchema.AttrType.STRING] = "ab,bc->ac"

    def value(name, parameter):
        kinds = allowed.get(parameter.type_str, [parameter.type_str])
        chosen = next(
            k for k in (f"tensor({kind})", "tensor(int64)", "tensor(bool)", "tensor(int32)", *kinds) if k in kinds
        )
        element = {"float": FLOAT, "double": TensorProto.DOUBLE, "bool": BOOL, "int32": TensorProto.INT32}
        return helper.make_tensor_value_info(name, element.get(chosen[7:-1], TensorProto.INT64), None)

    def values(prefix, some, count):
        return [value(f"{prefix}{i}", some[min(i, len(some) - 1)]) for i in range(max(1, count)) if some]

    inputs, outputs = values("x", schema.inputs, schema.min_input), values("y", schema.outputs, schema.min_output)
    attributes = {a.name: required[a.type] for a in schema.attributes.values() if a.required}
    node = helper.make_node(schema.name, [v.name for v in inputs], [v.name for v in outputs], **attributes)
    graph = helper.make_graph([node], "g", inputs, outputs)
    try:
        Session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    except ModelError as error:
        return None if "NOT_IMPLEMENTED" not in str(error) else False
    return True


def test_operators_without_float64_kernel_are_in_the_table():
    """The oracle is the installed runtime; a newer one may have more kernels."""
    missing = set()
    for name in set(NAMES) - {"If", "Loop", "Scan", "SequenceMap"}:
        schema = onnx.defs.get_schema(name, 21) if onnx.defs.has(name, max_inclusive_version=21) else None
        floats = [t.allowed_type_strs for t in schema.type_constraints] if schema is not None else []
        both = any({"tensor(double)", "tensor(float)"} <= {*kinds} for kinds in floats)
        if both and loads(schema, "float") and loads(schema, "double") is False:
            missing.add(name)
    assert missing <= having("no_double")


# Tables of operators outside operators.py; each has its reason beside it.
PRIVATE = {
    "ortpipe/autodiff/expansions/recurrent.py:ACTIVATIONS",
    "ortpipe/graph/forms/int8.py:READ",
    "ortpipe/graph/choice/readers.py:CONSTANTS",
    "ortpipe/stages/convert/dialects/layers.py:ACTIVATIONS",
    "ortpipe/stages/derive/engines/ort.py:RIGHT",
}
# Templates of C by operator, which are a dispatch like a dictionary of functions.
C_CODE = {f"ortpipe/runtime/c/elementwise.py:{name}" for name in ("TEMPLATES", "TESTS")}


def operators_in(node):
    """Return the operators in a literal: entries of a set, tuple or list, keys of a dictionary of data."""
    if isinstance(node, ast.Dict):
        code = (ast.Name, ast.Attribute, ast.Lambda, ast.Call)  # a dictionary of functions is a dispatch, not a fact
        items = [
            k
            for k, v in zip(node.keys, node.values, strict=True)
            if not any(isinstance(part, code) for part in ast.walk(v))
        ]
    else:
        items = node.elts if isinstance(node, ast.Set | ast.Tuple | ast.List) else []
    return {item.value for item in items if isinstance(item, ast.Constant) and item.value in EVER}


def test_other_files_ask_the_table():
    """A constant of three operators or more, or a literal of five or more, is a table of its own."""
    folder, found = Path(ortpipe.__file__).parent, set()
    for path in folder.rglob("*.py"):
        where = f"ortpipe/{path.relative_to(folder).as_posix()}"
        text = path.read_text()
        if path == Path(operators.__file__) or len(EVER.intersection(re.findall(r'"(\w+)"', text))) < 3:
            continue
        tree = ast.parse(text)
        constants = [n for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign) and n.value is not None]
        for constant in constants:
            if any(len(operators_in(node)) > 2 for node in ast.walk(constant.value)):
                target = constant.targets[0] if isinstance(constant, ast.Assign) else constant.target
                found.add(f"{where}:{ast.unparse(target)}")
        inside = {node for constant in constants for node in ast.walk(constant)}
        found |= {f"{where}:{n.lineno}" for n in ast.walk(tree) if n not in inside and len(operators_in(n)) > 4}
    assert found == PRIVATE | C_CODE, (
        "ask ortpipe.graph.core.operators.having instead, with a new column if there is none"
    )
