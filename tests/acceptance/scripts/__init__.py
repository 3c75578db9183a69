"""The tests and examples of onnxcustom and experimental-experiment, run against ortpipe.compat."""
