"""The zero-shot-classification task: labels of the request's own, by natural language inference."""
