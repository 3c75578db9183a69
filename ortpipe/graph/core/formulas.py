"""The types in the signatures of formulas, such as losses, for type checkers; at run time they are `Any`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a config with a formula can be read without onnx-ir, which imports sympy (0.4 s)
    from onnx_ir import DataType as DataType
    from onnx_ir import Model as Model
    from onnx_ir import Value as Value

    from ortpipe.graph.core.builder import Builder as Builder
else:
    Builder = DataType = Model = Value = Any
