"""The way back: trained weights into the estimator, the state_dict or the .onnx file that they came from.

Names: `restore` returns an estimator or a state_dict with the weights of an artifact. `weights_of` collects a model's
`Weights`, with their origins in the source; `into_estimator`, `into_state_dict` and `into_onnx` decide where each one
goes (`Decision`), and `verify` compares the predictions. `convert_record` reads convert's record of the facts,
`named_as_in_state_dict` renames weights.

Read first: `weights.py` (collecting weights, and the decisions), `onnx_model.py` (writing into files) and
`ortpipe/graph/core/origins.py` (how a weight remembers its place in the source).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.stages.convert.restore.onnx_model import Decision, into_onnx
    from ortpipe.stages.convert.restore.weights import (
        Weights,
        convert_record,
        into_estimator,
        into_state_dict,
        named_as_in_state_dict,
        restore,
        verify,
        weights_of,
    )
else:
    __getattr__, __dir__, __all__ = door(__name__)
