"""The tables of rules and expansions list the operators of each file, and together almost all of ONNX's."""

import importlib

import onnx
import pytest

from ortpipe.autodiff.rules.__main__ import NEWEST
from ortpipe.autodiff.table import EXPANSIONS, RULES, OperatorTable

WITHOUT = {
    "differentiated as the operators of its function body": (
        "Attention CenterCropPad GroupNormalization NegativeLogLikelihoodLoss RMSNormalization Range RotaryEmbedding "
        "SequenceMap SoftmaxCrossEntropyLoss Swish"
    ),
    "rewritten for older opsets by ortpipe/graph/importing/opsets.py": "TensorScatter",
    "puts values into a sequence or optional, whose reader has an expansion": (
        "Optional SequenceConstruct SequenceErase SequenceInsert SplitToSequence"
    ),
    "returns integers, booleans or strings": (
        "And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor ConvInteger DynamicQuantizeLinear Equal "
        "Greater GreaterOrEqual ImageDecoder IsInf IsNaN Less LessOrEqual MatMulInteger NonMaxSuppression NonZero Not "
        "OptionalHasElement Or QLinearConv QLinearMatMul RegexFullMatch SequenceLength Shape Size StringConcat "
        "StringNormalizer StringSplit Xor"
    ),
    "returns floats that depend on no float, or that are drawn": (
        "Bernoulli BlackmanWindow Constant ConstantOfShape EyeLike HammingWindow HannWindow MelWeightMatrix "
        "Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike SequenceEmpty TfIdfVectorizer"
    ),
    "not supported": "DeformConv MaxRoiPool",
}


@pytest.mark.parametrize(("table", "package"), [(RULES, "rules"), (EXPANSIONS, "expansions")])
def test_a_table_lists_the_operators_of_each_file(table: OperatorTable, package: str) -> None:
    for family, operators in table.families.items():
        functions = getattr(importlib.import_module(f"ortpipe.autodiff.{package}.{family}"), package.upper())
        assert {*operators} == {*functions}, "list them in ortpipe/autodiff/table.py"


def test_every_operator_of_onnx_has_a_rule_an_expansion_or_a_reason_for_neither() -> None:
    names = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain and s.since_version <= NEWEST}
    names -= {name for name in names if onnx.defs.get_schema(name, NEWEST).deprecated}
    without = {name for operators in WITHOUT.values() for name in operators.split()}
    assert names - {*RULES, *EXPANSIONS} <= without, "their rules are missing in ortpipe/autodiff/table.py"
    assert without.isdisjoint({*RULES, *EXPANSIONS})
