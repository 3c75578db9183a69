"""From anybody's ONNX model to the operators, the opset and the names that the stages work on."""
