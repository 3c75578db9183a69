"""Transformers that skl2onnx converts: their graphs inlined, with all numbers as constants."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError, ModelError
from ortpipe.graph.importing.lower import inline, prepared
from ortpipe.stages.convert.sources.sklearn_columns import Columns, Flow
from ortpipe.stages.convert.sources.sklearn_encoders import ML, ML_VERSION

WORDS = ("CountVectorizer", "TfidfVectorizer", "HashingVectorizer")  # which read one column of texts
LOCALE = "C.UTF-8"  # exists without language packs, unlike skl2onnx's default en_US.UTF-8


def has_converter(step: Any) -> bool:
    """Return whether skl2onnx has a converter for a transformer's class, its own or a registered one."""
    from skl2onnx._supported_operators import sklearn_operator_name_map

    return type(step) in sklearn_operator_name_map


def by_skl2onnx(flow: Flow, step: Any, columns: Columns) -> ir.Value:
    """Apply skl2onnx's graph of a transformer to columns."""
    import skl2onnx

    data_types = skl2onnx.common.data_types
    op, options = flow.op, None
    if type(step).__name__ in WORDS:
        x, input_type = columns.words(), data_types.StringTensorType([None, 1])
        options = {type(step): {"locale": LOCALE}}
    else:
        x = columns.floats()
        float_type = data_types.DoubleTensorType if flow.dtype == np.float64 else data_types.FloatTensorType
        input_type = float_type([None, columns.width])
    target = {"": op.graph.opset_imports[""], ML: ML_VERSION}
    try:
        model = skl2onnx.to_onnx(step, initial_types=[("X", input_type)], target_opset=target, options=options)
        inner = prepared(model, op)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, KeyError, ModelError) as error:
        raise ConvertError(
            "A step that ortpipe does not convert itself must be one that skl2onnx can convert.",
            got=f"{type(step).__name__}: {str(error).strip().splitlines()[0]}",
            fix="Take another step, or make its columns in the data.",
        ) from error
    [output] = inner.graph.outputs
    inline(op, inner, {"X": x}, type(step).__name__)
    dtype = ir.DataType.from_numpy(flow.dtype)
    return output if output.dtype == dtype else op.Cast(output, to=dtype)
