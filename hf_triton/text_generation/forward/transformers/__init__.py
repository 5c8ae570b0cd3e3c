"""How the in-flight engine computes a step: packed, through transformers' Cache, as CUDA graphs."""
