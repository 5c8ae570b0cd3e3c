"""Linear layers of int8 weights on a CPU."""
