"""One tritonserver: found, started, asked over HTTP and gRPC, and ended without leftovers."""
