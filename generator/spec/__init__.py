"""What a correct models.yaml means: models, tasks, and the Triton models that come of them."""
