from __future__ import annotations

import onnx_ir as ir
import pytest

from ortpipe.graph.builder import Builder
from ortpipe.stages.train.plus import plus


@pytest.mark.parametrize("attributes", [{}, {"beta": 0.0, "transA": 1}])
def test_a_product_is_accumulated_in_full_whatever_it_said_of_its_missing_addend(attributes):
    a, b, x = (ir.val(name, ir.DataType.FLOAT, [2, 2]) for name in "abx")
    op = Builder(ir.Graph([a, b, x], [], nodes=[], opset_imports={"": 18}), "step")
    product = op.Gemm(a, b, **attributes)
    product.shape = x.shape
    node = plus(op, x, product).producer()
    assert (node.op_type, list(node.inputs), node.attributes["beta"].as_float()) == ("Gemm", [a, b, x], 1)
