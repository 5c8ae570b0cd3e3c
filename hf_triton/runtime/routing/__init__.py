"""Routes shares of a model's requests to other Triton models: canary, A/B test, shadow."""
