"""Engines of text: in flight, through transformers' ``generate``, through vLLM."""
