"""ONNX's own node tests, differentiated: a few cases of each operator that has a rule or a function body.

`ORTPIPE_TESTS=all` tests every case.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from autodiff.numeric import every_node_case, scalar_loss, weights_of, worst_error
from engines import native
from fuzz.draw import Case
from fuzz.judge import AGREE, judge
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from plain_session import PlainSession
from sample import few_of_each

from ortpipe.autodiff.rules.__main__ import NEWEST
from ortpipe.autodiff.table import RULES

OPSET = 21
TESTED = ("arithmetic", "elementwise", "indexing", "linear", "reductions", "shapes")
# Central differences of step 1e-6 in float64: rounding 1e-16 · loss / 1e-6, and the largest losses here are some 1e4
# (the worst: 7e-6, a mean over five more axes; without such sums 1e-7).
TOLERANCE = 1e-5
BODIES = ("CenterCropPad", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
OPERATORS = {*BODIES, *(op for family in TESTED for op in RULES.families[family])}
OTHERS = {*RULES} - OPERATORS
# onnx.reference computes these in float32: rounding 6e-8 · loss / step, truncation step²
COARSE = {"Celu": (1e-2, 1e-3), "Erf": (1e-2, 1e-3), "Gelu": (1e-2, 1e-3)}
IN_FLOAT32 = {"Celu"}  # ONNX has no Celu of float64
# how many inputs in front; a ratio, a depth and the like are settings
DIFFERENTIATED = {
    "BatchNormalization": 3,
    "Dropout": 1,
    "OneHot": 0,
    "Resize": 1,
}
# Cases whose data lie on a corner or a step, which has no central difference: they are moved off it.
MOVED = {
    "test_acosh_example": "1, where the slope has no end",
    "test_elu_example": "0",
    "test_floor_example": "an integer",
    "test_hardmax_one_hot": "a tie",
    "test_leakyrelu_example": "0",
    **{f"test_mod_float_edge_cases_fmod_0_float{bits}": "a divisor of 0" for bits in (16, 32, 64)},
    "test_pow": "0 to a negative power",
    "test_reduce_min_default_axes_keepdims_example": "a tie",
    "test_round": "a half",
    "test_selu_example": "0",
    "test_sign": "0",
    "test_thresholdedrelu_example": "alpha",
    **{
        f"test_unique_{case}": "a tie"
        for case in (
            *("not_sorted_without_axis", "sorted_without_axis"),
            *("sorted_with_axis", "sorted_with_axis_3d", "sorted_with_negative_axis"),
        )
    },
}
LATER = "of an opset after 21, or of a type that came after it"
LEFT_OUT = {
    "test_castlike_FLOAT4E2M1_to_FLOAT": LATER,
    "test_castlike_FLOAT4E2M1_to_FLOAT16": LATER,
    "test_castlike_INT2_to_FLOAT": LATER,
    "test_castlike_INT2_to_FLOAT16": LATER,
    "test_castlike_UINT2_to_FLOAT": LATER,
    "test_castlike_UINT2_to_FLOAT16": LATER,
    "test_celu_float16": LATER,
    "test_spacetodepth_crd_mode_example": LATER,
    "test_spacetodepth_dcr_mode_example": LATER,
}


def _is_of(operators, case):
    graph = case.model.graph
    if "_expanded" in case.name or not graph.node or graph.node[0].domain or graph.node[0].op_type not in operators:
        return False
    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}
    inputs, outputs = ({v.type.tensor_type.elem_type for v in values} for values in (graph.input, graph.output))
    return bool(inputs & floats and outputs & floats) and case.name not in LEFT_OUT


CASES = {case.name: case for case in every_node_case() if _is_of(OPERATORS, case)}


def _few(names, count):
    """Return a few cases of each operator."""
    return few_of_each(((CASES[name].model.graph.node[0].op_type, name) for name in names), count)


def prepared(case, *, bake):
    """Return a case's model at opset 21, its feeds, and the inputs to differentiate by.

    Integer inputs become initializers with `bake`; without, they stay what a caller may change.
    """
    model, op_type = _at_opset(case.model), case.model.graph.node[0].op_type
    arrays = [
        numpy_helper.to_array(a) if isinstance(a, onnx.TensorProto) else np.asarray(a) for a in case.data_sets[0][0]
    ]
    arrays = [np.where(np.isfinite(a), a, a.dtype.type(1)) if a.dtype.kind in "fV" else a for a in arrays]
    feeds = dict(zip([i.name for i in model.graph.input], arrays, strict=True))
    count = DIFFERENTIATED.get(op_type, len(arrays))
    if case.name in MOVED:
        rng = np.random.default_rng(3)
        feeds = {k: (v + rng.uniform(0.02, 0.1, v.shape)).astype(v.dtype) for k, v in feeds.items()}
    by = tuple(list(feeds)[:count] if count else list(feeds)[-1:])
    for value in list(model.graph.input):
        if bake and feeds[value.name].dtype.kind not in "fc":
            model.graph.input.remove(value)
            model.graph.initializer.append(numpy_helper.from_array(feeds.pop(value.name), value.name))
    return model, feeds, by


def _at_opset(model):
    own = onnx.ModelProto()
    own.CopyFrom(model)
    for opset in own.opset_import:
        opset.version = min(opset.version, OPSET)
    own.ir_version = min(own.ir_version, 10)
    onnx.checker.check_model(own, full_check=True)
    return own


def error_of(name, *, bake):
    model, feeds, by = prepared(CASES[name], bake=bake)
    op_type = CASES[name].model.graph.node[0].op_type
    step, tolerance = COARSE.get(op_type, (1e-6, TOLERANCE))
    with np.errstate(all="ignore"):
        error = worst_error(model, feeds, by, step=step, double=op_type not in IN_FLOAT32)
    return error, tolerance


@pytest.mark.parametrize("name", _few(CASES, 4))
def test_the_gradient_of_a_node_case_is_the_central_difference(name):
    error, tolerance = error_of(name, bake=True)
    assert error < tolerance


INTEGERS = [n for n, c in CASES.items() if any(np.asarray(a).dtype.kind in "iub" for a in c.data_sets[0][0])]


@pytest.mark.parametrize("name", _few(INTEGERS, 2))
def test_it_is_so_where_axes_shapes_and_indices_are_only_known_at_run_time(name):
    error, tolerance = error_of(name, bake=False)
    assert error < tolerance


SAMPLED = "onnxruntime draws another mask than the reference"
TYPE = "onnxruntime 1.19 has no kernel for the forward operator of this type"
NO_KERNEL = {
    "test_castlike_BFLOAT16_to_FLOAT": TYPE,
    "test_castlike_FLOAT8E5M2_to_FLOAT": TYPE,
    "test_castlike_INT4_to_FLOAT": TYPE,
    "test_castlike_UINT4_to_FLOAT": TYPE,
    "test_mod_float32_mixed_sign_fmod_0": TYPE,
    "test_mod_float_edge_cases_fmod_0_float32": TYPE,
    "test_pow_types_float32_uint32": TYPE,
    "test_pow_types_float32_uint64": TYPE,
    "test_reduce_max_empty_set": TYPE,
    "test_reversesequence_batch": "onnxruntime 1.19 writes nothing where a length is 0",
    "test_training_dropout": SAMPLED,
    "test_training_dropout_default": SAMPLED,
    "test_training_dropout_default_mask": SAMPLED,
    "test_training_dropout_mask": SAMPLED,
}


@pytest.mark.parametrize("name", _few([n for n in CASES if n not in NO_KERNEL], 2))
def test_onnxruntime_computes_what_the_reference_computes(name):
    model, feeds, by = prepared(CASES[name], bake=True)
    with np.errstate(all="ignore"):
        _compare_runtimes(model, feeds, by)


def _compare_runtimes(model, feeds, by):
    floats = {v.name for v in model.graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    weights = weights_of(model, feeds)
    if not weights or not floats:
        return  # a case of float16 or float64 alone
    derived, names = native(scalar_loss(model, weights), "check/loss", [], [n for n in by if n in floats])
    outputs = ["check/loss", *names.values()]
    expected = onnx.reference.ReferenceEvaluator(derived).run(outputs, dict(feeds))
    for a, b in zip(PlainSession(derived).run(feeds, outputs), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


LARGEST = 6_000  # numbers; onnx's evaluator pools larger volumes for seconds
WITHOUT = {
    "GlobalLpPool": "ONNX has no case: tests/autodiff/rules/test_pooling.py",
    "If": "no case reads a float: tests/autodiff/rules/test_control_flow.py",
    "QuantizeLinear": "no slope, by intent: tests/autodiff/rules/test_quantization.py",
    "MeanVarianceNormalization": "its body is of float32: tests/autodiff/rules/test_normalization.py",
    "STFT": "shape inference counts the frames of one half: tests/autodiff/rules/test_spectral.py",
    "Trilu": "every case reads integers: tests/autodiff/rules/test_forms.py",
}
REJECTED, INVALID, NO_VALUE, FORWARD = "refused by name", "not a model", "no reference", "forward differs"
ENDS = {  # of the cases that do not agree
    "test_averagepool_2d_ceil_last_window_starts_on_pad": REJECTED,
    "test_dft_irfft": REJECTED,
    "test_dft_irfft_opset19": REJECTED,
    "test_l2normalization_axis_0": NO_VALUE,  # a vector of zeros
    "test_maxpool_2d_ceil_output_size_reduce_by_one": REJECTED,
    "test_maxpool_with_argmax_2d_precomputed_strides": NO_VALUE,
    "test_maxunpool_export_with_output_shape": REJECTED,
    "test_mvn": INVALID,
    "test_resize_downsample_scales_cubic_align_corners": FORWARD,
    "test_resize_downsample_scales_linear_align_corners": FORWARD,
    "test_scan9_multi_state": REJECTED,  # the first output does not depend on every input
    "test_scan_sum": NO_VALUE,  # of opset 8
    "test_stft": INVALID,
    "test_stft_with_window": INVALID,
}


def _is_small(case):
    values = [a for side in case.data_sets[0] for a in side]
    return all(isinstance(a, np.ndarray) for a in values) and sum(a.size for a in values) <= LARGEST


TIES = ("test_maxpool_3d_dilations", "test_maxpool_3d_dilations_use_ref_impl")
JUDGED = {
    case.name: case for case in every_node_case() if _is_of(OTHERS, case) and _is_small(case) and case.name not in TIES
}

NEWER = (
    *("test_attention_3d_attn_mask", "test_rms_normalization_2d_axis1"),
    *("test_attention_23_boolmask_fullymasked_row_nan_robustness", "test_attention_causal_boolmask_nan_robustness"),
    *("test_rotary_embedding_interleaved", "test_swish", "test_tensorscatter"),
)
# of each other operator that opset 22 or later changed, but those without a gradient: DeformConv, Bernoulli, Round
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


NAMES = (*NEWER, *(f"test_{name}" for name in CHANGED.split()))
JUDGED |= {case.name: case for case in every_node_case() if case.name in NAMES}


def _of_floats(case: TestCase) -> Case:
    """Return a node test whose other inputs are constants, as are its settings."""
    model, feeds = onnx.ModelProto(), {}
    model.CopyFrom(case.model)
    for opset in model.opset_import:
        opset.version = min(opset.version, NEWEST)
    count = DIFFERENTIATED.get(model.graph.node[0].op_type)
    for place, (value, array) in enumerate(zip(case.model.graph.input, case.data_sets[0][0], strict=True)):
        array = np.asarray(array)
        if array.dtype == np.float32 and (count is None or place < count):
            feeds[value.name] = array
        else:
            model.graph.input.remove(value)
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    return Case(model, feeds, (model.graph.output[0].name,), tuple(feeds))


SAMPLE = few_of_each((((case.model.graph.node[0].op_type, ENDS.get(n)), n) for n, case in JUDGED.items()), 2)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_fuzzer_s_judge_agrees_on_node_cases_of_other_families_and_newer_opsets(name):
    assert judge(_of_floats(JUDGED[name]), thrifty=False).kind == ENDS.get(name, AGREE)


def test_every_rule_has_a_node_case():
    cases = [*CASES.values(), *(case for case in JUDGED.values() if case.name not in ENDS)]
    assert {*RULES} - {case.model.graph.node[0].op_type for case in cases} == {*WITHOUT}
