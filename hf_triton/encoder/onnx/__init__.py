"""The engine ``onnxruntime``: export, quantization, files and sessions."""
