from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir

from ortpipe.graph.core.check import finish
from ortpipe.graph.core.rewrite import rewrite
from ortpipe.runtime.session import Session

TEXT = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y, float[2] z)
 { y = Softsign(x) a = Softsign(y) z = Neg(a) }"""


def softsign(op, node):
    x = node.inputs[0]
    return [op.Div(x, op.Add(op.const(np.float32(1)), op.Abs(x)))]


def rewritten(table, **chosen):
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(TEXT)))
    rewrite(model.graph, table, **{name: list(model.graph)[:count] for name, count in chosen.items()})
    return finish(model)


def test_nodes_with_a_rule_are_replaced_and_values_keep_their_names():
    model = rewritten({"Softsign": softsign})
    assert "Softsign" not in {n.op_type for n in model.graph.node}
    assert [o.name for o in model.graph.output] == ["y", "z"]
    assert {"y", "a", "z"} <= {name for n in model.graph.node for name in n.output}
    y, z = Session(model).run({"x": np.array([1, -3], np.float32)})
    np.testing.assert_allclose(y, [0.5, -0.75])
    np.testing.assert_allclose(z, [-1 / 3, 0.75 / 1.75], rtol=1e-6)


def test_a_rule_may_leave_a_node_as_it_is():
    assert "Softsign" in {n.op_type for n in rewritten({"Softsign": lambda op, node: None}).graph.node}


def test_only_the_chosen_nodes_are_rewritten():
    assert [n.op_type for n in rewritten({"Softsign": softsign}, nodes=1).graph.node].count("Softsign") == 1
    assert [n.op_type for n in rewritten({"Softsign": softsign}, nodes=0).graph.node].count("Softsign") == 2


def test_another_domain_is_not_touched():
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    rewrite(model.graph, {"Softsign": softsign}, domain="com.microsoft")
    assert [n.op_type for n in model.graph].count("Softsign") == 2
