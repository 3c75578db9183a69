"""What is known of ONNX's operators, in one table: how their outputs follow from their inputs, and what is random.

`tests/graph/test_operators.py` compares it with ONNX's own schemas and shape inference: a missing fact fails there.
"""

import onnx_ir as ir

# One input, an output of its type and shape, each entry from one entry.
UNARY = frozenset(
    (
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp"),
        *("Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal"),
        *("Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan"),
        *("Tanh", "ThresholdedRelu"),
    )
)
# Several inputs, broadcast to one shape; the output has the last one's type (Clip, Pow: the first one's).
BROADCASTING = frozenset(
    ("Add", "Clip", "Div", "Max", "Mean", "Min", "Mod", "Mul", "PRelu", "Pow", "Sub", "Sum", "Where")
)
# The same, and booleans come out.
PREDICATES = frozenset(
    ("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor")
)
# Of the first input's type and shape, but no entry from one entry alone.
LIKE_FIRST = frozenset(("CumSum", "Hardmax", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Softmax"))
# Many entries of one input become one.
REDUCTIONS = frozenset(
    (
        *("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "ReduceL1", "ReduceL2", "ReduceLogSum"),
        *("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
    )
)
# Of the first input's type and another shape.
OF_FIRST_TYPE = REDUCTIONS | frozenset(
    (
        *("AffineGrid", "AveragePool", "Col2Im", "Compress", "Concat", "Conv", "ConvTranspose", "DFT", "DepthToSpace"),
        *("Det", "Einsum", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Gemm", "GridSample", "LpPool"),
        *("MatMul", "MaxUnpool", "Pad", "Reshape", "Resize", "ReverseSequence", "RoiAlign", "STFT", "ScatterElements"),
        *("ScatterND", "Slice", "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Trilu", "Unique", "Unsqueeze"),
    )
)
# More than one output of floats that follows from the inputs.
SEVERAL_OUTPUTS = frozenset(
    ("GRU", "If", "LSTM", "LayerNormalization", "Loop", "RNN", "Scan", "SoftmaxCrossEntropyLoss", "Split")
)
# Other values when they run again, and the type of their attribute `seed`.
RANDOM: dict[str, type[int | float]] = {
    "Bernoulli": float,
    "Dropout": int,
    "Multinomial": float,
    "RandomNormal": float,
    "RandomNormalLike": float,
    "RandomUniform": float,
    "RandomUniformLike": float,
}


def is_random(node: ir.Node) -> bool:
    """Say whether a node may give other values when it runs again (Dropout only where it can be told to train)."""
    return node.op_type in RANDOM and not node.domain and (node.op_type != "Dropout" or len(node.inputs) > 2)
