"""The changes of a converted model that the config names, in order."""

from ortpipe.data.rows import Data
from ortpipe.stages.convert.changes.initialize import with_weights_of_file
from ortpipe.stages.convert.changes.new_head import with_new_head
from ortpipe.stages.convert.changes.quantize import quantized
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.forward import Converted


def changed(converted: Converted, config: ConvertConfig, data: Data | None) -> Converted:
    """Give the model the new head, the weights of a file and the fake quantization that the config names."""
    if config.head is not None:
        converted = with_new_head(converted, config.head, config.source)
    if config.init is not None:
        converted = with_weights_of_file(converted, config.init)
    if config.quantize is not None:
        converted = quantized(converted, config.quantize, config.source, data)
    return converted
