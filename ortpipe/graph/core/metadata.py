"""The metadata that ortpipe writes into models."""

import onnx

PREFIX = "ortpipe."  # of its keys


def without_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without ortpipe's facts, which are outdated; other metadata stay."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.metadata_props[:]
    bare.metadata_props.extend(p for p in model.metadata_props if not p.key.startswith(PREFIX))
    return bare
