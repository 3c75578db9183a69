"""The only folder that imports onnxruntime."""
