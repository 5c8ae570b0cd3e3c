"""The Triton behind the API, over gRPC: its models, requests, answers and errors."""
