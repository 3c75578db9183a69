"""The table of vector-Jacobian rules, one family per file; `walk.py` documents the signature of a rule."""

from ortpipe.autodiff.table import OperatorTable

FAMILIES = {
    "arithmetic": "Add Cast CastLike Div Exp Gemm Identity Log Mean Mul Neg Reciprocal Relu Sqrt Sub Sum Where",
    "control_flow": "If Loop Scan",
    "convolution": "Col2Im Conv ConvTranspose",
    "elementwise": (
        "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Clip Cos Cosh Elu Erf Floor Gelu HardSigmoid HardSwish "
        "Hardmax LeakyRelu LogSoftmax Max Min Mish Mod PRelu Pow Round Selu Shrink Sigmoid Sign Sin Sinh Softmax "
        "Softplus Softsign Tan Tanh ThresholdedRelu"
    ),
    "geometry": "AffineGrid Det",
    "indexing": (
        "Compress CumSum Dropout Gather GatherElements GatherND OneHot ReverseSequence ScatterElements ScatterND TopK "
        "Trilu Unique"
    ),
    "linear": "Einsum MatMul",
    "normalization": (
        "BatchNormalization InstanceNormalization LRN LayerNormalization LpNormalization MeanVarianceNormalization"
    ),
    "pooling": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxUnpool",
    "quantization": "DequantizeLinear QuantizeLinear",
    "reductions": "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMin ReduceProd ReduceSumSquare",
    "resize": "Resize",
    "shapes": (
        "Concat DepthToSpace Expand Flatten Pad Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze"
    ),
    "spectral": "DFT STFT",
    "sums": "ReduceMean ReduceSum",
}
RULES = OperatorTable(FAMILIES, __name__, "RULES")
