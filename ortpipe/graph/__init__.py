"""ONNX surgery: values in, values out, deterministic names; knows no stage."""

from typing import TYPE_CHECKING

from ortpipe.doors import door

if TYPE_CHECKING:
    from ortpipe.graph.choice.parameters import choose
    from ortpipe.graph.core import query
    from ortpipe.graph.core.apart import attach, put_together, serialized, written_beside
    from ortpipe.graph.core.builder import Builder, Names, used_names
    from ortpipe.graph.core.check import checked, clean, finish, finish_apart, proto_apart
    from ortpipe.graph.core.edit import keep_outputs, set_initializers
    from ortpipe.graph.core.inference import infer, parsed
    from ortpipe.graph.core.operators import having
    from ortpipe.graph.core.protos import Weights, all_nodes, is_large, is_quantized, without_metadata
    from ortpipe.graph.core.selection import some
    from ortpipe.graph.core.types import OPSET
    from ortpipe.graph.files import serial
    from ortpipe.graph.files.serial import read_apart, write_atomically
    from ortpipe.graph.files.state_dict import SUFFIXES, StateDictFile
    from ortpipe.graph.forms.adapters import Adapter, apart, to_bytes
    from ortpipe.graph.forms.int8 import to_int8
    from ortpipe.graph.forms.modes import to_inference
    from ortpipe.graph.importing.batch import name_batch, name_dimensions
    from ortpipe.graph.importing.lower import lowered
    from ortpipe.graph.importing.opsets import at_opset
    from ortpipe.graph.pictures import draw
    from ortpipe.graph.pictures.draw import to_dot, to_mermaid, to_text, type_of
    from ortpipe.graph.pictures.svg import layers, to_svg
else:
    __getattr__, __dir__, __all__ = door(__name__)
