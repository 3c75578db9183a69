import numpy as np
import onnx_ir as ir
import pytest

from ortpipe.errors import DeriveError
from ortpipe.graph import query

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


PARAMETERS = ["layer0.weight", "layer0.bias", "layer1.weight", "a[0]"]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["layer0.*"], ["layer0.weight", "layer0.bias"]),
        (["layer1.weight", "layer0.weight"], ["layer0.weight", "layer1.weight"]),
        (["*.weight", "layer0.*"], ["layer0.weight", "layer0.bias", "layer1.weight"]),
        (["layer?.bias"], ["layer0.bias"]),
        (["layer[01].weight"], ["layer0.weight", "layer1.weight"]),
        (["a[0]"], ["a[0]"]),
        ([], []),
        (["*"], PARAMETERS),
    ],
)
def test_patterns_choose_names_in_the_names_order(patterns, expected):
    assert query.select(patterns, PARAMETERS, DeriveError, "derive.frozen") == expected


def test_a_pattern_that_matches_nothing_is_refused_with_its_key_and_a_guess():
    with pytest.raises(DeriveError, match=r"derive\.frozen(.|\n)*'layer0\.wieght'(.|\n)*Did you mean 'layer0\.weight'"):
        query.select(["*", "layer0.wieght"], PARAMETERS, DeriveError, "derive.frozen")


def test_matching_minds_the_case():
    assert query.matches("W*", ["Weight"]) == ["Weight"]
    assert query.matches("w*", ["Weight"]) == []


@pytest.mark.parametrize(("pattern", "names"), [("w[0]", ["w0", "w[0]"]), ("*", ["w", "*"]), ("a?", ["ab", "a?"])])
def test_a_name_is_a_name_before_it_is_a_glob(pattern, names):
    assert query.select([pattern], names, DeriveError, "derive.frozen") == [pattern]
    with pytest.raises(DeriveError, match="must match a parameter"):
        query.select([pattern], names[:1], DeriveError, "derive.frozen", fixed_names=names)


def test_integers_are_no_floats(graph):
    assert graph.initializers["i"].dtype not in query.FLOATS
    assert np.dtype("float32") == graph.initializers["w"].dtype.numpy()
