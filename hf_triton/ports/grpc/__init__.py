"""The public gRPC port: what stands between its clients and tritonserver."""
