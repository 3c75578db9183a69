import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import ortpipe
from ortpipe.graph.core import query

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3] X, float[N, 3] Z, bool flag) => (float[N, 3] Y, float[N, 3] other)
<float[3] w = {1, 2, 3}, double[1] d = {1}, float[3] captured = {1, 1, 1}, float[3] deep = {2, 2, 2},
 int64[1] i = {1}, float[3] unused = {1, 2, 3}>
{
  h = Mul(X, w)
  c = If (flag) <
    then_branch = yes () => (float[N, 3] a) {
      a = If (flag) <
        then_branch = inner_yes () => (float[N, 3] e) { e = Mul(h, deep) },
        else_branch = inner_no () => (float[N, 3] f) { f = Neg(h) }
      >
    },
    else_branch = no () => (float[N, 3] b) { local = Add(h, captured)  b = Neg(local) }
  >
  k = Cast <to = 1> (d)
  Y = Mul(c, k)
  other = Unsqueeze(Z, i)
}
"""


@pytest.fixture
def graph():
    return ir.from_onnx_text(TEXT).graph


def names(values):
    return {value.name for value in values}


@pytest.mark.parametrize("name", ["X", "w", "h", "Y"])
def test_a_value_is_found_by_name_whatever_makes_it(graph, name):
    assert query.value(graph, name).name == name


@pytest.mark.parametrize("name", ["nope", "", "local"])
def test_a_value_that_is_not_in_the_graph_is_a_key_error(graph, name):
    with pytest.raises(KeyError):
        query.value(graph, name)


def test_ancestors_are_what_a_value_depends_on_subgraphs_included(graph):
    found = names(query.ancestors([query.value(graph, "Y")]))
    assert found == {"Y", "c", "k", "d", "flag", "h", "X", "w", "captured", "deep"}


def test_ancestors_of_an_input_are_itself(graph):
    assert names(query.ancestors([graph.inputs[0]])) == {"X"}


def test_captures_are_the_outer_values_of_subgraphs_however_deep(graph):
    [node] = [node for node in graph if node.op_type == "If"]
    assert names(query.captured(node)) == {"h", "flag", "captured", "deep"}
    assert query.captured(graph.node(0)) == []


def test_float_initializers_are_those_that_matter_in_the_graphs_order(graph):
    assert query.float_initializers(graph, query.value(graph, "Y")) == ["w", "d", "captured", "deep"]
    assert query.float_initializers(graph, query.value(graph, "other")) == []


def test_an_array_is_no_view_of_the_model(graph):
    weight = graph.initializers["w"]
    query.array(weight)[:] = 0
    assert query.array(weight).tolist() == [1, 2, 3]


def test_a_value_without_a_constant_has_no_array(graph):
    with pytest.raises(KeyError, match="X has no value"):
        query.array(graph.inputs[0])


def test_integers_are_no_floats(graph):
    assert graph.initializers["i"].dtype not in query.FLOATS
    assert np.dtype("float32") == graph.initializers["w"].dtype.numpy()


REDUCING = {  # node, rank of x → its axes
    "an input": ("ReduceMean(x, backwards)", 3, [1, 2]),
    "without a rank as they are written": ("ReduceMean(x, backwards)", None, [-1, 1]),
    "none: all": ("ReduceMean(x)", 3, [0, 1, 2]),
    "none, without a rank": ("ReduceMean(x)", None, None),
    "an empty list: all": ("ReduceSum(x, nothing)", 2, [0, 1]),
    "an empty list that says so: none": ("ReduceSum<noop_with_empty_axes=1>(x, nothing)", 2, []),
    "computed": ("ReduceSum(x, computed)", 2, None),
    "an input of the graph, which a caller may set": ("Squeeze(x, given)", 3, None),
    "of a Squeeze": ("Squeeze(x, backwards)", 3, [1, 2]),
}


@pytest.mark.parametrize("name", REDUCING)
def test_axes_are_counted_from_the_front(name):
    node, rank, expected = REDUCING[name]
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[A,B,C] x, int64[2] given) => (y)
      <int64[2] backwards = {{-1, 1}}, int64[0] nothing = {{}}> {{ computed = Neg(given) y = {node} }}"""
    assert query.axes(ir.from_onnx_text(text).graph[-1], rank) == expected


# Operators whose `axes` are an attribute at every opset
ALWAYS_ATTRIBUTES = ("rules/normalization.py", "rules/resize.py", "dialects/quantized.py")


def test_only_the_door_reads_axes_of_older_opsets_or_asks_for_the_opset():
    package = Path(ortpipe.__file__).parent
    reading = {str(file.relative_to(package)): file.read_text() for file in package.rglob("*.py")}
    readers = [file for file, text in reading.items() if 'get_ints("axes"' in text]
    assert [file for file in readers if not file.endswith(ALWAYS_ATTRIBUTES)] == []
    asking = re.compile(r"^[^#\n\"']*\bopset(s|_version)?\b[^\n\"']*(<|>|<=|>=) *\d", re.MULTILINE)
    asks = {file for file, text in reading.items() if asking.search(text)}
    # of a caller; an attribute's name
    assert asks <= {"compat/initializers.py", "stages/convert/dialects/quantized.py"}
