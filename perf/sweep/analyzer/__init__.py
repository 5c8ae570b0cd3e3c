"""NVIDIA's perf_analyzer: found or downloaded, told what to do, and ended."""
