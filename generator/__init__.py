"""Build time: turns models.yaml into a Triton model repository. Imports no torch, no transformers."""
