"""A model's own metrics: counted in its process, published on Triton's ``/metrics``."""
