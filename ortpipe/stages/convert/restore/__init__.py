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
    from ortpipe.stages.convert.restore.onnx_model import Decision as Decision
    from ortpipe.stages.convert.restore.onnx_model import into_onnx as into_onnx
    from ortpipe.stages.convert.restore.weights import Weights as Weights
    from ortpipe.stages.convert.restore.weights import convert_record as convert_record
    from ortpipe.stages.convert.restore.weights import into_estimator as into_estimator
    from ortpipe.stages.convert.restore.weights import into_state_dict as into_state_dict
    from ortpipe.stages.convert.restore.weights import named_as_in_state_dict as named_as_in_state_dict
    from ortpipe.stages.convert.restore.weights import restore as restore
    from ortpipe.stages.convert.restore.weights import verify as verify
    from ortpipe.stages.convert.restore.weights import weights_of as weights_of
else:
    __getattr__, __dir__, __all__ = door(__name__)
