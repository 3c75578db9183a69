"""ONNX surgery: values in, values out, deterministic names; knows no stage."""
