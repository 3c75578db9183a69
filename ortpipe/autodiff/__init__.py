"""Derivatives of an ONNX graph, as a graph of standard operators: a walk backwards over a table of rules."""
