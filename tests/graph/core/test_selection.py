import pytest

from ortpipe.errors import DeriveError
from ortpipe.graph.core import selection

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
    assert selection.select(patterns, PARAMETERS, DeriveError, "derive.frozen") == expected


def test_a_pattern_that_matches_nothing_is_refused_with_its_key_and_a_guess():
    with pytest.raises(DeriveError, match=r"derive\.frozen(.|\n)*'layer0\.wieght'(.|\n)*Did you mean 'layer0\.weight'"):
        selection.select(["*", "layer0.wieght"], PARAMETERS, DeriveError, "derive.frozen")


def test_matching_minds_the_case():
    assert selection.matches("W*", ["Weight"]) == ["Weight"]
    assert selection.matches("w*", ["Weight"]) == []


@pytest.mark.parametrize(("pattern", "names"), [("w[0]", ["w0", "w[0]"]), ("*", ["w", "*"]), ("a?", ["ab", "a?"])])
def test_a_name_is_a_name_before_it_is_a_glob(pattern, names):
    assert selection.select([pattern], names, DeriveError, "derive.frozen") == [pattern]
    with pytest.raises(DeriveError, match="must match a parameter"):
        selection.select([pattern], names[:1], DeriveError, "derive.frozen", fixed_names=names)
