"""ortpipe trains ONNX models from config files."""
