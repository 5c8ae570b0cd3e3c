"""The processes on Triton's public ports: they check requests and pass them on to tritonserver."""
