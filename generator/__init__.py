"""Build time: models.yaml becomes a Triton model repository. Never imports torch."""
