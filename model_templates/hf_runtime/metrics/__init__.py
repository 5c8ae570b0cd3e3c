"""What a model counts, published on Triton's ``/metrics``."""
