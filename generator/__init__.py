"""Makes a Triton model repository, or files to deploy, of models.yaml. Imports no torch."""
