"""The one table of facts about ONNX's operators; other files query it with `having`.

`tests/graph/core/test_operators.py` compares the table with ONNX's schemas, shape inference and reference
implementation, and with the kernels of the installed onnxruntime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

COLUMNS = {
    # types and shapes of outputs
    "unary": "elementwise, with one input: the output has its type and shape",
    "broadcasts": "inputs are broadcast to one shape; the output has the last one's type (Clip, Pow: the first one's)",
    "predicate": "the same with boolean outputs",
    "entrywise": "elementwise, but the type differs or chance decides",
    "like_first": "an output of the first input's type and shape, but not elementwise",
    "reduces": "many entries of one input become one",
    "first_type": "an output of the first input's type and another shape; not a reduction",
    "several": "more than one float output that depends on the inputs",
    "shape": "reads the shape of its input only, and returns int64",
    "short": "no axis is longer than the longest of an input (Scan: nor in its body); callers add elementwise ones",
    # values of outputs
    "layout": "the entries of the first input, under another shape or order of axes",
    "moves": "every entry is an entry of the first input",
    "view": "the entries of the first input in the same order, perhaps under another shape or type",
    "masks": "the first input with some entries set to 0",
    "indexed": "the second input holds indices into an axis of the first, or several",
    "orders": "compares two numbers by size",
    "positive": "greater than 0 for every input",
    "not_negative": "at least 0 for every input",
    "rounds": "rounds; its gradient is that of the identity",
    "integers": "returns integers for integers that are stored as floats; callers add `moves`",
    "carries": "a sum, or linear in each input: a layer's output stays one",
    "sum": "adds its inputs, or subtracts them",
    "mean": "a sum or mean over axes",
    "sized_from": "decides the output's size by the values of this operand, and of those after it",
    # layers
    "weights": "reads these operands as weights, if they are initializers",
    "product": "multiplies with a matrix or kernel",
    "bias": "the third input is added",
    "normalizes": "divides by a deviation or norm of its input",
    "recurrent": "runs over time; inputs 5 and 6 are initial states, outputs lie in [−1, 1]",
    "pool": "one number per window",
    "sized": "the gradient is simpler if sizes are static",
    "scores": "leads from scores of an attention to its Softmax; callers add `moves`, `view` and `masks`",
    "random": "draws at random",
    # what exporters use it for
    "sizes": "exporters compute sizes with it",
    "pads": "exporters arrange pads with it",
    # gradients
    "source": "returns floats that do not depend on the floats that it reads",
    "quantized": "its rule allows quantized values; callers add `view` and `layout`",
    "holds": "puts tensors into a sequence or optional, until another operator reads them",
    # kernels of onnxruntime on the CPU
    "int8": "has an integer kernel",
    "exact": "computes the same bytes however many entries it gets at once; callers add `broadcasts` and `predicate`",
    "no_double": "has no float64 kernel",
}
TABLE = {  # operators with the same facts share a row
    "Abs": "unary not_negative sizes exact",
    (
        "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Elu Erf Gelu HardSigmoid HardSwish LeakyRelu Mish Selu Sinh "
        "Softsign Tan ThresholdedRelu"
    ): "unary no_double",
    "Add": "broadcasts sum carries scores integers sizes int8",
    "AffineGrid DFT GridSample RoiAlign STFT": "first_type",
    "And IsInf IsNaN Or Xor": "predicate",
    "AveragePool": "first_type pool sized int8 no_double",
    "BatchNormalization GroupNormalization": "bias normalizes weights=1,2",
    "Bernoulli Multinomial RandomNormal RandomUniform": "random",
    "Cast": "entrywise view sizes exact short",
    "CastLike": "entrywise view",
    "Ceil Celu Floor Shrink Sign Sin Tanh": "unary",
    "Clip": "broadcasts scores integers",
    "Col2Im Det MaxUnpool": "first_type no_double",
    "Compress Expand Tile": "first_type moves sized_from=1",
    "Concat": "first_type carries integers sizes quantized int8",
    "Constant": "short",
    "ConstantOfShape": "pads sized_from=0",
    "Conv": "first_type product bias int8 no_double weights=1,2",
    "ConvTranspose": "first_type product bias no_double weights=1,2",
    "CumSum LogSoftmax": "like_first",
    "DeformConv": "product weights=1,3",
    "DepthToSpace ReverseSequence SpaceToDepth": "first_type moves",
    "DequantizeLinear": "quantized",
    "Div": "broadcasts carries scores sizes",
    "Dropout": "entrywise masks random",
    "Einsum": "first_type product weights=0,1,2,3,4,5,6,7,8",
    "Equal Not": "predicate sizes",
    "Exp": "unary positive exact",
    "EyeLike MelWeightMatrix": "source",
    "Flatten": "first_type layout moves view int8",
    "GRU RNN": "several recurrent weights=1,2,3",
    "Gather": "first_type moves indexed sizes weights=0",
    "GatherElements GatherND": "first_type moves indexed weights=0",
    "Gemm": "first_type product bias int8 short weights=0,1,2",
    "GlobalAveragePool": "reduces int8 no_double",
    "GlobalLpPool GlobalMaxPool ReduceL2": "reduces no_double",
    "Greater Less": "predicate orders sizes",
    "GreaterOrEqual LessOrEqual": "predicate orders",
    "Hardmax": "like_first no_double",
    "Identity": "unary moves view sizes",
    "If Loop": "several",
    "InstanceNormalization": "bias normalizes no_double weights=1,2",
    "LRN": "normalizes no_double",
    "LSTM": "several recurrent weights=1,2,3,7",
    "LayerNormalization": "several bias normalizes weights=1,2",
    "Log Reciprocal": "unary exact",
    "LpNormalization": "like_first normalizes",
    "LpPool": "first_type pool sized no_double",
    "MatMul": "first_type product int8 short weights=0,1",
    "Max Min Where": "broadcasts scores integers sizes",
    "MaxPool": "pool integers int8",
    "MaxRoiPool OneHot": "no_double",
    "Mean": "broadcasts carries no_double",
    "MeanVarianceNormalization": "like_first normalizes no_double",
    "Mod": "broadcasts sizes",
    "Mul": "broadcasts carries scores integers sizes int8",
    "Neg": "unary carries sizes exact",
    "NonZero": "no_double sized_from=0",
    "Optional SequenceConstruct SequenceErase SequenceInsert SplitToSequence": "holds",
    "PRelu": "broadcasts no_double weights=1",
    "Pad": "first_type integers sized_from=1",
    "Pow": "broadcasts",
    "QuantizeLinear": "rounds",
    "RMSNormalization": "normalizes weights=1",
    "RandomNormalLike RandomUniformLike": "source random",
    "Range": "sizes sized_from=0",
    "ReduceL1 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMin ReduceSumSquare": "reduces",
    "ReduceMean": "reduces mean",
    "ReduceProd": "reduces sizes no_double",
    "ReduceSum": "reduces mean sizes",
    "Relu": "unary not_negative integers",
    "Reshape": "first_type layout moves view sizes int8 sized_from=1",
    "Resize": "first_type sized integers sized_from=2",
    "Round": "unary rounds",
    "Scan": "several short",
    "ScatterElements ScatterND": "first_type indexed",
    "Shape Size": "shape short",
    "Sigmoid": "unary positive",
    "Slice": "first_type moves sizes sized_from=1",
    "Softmax": "like_first positive",
    "SoftmaxCrossEntropyLoss": "several",
    "Softplus": "unary positive no_double",
    "Split": "several moves",
    "Sqrt": "unary not_negative exact",
    "Squeeze Unsqueeze": "first_type layout moves view sizes int8",
    "Sub": "broadcasts sum carries integers sizes",
    "Sum": "broadcasts sum carries",
    "Transpose": "first_type layout moves pads int8 short",
    "Trilu": "first_type masks",
    "Unique": "first_type sized_from=0",
}
_OPERATORS: dict[str, dict[str, tuple[int, ...]]] = {column: {} for column in COLUMNS}
for _names, _entries in TABLE.items():
    for _column, _, _operands in (entry.partition("=") for entry in _entries.split()):
        _places = tuple(map(int, _operands.split(","))) if _operands else ()
        _OPERATORS[_column].update(dict.fromkeys(_names.split(), _places))


def having(*columns: str) -> frozenset[str]:
    """Return the operators with an entry in any of these columns of the table (KeyError: there is no such column).

    >>> sorted(having("pool"))
    ['AveragePool', 'LpPool', 'MaxPool']
    """
    return frozenset().union(*(_OPERATORS[column] for column in columns))


def operands(column: str) -> dict[str, tuple[int, ...]]:
    """Return the operators with an entry in a column, each with the indices of operands beside it.

    >>> operands("weights")["Conv"]
    (1, 2)
    """
    return _OPERATORS[column]


def is_random(node: ir.Node) -> bool:
    """Return whether a node's outputs may differ from run to run (Dropout's only with a training_mode input)."""
    return (
        node.op_type in _OPERATORS["random"] and not node.domain and (node.op_type != "Dropout" or len(node.inputs) > 2)
    )
