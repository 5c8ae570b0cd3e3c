"""How time and memory grow with what is asked for; ``hf-triton perf growth``."""
