"""The table of vector-Jacobian rules, one family per file; `walk.py` documents the signature of a rule."""

from ortpipe.autodiff.table import OperatorTable

FAMILIES = {
    "activations": (
        "Celu Elu Erf Gelu HardSigmoid HardSwish Hardmax LeakyRelu LogSoftmax Mish PRelu Relu Selu Shrink Sigmoid "
        "Softmax Softplus Softsign Tanh ThresholdedRelu"
    ),
    "arithmetic": (
        "Abs Acos Acosh Add Asin Asinh Atan Atanh Cast CastLike Ceil Clip Cos Cosh Div Exp Floor Identity Log Max "
        "Mean Min Mod Mul Neg Pow Reciprocal Round Sign Sin Sinh Sqrt Sub Sum Tan Where"
    ),
    "control_flow": "If Loop Scan",
    "convolution": "Col2Im Conv ConvTranspose",
    "geometry": "AffineGrid Det",
    "indexing": (
        "Compress CumSum Dropout Gather GatherElements GatherND OneHot ReverseSequence ScatterElements ScatterND TopK "
        "Trilu Unique"
    ),
    "linear": "Einsum Gemm MatMul",
    "losses": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "normalization": (
        "BatchNormalization InstanceNormalization LRN LayerNormalization LpNormalization MeanVarianceNormalization"
    ),
    "pooling": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxUnpool",
    "quantization": "DequantizeLinear QuantizeLinear",
    "reductions": (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare"
    ),
    "resize": "Resize",
    "shapes": (
        "Concat DepthToSpace Expand Flatten Pad Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze"
    ),
    "spectral": "DFT STFT",
}
RULES = OperatorTable(FAMILIES, __name__, "RULES")
