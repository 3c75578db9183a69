"""Derivatives of an ONNX graph, as a graph of standard operators: reverse accumulation with a table of rules."""
