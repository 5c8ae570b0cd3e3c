"""Shares of a model's requests to other models: canary, A/B, shadow."""
