"""Speculative decoding: tokens that may come next, computed and verified in one step."""
