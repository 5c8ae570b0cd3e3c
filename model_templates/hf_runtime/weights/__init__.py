"""A model's files: found, downloaded, checked against models.lock, loaded, quantized."""
