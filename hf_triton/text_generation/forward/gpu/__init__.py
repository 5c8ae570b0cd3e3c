"""Kernels for GPUs in OpenAI Triton, and what computes with them."""
