"""Which settings a model has, which are tried, and where models.yaml says them."""
