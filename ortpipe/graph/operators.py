"""Facts about ONNX's operators: how their outputs follow from their inputs, and which are random.

`tests/graph/test_operators.py` compares them with ONNX's schemas and shape inference: a missing fact fails there.
"""

import onnx_ir as ir

# Elementwise, with one input: the output has its type and shape.
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
# The same with boolean outputs.
PREDICATES = frozenset(
    ("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor")
)
# Output of the first input's type and shape, but not elementwise.
LIKE_FIRST = frozenset(("CumSum", "Hardmax", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Softmax"))
# Many entries of one input become one.
REDUCTIONS = frozenset(
    (
        *("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "ReduceL1", "ReduceL2", "ReduceLogSum"),
        *("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
    )
)
# Output of the first input's type and another shape.
OF_FIRST_TYPE = REDUCTIONS | frozenset(
    (
        *("AffineGrid", "AveragePool", "Col2Im", "Compress", "Concat", "Conv", "ConvTranspose", "DFT", "DepthToSpace"),
        *("Det", "Einsum", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Gemm", "GridSample", "LpPool"),
        *("MatMul", "MaxUnpool", "Pad", "Reshape", "Resize", "ReverseSequence", "RoiAlign", "STFT", "ScatterElements"),
        *("ScatterND", "Slice", "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Trilu", "Unique", "Unsqueeze"),
    )
)
# More than one float output that depends on the inputs.
SEVERAL_OUTPUTS = frozenset(
    ("GRU", "If", "LSTM", "LayerNormalization", "Loop", "RNN", "Scan", "SoftmaxCrossEntropyLoss", "Split")
)
# Random operators, with the type of their attribute `seed`.
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
    """Return whether a node's outputs may differ from run to run (Dropout's only with a training_mode input)."""
    return node.op_type in RANDOM and not node.domain and (node.op_type != "Dropout" or len(node.inputs) > 2)
