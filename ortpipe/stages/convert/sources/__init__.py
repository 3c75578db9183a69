"""The sources of models: estimators, networks described by a config, PyTorch modules and .onnx files.

Names: `SOURCES` is the catalogue; each member is a `ModelSource`, a config that returns a forward model when called,
such as `OnnxFile`. `Automatic` is the member that chooses a network by the training rows. `from_estimator`,
`from_model`, `from_path` and `from_module` do the same for an object or a path in Python. `read_estimator` reads an
estimator's file. `record_of` and `estimator_of` store a fitted estimator in convert's record, under the key `FITTED`,
and read it. `plain_classes` returns class labels as Python values. `Layers` writes layers with random weights.
`DESCRIPTION` is the file that describes the model in a folder of Hugging Face's hub.

Read first: `catalogue.py` (the table), `onnx_file.py` (the shortest source) and `sklearn_estimator.py` (from an
estimator to its graph).
"""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.stages.convert.sources.catalogue import DESCRIPTION, SOURCES, ModelSource
    from ortpipe.stages.convert.sources.networks.auto import Automatic
    from ortpipe.stages.convert.sources.networks.layers import Layers
    from ortpipe.stages.convert.sources.onnx_file import OnnxFile, from_model, from_path
    from ortpipe.stages.convert.sources.outputs import plain_classes
    from ortpipe.stages.convert.sources.sklearn_estimator import from_estimator, read_estimator
    from ortpipe.stages.convert.sources.stored_estimator import FITTED, estimator_of, record_of
    from ortpipe.stages.convert.sources.torch_export import from_module
else:
    __getattr__, __dir__, __all__ = door(__name__)
