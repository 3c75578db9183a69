"""The table of facts about operators, against ONNX's own schemas and shape inference."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper, shape_inference

from ortpipe.autodiff.expansions import EXPANSIONS
from ortpipe.autodiff.rules import RULES
from ortpipe.graph import operators

NAMES = sorted({s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated})
FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
# Of one input they give its shape, but not each entry from one entry; or they are no functions of floats.
NOT_UNARY = operators.LIKE_FIRST | operators.REDUCTIONS | operators.BROADCASTING | set(operators.RANDOM)
NOT_UNARY |= {"EyeLike", "Flatten", "LRN", "OptionalGetElement", "Squeeze", "Trilu"}
NOT_PREDICATES = {"EyeLike", "Flatten", "Identity", "OptionalGetElement", "Squeeze", "Trilu"}
# What no set holds: their outputs' types or shapes need more than a fact.
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
    assert {op for op in NAMES if inferred(op, (FLOAT, (3, 4))) == (FLOAT, (3, 4))} - NOT_UNARY == operators.UNARY


def test_broadcasting_operators_are_those_that_onnx_broadcasts():
    pair, choice = [(FLOAT, (3, 1)), (FLOAT, (1, 4))], [(BOOL, (3, 1)), (FLOAT, (1, 4)), (FLOAT, (1, 1))]
    joined = {op for op in NAMES for inputs in (pair, choice) if inferred(op, *inputs) == (FLOAT, (3, 4))}
    one_way = {"Clip", "PRelu"}  # bounds are scalars, and a slope is broadcast to x, never x to it
    assert (joined - {"Gemm", "MatMul"}) | one_way == operators.BROADCASTING


def test_predicates_are_those_that_give_booleans():
    inputs = [*([(kind, (3, 4))] for kind in (FLOAT, BOOL)), *([(k, (3, 1)), (k, (1, 4))] for k in (FLOAT, BOOL))]
    found = {op for op in NAMES for given in inputs if inferred(op, *given) == (BOOL, (3, 4))}
    assert found - NOT_PREDICATES == operators.PREDICATES


def test_several_outputs_of_floats_are_those_of_the_schemas():
    several = set()
    for name in NAMES:
        floats = [o for o in onnx.defs.get_schema(name).outputs if any("float)" in kind for kind in o.types)]
        many = any(o.option == onnx.defs.OpSchema.FormalParameterOption.Variadic for o in floats)
        if len(floats) > 1 or many:
            several.add(name)
    later = {"Attention", "CausalConvWithState", "LinearAttention", "SequenceMap"}  # no rules, or no opset yet
    assert several - later - {"BatchNormalization"} == operators.SEVERAL_OUTPUTS  # its running ones are not learned


@pytest.mark.parametrize("name", sorted({*RULES, *EXPANSIONS}))
def test_an_operator_with_a_rule_is_in_the_table(name):
    sets = (operators.UNARY, operators.BROADCASTING, operators.LIKE_FIRST, operators.OF_FIRST_TYPE)
    assert any(name in facts for facts in (*sets, operators.SEVERAL_OUTPUTS, OTHERS))


def test_random_operators_have_a_seed_of_the_type_that_the_table_says():
    kinds = {onnx.defs.OpSchema.AttrType.FLOAT: float, onnx.defs.OpSchema.AttrType.INT: int}
    seeds = {
        n: onnx.defs.get_schema(n).attributes["seed"].type
        for n in NAMES
        if "seed" in onnx.defs.get_schema(n).attributes
    }
    assert {name: kinds[kind] for name, kind in seeds.items()} == operators.RANDOM
