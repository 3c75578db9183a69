"""Transformers that skl2onnx knows: their graphs inside ours, every number of theirs a constant."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError, ModelError
from ortpipe.graph.inline import inline, prepared
from ortpipe.stages.convert.sources.sklearn_columns import Columns, Flow
from ortpipe.stages.convert.sources.sklearn_encoders import ML, ML_VERSION

WORDS = ("CountVectorizer", "TfidfVectorizer", "HashingVectorizer")  # which read one column of texts
LOCALE = "C.UTF-8"  # which images without language packs have, where en_US.UTF-8, skl2onnx's default, is not


def has_converter(step: Any) -> bool:
    """Return whether skl2onnx has a converter for a transformer's class, its own or a registered one."""
    from skl2onnx._supported_operators import sklearn_operator_name_map

    return type(step) in sklearn_operator_name_map


def by_skl2onnx(flow: Flow, step: Any, columns: Columns) -> ir.Value:
    """Return what skl2onnx's graph makes of columns."""
    import skl2onnx

    data_types = skl2onnx.common.data_types
    op, options = flow.op, None
    if type(step).__name__ in WORDS:
        x, kind = columns.words(), data_types.StringTensorType([None, 1])
        options = {type(step): {"locale": LOCALE}}
    else:
        x = columns.floats()
        of_float = data_types.DoubleTensorType if flow.dtype == np.float64 else data_types.FloatTensorType
        kind = of_float([None, columns.width])
    target = {"": op.graph.opset_imports[""], ML: ML_VERSION}
    try:
        model = skl2onnx.to_onnx(step, initial_types=[("X", kind)], target_opset=target, options=options)
        inner = prepared(model, op)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, KeyError, ModelError) as error:
        raise ConvertError(
            "skl2onnx must be able to convert a step that ortpipe has no form of its own for.",
            got=f"{type(step).__name__}: {str(error).strip().splitlines()[0]}",
            fix="Take another step, or make its columns in the data.",
        ) from error
    [output] = inner.graph.outputs
    inline(op, inner, {"X": x}, type(step).__name__)
    dtype = ir.DataType.from_numpy(flow.dtype)
    return output if output.dtype == dtype else op.Cast(output, to=dtype)
