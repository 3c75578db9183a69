"""Random graphs, and the table of forms that they are drawn from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from autodiff.numeric import every_node_case
from fuzz.draw import Case, case
from fuzz.forms import FORMS, NO_SLOPE
from fuzz.judge import AGREE, judge
from onnx import numpy_helper

import ortpipe
from ortpipe.autodiff.expansions import EXPANSIONS
from ortpipe.autodiff.rules import RULES

ENGINE = Path(ortpipe.__file__).parent
GRAPHS, PIECES = 200, 8


def _first() -> int:
    """Return the first seed, which the engine's own text gives: who changes a rule meets graphs that nobody met."""
    files = sorted(file for room in ("graph", "autodiff") for file in (ENGINE / room).rglob("*.py"))
    text = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    return int.from_bytes(text.digest()[:4], "big")


def test_every_operator_with_a_rule_is_drawn_by_the_fuzzer() -> None:
    assert sorted({*RULES, *EXPANSIONS} - {*FORMS, *NO_SLOPE}) == []


@pytest.mark.parametrize("piece", range(PIECES))
def test_random_graphs_do_not_fail(piece: int) -> None:
    each = GRAPHS // PIECES
    first = _first() + piece * each
    found = {seed: judge(case(seed), thrifty=not piece) for seed in range(first, first + each)}
    failed = {seed: outcome.said for seed, outcome in found.items() if outcome.failed}
    assert not failed, f"python -m fuzz --count 1 --keep folder --seed {min(failed)}: {failed}"
    assert sum(outcome.kind == AGREE for outcome in found.values()) > each / 2


NEWER = (
    *("test_attention_3d_attn_mask", "test_rms_normalization_2d_axis1"),
    *("test_attention_23_boolmask_fullymasked_row_nan_robustness", "test_attention_causal_boolmask_nan_robustness"),
    *("test_rotary_embedding_interleaved", "test_swish", "test_tensorscatter"),
)
# of each other operator that opset 22 or later changed, but those of no gradient: DeformConv, Bernoulli, Round
CHANGED = """
    acos_example acosh asin_example asinh_example atan_example atanh_example attention_4d
    averagepool_2d_precomputed_pads basic_conv_with_padding convtranspose cos_example cosh_example det_2d
    dropout_default elu flatten_axis0 gru_defaults globalaveragepool globalmaxpool gridsample hardsigmoid_example
    hardswish identity instancenorm_example l2normalization_axis_1 lppool_1d_default lstm_defaults
    maxpool_2d_precomputed_pads maxunpool_export_without_output_shape mish nllloss_NC constant_pad
    rms_normalization_4d_axis0 simple_rnn_defaults reshape_reordered_all_dims roialign_aligned_true rotary_embedding
    scan9_sum selu sin_example sinh_example softplus_example softsign_example squeeze tan_example thresholdedrelu
    top_k transpose_default unsqueeze_axis_0
"""


def _node_case(name: str) -> Case:
    """Return a node test of opset 23 or 24: what is no float is a constant of it."""
    [found] = [c for c in every_node_case() if c.name == name]
    model, feeds = onnx.ModelProto(), {}
    model.CopyFrom(found.model)
    for opset in model.opset_import:
        opset.version = min(opset.version, 24)
    for value, array in zip(found.model.graph.input, found.data_sets[0][0], strict=True):
        feeds[value.name] = np.asarray(array)
        if feeds[value.name].dtype != np.float32:
            model.graph.input.remove(value)
            model.graph.initializer.append(numpy_helper.from_array(feeds.pop(value.name), value.name))
    return Case(model, feeds, (model.graph.output[0].name,), tuple(feeds))


@pytest.mark.parametrize("name", [*NEWER, *(f"test_{name}" for name in CHANGED.split())])
def test_node_cases_of_newer_opsets_have_the_gradient_of_the_differences(name: str) -> None:
    assert judge(_node_case(name), thrifty=False).kind == AGREE
