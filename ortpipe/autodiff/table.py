"""The tables of gradient rules and of expansions by operator, one family of operators per file.

A rule is a vector-Jacobian product; `walk.py` documents its signature. An expansion rewrites an operator as others
before the walk, so that existing rules apply. It is `expansion(op, node)`: it uses `op` to insert nodes before the node
and returns one value per output of the node (None for an unused output), or None to leave the node unchanged.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class OperatorTable(Mapping[str, Callable[..., Any]]):
    """Functions by operator; the first look-up of a function imports its family's file.

    Args:
        package: the folder of the files, each of which has a table of functions of the same name in capitals.
        families: the operators of each file, separated by spaces.
    """

    def __init__(self, package: str, **families: str) -> None:
        self.families = {family: tuple(operators.split()) for family, operators in families.items()}
        self._family = {operator: family for family, operators in self.families.items() for operator in operators}
        self._package = package

    def __getitem__(self, operator: str) -> Callable[..., Any]:
        module = importlib.import_module(f"ortpipe.autodiff.{self._package}.{self._family[operator]}")
        return getattr(module, self._package.upper())[operator]

    def __contains__(self, operator: object) -> bool:
        return operator in self._family  # imports nothing

    def __iter__(self) -> Iterator[str]:
        return iter(self._family)

    def __len__(self) -> int:
        return len(self._family)


RULES = OperatorTable(
    "rules",
    arithmetic=(
        "Add Cast CastLike Div Exp Gemm Identity Log Mean Mul Neg Reciprocal ReduceMean ReduceSum Relu Sqrt Sub Sum "
        "Where"
    ),
    control_flow="If Loop Scan",
    convolution="Col2Im Conv ConvTranspose",
    elementwise=(
        "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Clip Cos Cosh Elu Erf Floor Gelu HardSigmoid HardSwish "
        "Hardmax LeakyRelu LogSoftmax Max Min Mish Mod PRelu Pow Round Selu Shrink Sigmoid Sign Sin Sinh Softmax "
        "Softplus Softsign Tan Tanh ThresholdedRelu"
    ),
    geometry="AffineGrid Det",
    indexing=(
        "Compress CumSum Dropout Gather GatherElements GatherND OneHot ReverseSequence ScatterElements ScatterND TopK "
        "Trilu Unique"
    ),
    linear="Einsum MatMul",
    normalization=(
        "BatchNormalization InstanceNormalization LRN LayerNormalization LpNormalization MeanVarianceNormalization"
    ),
    pooling="AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxUnpool",
    quantization="DequantizeLinear QuantizeLinear",
    reductions="ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMin ReduceProd ReduceSumSquare",
    resize="Resize",
    shapes=("Concat DepthToSpace Expand Flatten Pad Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze"),
    spectral="DFT STFT",
)
EXPANSIONS = OperatorTable(
    "expansions",
    log_sigmoid="Log",
    loops="Loop Scan",
    recurrent="GRU LSTM RNN",
    same_pads="Conv",
    sampling="GridSample RoiAlign",
    sequences="ConcatFromSequence OptionalGetElement SequenceAt",
)
